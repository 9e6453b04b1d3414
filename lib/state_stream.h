// The bytes of a saved cache, written and read as records, texts and raw rows, in sections that end
// with their checksum. Little-endian, without padding. docs/state.md describes the whole file.
#ifndef KVSIEVE_LIB_STATE_STREAM_H_
#define KVSIEVE_LIB_STATE_STREAM_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "kvsieve/byte_stream.h"
#include "kvsieve/result.h"
#include "kvsieve/str_cat.h"
#include "lib/checksum.h"

namespace kvsieve {

static_assert(std::endian::native == std::endian::little, "saved states are little-endian");

// Structs that are written as they lie in memory: every byte is part of a member.
template <class T>
concept StateRecord =
    std::is_trivially_copyable_v<T> && std::has_unique_object_representations_v<T>;

inline constexpr std::int64_t kChecksumBytes = 8;

// What is wrong with a part of a saved state. Callers put the place before it, from the inside out.
inline Status BadState(std::string_view field, std::string_view what) {
  return Status::Invalid(StrCat(field, ": ", what));
}
Status InState(std::string_view place, Status status);

// Texts stand in messages: one line, no control characters, at most 64 KiB.
Status CheckText(std::string_view field, std::string_view text);

// Counts bytes and, with a sink, writes them. The first error stays; nothing is written after it.
class StateWriter {
 public:
  StateWriter() = default;  // only counts
  explicit StateWriter(ByteSink& sink) : sink_(&sink) {}

  template <StateRecord Record>
  void Put(const Record& record) {
    Bytes(&record, sizeof record);
  }
  void Bytes(const void* bytes, std::size_t count);
  void Text(std::string_view text);
  // What is to be written cannot be had.
  void Fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }

  // Bytes of the section.
  std::int64_t bytes() const { return bytes_; }
  void StartSection(std::uint64_t seed);
  // Writes and returns the section's checksum.
  std::uint64_t EndSection();
  // Hands the last bytes on; the first error of all.
  Status Finish();

 private:
  void Pass(std::span<const std::byte> bytes);
  void Flush();

  ByteSink* sink_ = nullptr;
  std::vector<std::byte> pending_;  // small pieces go to the sink together
  Status status_;
  Checksum checksum_{0};
  std::int64_t bytes_ = 0;
};

// Never reads past the section, nor takes memory for bytes that are not there.
class StateReader {
 public:
  // The source outlives the reader, and is read by nobody else meanwhile.
  explicit StateReader(ByteSource& source) : source_(source) {}

  template <StateRecord Record>
  Status Get(Record* record) {
    return Bytes(record, sizeof *record);
  }
  Status Bytes(void* to, std::size_t count);
  Status Text(std::string_view field, std::string* text);

  // The format of what is read.
  void set_version(int version) { version_ = version; }
  int version() const { return version_; }

  // The next `bytes` bytes and the checksum behind them. Precondition: the source has them.
  void StartSection(std::int64_t bytes, std::uint64_t seed);
  // `bytes` more belong to the section. Precondition as above.
  void Extend(std::int64_t bytes) { left_ += bytes; }
  // Bytes of the section that were not read yet.
  std::int64_t left() const { return left_; }
  // Fails, naming `field`, unless that many are left for `count` items of `item_bytes` each.
  Status NeedLeft(std::string_view field, std::uint64_t count, std::uint64_t item_bytes) const;
  // Reads what is left, then the checksum, and compares; `*checksum` (may be null) is the
  // section's.
  Status EndSection(std::uint64_t* checksum = nullptr);

 private:
  Status Fetch(std::span<std::byte> to);

  ByteSource& source_;
  std::vector<std::byte> ahead_;  // read from the source in larger pieces than asked for
  std::size_t ahead_used_ = 0;
  Checksum checksum_{0};
  std::int64_t left_ = 0;
  int version_ = 0;
};

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_STATE_STREAM_H_

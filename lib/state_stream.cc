#include "lib/state_stream.h"

#include <algorithm>
#include <utility>

namespace kvsieve {
namespace {

constexpr std::size_t kMaxTextBytes = std::size_t{64} << 10;
constexpr std::size_t kPieceBytes = std::size_t{64} << 10;

}  // namespace

Status InState(std::string_view place, Status status) {
  const bool of_content = !status.ok() && (status.error().code == ErrorCode::kInvalidArgument ||
                                           status.error().code == ErrorCode::kUnsupported);
  if (!of_content) return status;
  return Status(status.error().code, StrCat(place, ": ", status.message()));
}

Status CheckText(std::string_view field, std::string_view text) {
  if (text.size() > kMaxTextBytes) {
    return BadState(field, StrCat(text.size(), " bytes, the limit is ", kMaxTextBytes));
  }
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x20 || byte == 0x7F) return BadState(field, StrCat("byte ", i, " is no text"));
  }
  return Status::Ok();
}

void StateWriter::StartSection(std::uint64_t seed) {
  checksum_ = Checksum(seed);
  bytes_ = 0;
}

void StateWriter::Bytes(const void* bytes, std::size_t count) {
  bytes_ += static_cast<std::int64_t>(count);
  if (sink_ == nullptr || count == 0 || !status_.ok()) return;
  const std::span piece(static_cast<const std::byte*>(bytes), count);
  checksum_.Add(piece);
  Pass(piece);
}

void StateWriter::Pass(std::span<const std::byte> bytes) {
  if (bytes.size() >= kPieceBytes) {
    Flush();
    if (status_.ok()) status_ = sink_->Write(bytes);
    return;
  }
  pending_.insert(pending_.end(), bytes.begin(), bytes.end());
  if (pending_.size() >= kPieceBytes) Flush();
}

void StateWriter::Flush() {
  if (status_.ok() && !pending_.empty()) status_ = sink_->Write(pending_);
  pending_.clear();
}

void StateWriter::Text(std::string_view text) {
  Put(static_cast<std::uint32_t>(text.size()));
  Bytes(text.data(), text.size());
}

std::uint64_t StateWriter::EndSection() {
  const std::uint64_t sum = checksum_.value();
  if (sink_ != nullptr && status_.ok()) Pass(std::as_bytes(std::span(&sum, 1)));
  return sum;
}

Status StateWriter::Finish() {
  if (sink_ != nullptr) Flush();
  return std::move(status_);
}

void StateReader::StartSection(std::int64_t bytes, std::uint64_t seed) {
  checksum_ = Checksum(seed);
  left_ = bytes;
}

// Small pieces come out of a larger one.
Status StateReader::Fetch(std::span<std::byte> to) {
  const std::size_t reachable =
      ahead_.size() - ahead_used_ + static_cast<std::size_t>(source_.bytes_left());
  if (to.size() > reachable) {
    return Status(ErrorCode::kIo, "the source of the saved state ended before its time");
  }
  while (!to.empty()) {
    if (ahead_used_ == ahead_.size()) {
      if (to.size() >= kPieceBytes) return source_.Read(to);
      ahead_used_ = 0;
      ahead_.resize(std::min(kPieceBytes, static_cast<std::size_t>(source_.bytes_left())));
      Status read = source_.Read(ahead_);
      if (!read.ok()) {
        ahead_.clear();
        return read;
      }
    }
    const std::size_t count = std::min(to.size(), ahead_.size() - ahead_used_);
    std::copy_n(ahead_.begin() + static_cast<std::ptrdiff_t>(ahead_used_), count, to.begin());
    ahead_used_ += count;
    to = to.subspan(count);
  }
  return Status::Ok();
}

Status StateReader::Bytes(void* to, std::size_t count) {
  KVS_RETURN_IF_ERROR(NeedLeft("length", count, 1));
  const std::span piece(static_cast<std::byte*>(to), count);
  KVS_RETURN_IF_ERROR(Fetch(piece));
  checksum_.Add(piece);
  left_ -= static_cast<std::int64_t>(count);
  return Status::Ok();
}

Status StateReader::Text(std::string_view field, std::string* text) {
  std::uint32_t size = 0;
  KVS_RETURN_IF_ERROR(Get(&size));
  KVS_RETURN_IF_ERROR(NeedLeft(field, size, 1));
  text->resize(size);
  KVS_RETURN_IF_ERROR(Bytes(text->data(), size));
  return CheckText(field, *text);
}

Status StateReader::NeedLeft(std::string_view field, std::uint64_t count,
                             std::uint64_t item_bytes) const {
  const auto left = static_cast<std::uint64_t>(left_);
  if (count == 0 || item_bytes == 0 || count <= left / item_bytes) return Status::Ok();
  return BadState(field, StrCat(count, " x ", item_bytes, " bytes where ", left_, " are left"));
}

Status StateReader::EndSection(std::uint64_t* checksum) {
  std::vector<std::byte> rest;
  while (left_ > 0) {
    rest.resize(std::min(kPieceBytes, static_cast<std::size_t>(left_)));
    KVS_RETURN_IF_ERROR(Bytes(rest.data(), rest.size()));
  }
  std::uint64_t stored = 0;
  KVS_RETURN_IF_ERROR(Fetch(std::as_writable_bytes(std::span(&stored, 1))));
  const std::uint64_t sum = checksum_.value();
  if (checksum != nullptr) *checksum = sum;
  if (sum == stored) return Status::Ok();
  return BadState("checksum", "its bytes were damaged since they were saved");
}

}  // namespace kvsieve

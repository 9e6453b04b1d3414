// Rows encoded and decoded without a cache, with arguments from bytes.
#ifndef KVSIEVE_TESTS_FUZZ_CAPI_CODEC_CALLS_H_
#define KVSIEVE_TESTS_FUZZ_CAPI_CODEC_CALLS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/fuzz/capi_callbacks.h"
#include "tests/fuzz/capi_given.h"

namespace kvsieve::fuzz {

inline constexpr const char* kSpecs[] = {
    "none | kv=f16",
    "none | kv=int8 | tail=4, exact_sinks=2",
    "snapkv(budget=24,window=4,sinks=1) | kv=int4",
    "recency(budget=24) | k=center+turbo4, v=turbo3 | schedule=every(5)",
    "external(budget=20,sinks=1) | kv=int8",
    "random(budget=90%) | kv=int8 | cold(30%)={kv=int4} | schedule=per_chunk",
    "none | k=int8, v=int4",
    "none | kv=channel(bits=2,group=16) | tail=16",
    "no such stage",
    "",
};

class CodecCalls {
 public:
  explicit CodecCalls(Bytes& bytes) : bytes_(bytes) {}
  CodecCalls(const CodecCalls&) = delete;
  ~CodecCalls() { kvs_codec_destroy(codec_); }

  kvs_result Call() {
    if (bytes_.OneOf(3)) return MakeCodec();
    return bytes_.OneOf(2) ? Encode() : Decode();
  }

 private:
  kvs_result MakeCodec() {
    kvs_codec_destroy(codec_);
    codec_ = nullptr;
    codec_dim_ = bytes_.IntOr(32);
    Given<kvs_codec_args> args(bytes_, {0, bytes_.OrNull(kSpecs[bytes_.Next() % std::size(kSpecs)]),
                                        bytes_.Next() % 3, codec_dim_});
    const kvs_result result = kvs_codec_create(args.get(), bytes_.OrNull(&codec_));
    Require((result == KVS_OK) == (codec_ != nullptr), "a codec that failed");
    return result;
  }

  struct Encoded {
    std::int64_t bytes = 0;
    std::int64_t stats = 0;
  };
  // What `n` rows take, or another number.
  Encoded SizeOf(std::int64_t n) {
    Encoded size;
    Check(kvs_encoded_size(codec_, n, &size.bytes, &size.stats));
    return {bytes_.Or(size.bytes), bytes_.Or(size.stats)};
  }
  static std::size_t Held(std::int64_t count) {
    return count > 0 && count <= (1 << 20) ? static_cast<std::size_t>(count) : 0;
  }

  kvs_result Encode() {
    const std::int64_t n = bytes_.Number();
    const Encoded size = SizeOf(n);
    std::vector<float> stats(Held(size.stats));
    std::vector<std::uint8_t> encoded(Held(size.bytes));
    std::int64_t saturated = 0;
    Given<kvs_encode_args> args(
        bytes_, {0, n, GivenRows::Make(bytes_, 1, n, codec_dim_), bytes_.OrNull(stats.data()),
                 size.stats, bytes_.OrNull(encoded.data()), size.bytes, &saturated});
    return kvs_encode_rows(codec_, args.get());
  }

  kvs_result Decode() {
    const std::int64_t n = bytes_.Number();
    const Encoded size = SizeOf(n);
    const std::vector<float> stats(Held(size.stats));
    const std::vector<std::uint8_t> encoded(Held(size.bytes), bytes_.Next());
    const bool fits = n >= 0 && n <= 64 && codec_dim_ > 0 && codec_dim_ <= 4096;
    std::vector<float> rows(fits ? Held(n * codec_dim_) : 0);
    Given<kvs_decode_args> args(bytes_, {0, n, bytes_.OrNull(stats.data()), size.stats,
                                         bytes_.OrNull(encoded.data()), size.bytes, rows.data()});
    return kvs_decode_rows(codec_, args.get());
  }

  Bytes& bytes_;
  kvs_codec* codec_ = nullptr;
  std::int32_t codec_dim_ = 32;
};

}  // namespace kvsieve::fuzz

#endif  // KVSIEVE_TESTS_FUZZ_CAPI_CODEC_CALLS_H_

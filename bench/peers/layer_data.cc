#include "bench/peers/layer_data.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "kvsieve/allocator.h"
#include "kvsieve/float16.h"

namespace kvsieve::bench {
namespace {

// The finalizer of SplitMix64 (Steele, Lea, Flood 2014).
std::uint64_t Mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

// Mean 0, variance 1: the sum of four uniform numbers, which is near enough to a normal one.
float Normal(std::uint64_t random) {
  constexpr float kUnit = 1.0F / 65536.0F;
  float sum = -2.0F + 2.0F * kUnit;  // the mean of each is 1/2 less half a step
  for (int i = 0; i < 4; ++i) sum += static_cast<float>((random >> (16 * i)) & 0xFFFFU) * kUnit;
  return sum * 1.7320508F;
}

void FillRows(std::int64_t rows, std::uint64_t seed, HugeBuffer* buffer) {
  auto* to = reinterpret_cast<F16*>(buffer->data());
  const auto count = static_cast<std::uint64_t>(rows * kKvHeads * kDim);
  for (std::uint64_t i = 0; i < count; ++i) to[i] = ToF16(Normal(Mix((seed << 40) + i)));
}

std::size_t RowsBytes(std::int64_t rows) {
  return static_cast<std::size_t>(rows * kKvHeads * kDim) * sizeof(F16);
}

}  // namespace

void Fail(std::string_view what) {
  std::fprintf(stderr, "attend_peer: %.*s\n", static_cast<int>(what.size()), what.data());
  std::exit(1);
}

HugeBuffer::HugeBuffer(std::size_t bytes)
    : bytes_(bytes), data_(static_cast<std::byte*>(DefaultAllocator().Allocate(bytes))) {
  if (data_ == nullptr) Fail("out of memory");
}

HugeBuffer::~HugeBuffer() {
  if (data_ != nullptr) DefaultAllocator().Deallocate(data_, bytes_);
}

HugeBuffer::HugeBuffer(HugeBuffer&& other) noexcept
    : bytes_(other.bytes_), data_(std::exchange(other.data_, nullptr)) {}

LayerData::LayerData(std::int64_t rows)
    : rows_(rows), keys_(RowsBytes(rows)), values_(RowsBytes(rows)), queries_(kQueryHeads * kDim) {
  FillRows(rows, 1, &keys_);
  FillRows(rows, 2, &values_);
  constexpr int kFound = 4;
  std::uint64_t found = 0;
  for (int head = 0; head < kQueryHeads; ++head) {
    for (int i = 0; i < kFound; ++i) {
      const auto row = static_cast<std::int64_t>(Mix(found++) % static_cast<std::uint64_t>(rows));
      const F16* key = keys() + (head / kGroup * rows + row) * kDim;
      for (int d = 0; d < kDim; ++d) queries_[head * kDim + d] += 1.2F * ToFloat(key[d]);
    }
  }
}

}  // namespace kvsieve::bench

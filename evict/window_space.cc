#include "evict/window_space.h"

#include <algorithm>
#include <cstddef>
#include <new>
#include <utility>

#include "evict/window_kernels.h"
#include "kvsieve/str_cat.h"

namespace kvsieve::evict {
namespace {

constexpr std::size_t kAlignFloats = 16;  // a cache line

// Hands out consecutive pieces; with a null base it only counts, so that sizes and addresses have
// one source.
class Carver {
 public:
  explicit Carver(float* base) : base_(base) {}

  template <class T = float>
  T* Take(std::int64_t count) {
    static_assert(sizeof(T) == sizeof(float));
    T* piece = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + used_);
    used_ += (static_cast<std::size_t>(count) + kAlignFloats - 1) / kAlignFloats * kAlignFloats;
    return piece;
  }
  std::size_t used() const { return used_; }

 private:
  float* base_;
  std::size_t used_ = 0;
};

void CarveSpace(const WindowShape& shape, Carver& carver, WindowSpace* space) {
  const std::int64_t queries = PaddedQueries(shape.queries);
  const std::int64_t stride = QueryStride(shape.queries);
  const std::int64_t blocks = (shape.max_rows + kBlockRows - 1) / kBlockRows;
  const std::int64_t value_stride = ValueStride(shape.value_dim);
  const std::int64_t block_weights = queries * kBlockRows;
  const std::int64_t row_dim = std::max(shape.key_dim, shape.value_dim);
  const bool values = shape.value_dim > 0;

  space->panel = carver.Take(row_dim * kBlockRows);
  space->staging = carver.Take(row_dim * kBlockRows);
  space->value_rows = carver.Take(value_stride * kBlockRows);
  space->probabilities = carver.Take(values ? block_weights : 0);
  space->distances = carver.Take(values ? block_weights : 0);
  space->factors = carver.Take(stride);
  space->reduced = carver.Take(std::int64_t{shape.figures} * kBlockRows);
  space->visible_rows = carver.Take<std::int32_t>(stride);
  space->visible = carver.Take<std::int32_t>(stride);
  space->heads.resize(static_cast<std::size_t>(shape.heads_at_once));
  for (HeadSpace& head : space->heads) {
    head.queries = carver.Take(queries * shape.key_dim);
    head.weights = carver.Take((shape.stored ? blocks : 1) * block_weights);
    head.tops = carver.Take(blocks * stride);
    head.sums = carver.Take(blocks * stride);
    head.maximum = carver.Take(stride);
    head.inverse_sum = carver.Take(stride);
    head.outputs = carver.Take(queries * value_stride);
    head.diagonals = carver.Take(shape.diagonals ? blocks * kBlockRows + queries : 0);
  }
}

std::size_t SpaceFloats(const WindowShape& shape) {
  Carver counter(nullptr);
  WindowSpace unused;
  CarveSpace(shape, counter, &unused);
  return counter.used() + kAlignFloats;  // room to align the first piece
}

}  // namespace

std::int64_t SpaceBytes(const WindowShape& shape) {
  return static_cast<std::int64_t>(SpaceFloats(shape) * sizeof(float));
}

void FitScratch(std::int64_t limit_bytes, int workers, WindowShape* shape) {
  shape->heads_at_once = 1;
  shape->stored = true;
  if (limit_bytes <= 0) return;
  if (SpaceBytes(*shape) * workers > limit_bytes) {
    shape->stored = false;
    return;
  }
  for (; shape->heads_at_once < shape->group; ++shape->heads_at_once) {
    WindowShape more = *shape;
    ++more.heads_at_once;
    if (SpaceBytes(more) * workers > limit_bytes) return;
  }
}

Result<WindowSpaces> WindowSpaces::Create(const WindowShape& shape, int workers) {
  WindowSpaces spaces;
  const std::size_t floats = SpaceFloats(shape);
  for (int i = 0; i < workers; ++i) {
    // Owned before the vector may throw.
    std::unique_ptr<float[]> memory(new (std::nothrow) float[floats]);
    void* base = memory.get();
    if (base == nullptr) {
      return Status(ErrorCode::kOutOfMemory,
                    StrCat("no memory for ", floats * sizeof(float), " bytes of scoring scratch"));
    }
    spaces.memory_.push_back(std::move(memory));
    std::size_t bytes = floats * sizeof(float);
    std::align(kAlignFloats * sizeof(float), bytes - kAlignFloats * sizeof(float), base, bytes);
    Carver carver(static_cast<float*>(base));
    spaces.spaces_.emplace_back();
    CarveSpace(shape, carver, &spaces.spaces_.back());
  }
  return spaces;
}

}  // namespace kvsieve::evict

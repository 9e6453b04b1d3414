// Rows of one head in blocks of at most kBlockRows, read in place where they lie row-major.
#ifndef KVSIEVE_EVICT_ROW_BLOCKS_H_
#define KVSIEVE_EVICT_ROW_BLOCKS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "evict/window_kernels.h"
#include "kvsieve/types.h"

namespace kvsieve::evict {

// Rows [first, first + count) in place, or read into `staging` f32 [kBlockRows, dim].
inline RowSource::RowMajor LocateRows(const RowSource& source, RowIndex first, int count,
                                      float* staging) {
  if (const auto view = source.TryView()) {
    const std::int64_t bytes =
        first * view->row_stride * static_cast<std::int64_t>(ElementBytes(view->type));
    return {static_cast<const std::byte*>(view->data) + bytes, view->type, view->row_stride};
  }
  source.ReadRows(first, count, staging);
  return {staging, ElementType::kF32, source.dim()};
}

// Memory for one block of rows of at most `dim` elements, and the way into it.
class PanelSpace {
 public:
  static std::int64_t Floats(int dim) { return std::int64_t{2} * dim * kBlockRows; }
  // space [Floats(dim)]
  PanelSpace(float* space, int dim) : panel_(space), staging_(space + Floats(dim) / 2) {}

  // The rows as f32 [source.dim(), kBlockRows], until the next call.
  const float* Load(const RowSource& source, RowIndex first, int count) {
    LoadPanel(LocateRows(source, first, count, staging_), source.dim(), count, panel_);
    return panel_;
  }

 private:
  float* panel_;
  float* staging_;
};

// Calls body(first, count) for the blocks of rows [begin, end), ascending.
template <class Body>
void ForEachBlock(RowIndex begin, RowIndex end, Body&& body) {
  for (RowIndex first = begin; first < end; first += kBlockRows) {
    body(first, static_cast<int>(std::min<RowIndex>(kBlockRows, end - first)));
  }
}

}  // namespace kvsieve::evict

#endif  // KVSIEVE_EVICT_ROW_BLOCKS_H_

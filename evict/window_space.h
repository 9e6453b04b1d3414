// The temporary memory of window scoring: how much of it, and where things lie in it.
#ifndef KVSIEVE_EVICT_WINDOW_SPACE_H_
#define KVSIEVE_EVICT_WINDOW_SPACE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "kvsieve/result.h"

namespace kvsieve::evict {

struct WindowShape {
  int queries = 0;  // window rows after clipping
  int key_dim = 0;
  int value_dim = 0;       // 0: values are not read
  int group = 0;           // query heads of a KV head
  int figures = 1;         // per row
  bool diagonals = false;  // of attention are followed
  std::int64_t max_rows = 0;
  // Chosen by FitScratch:
  int heads_at_once = 1;  // query heads that share one pass over K
  bool stored = true;     // weights of all rows are kept; else computed again when needed
};

// As many query heads at once as `limit_bytes` over all workers allows; one when it is 0. When even
// one head's weights do not fit, they are not stored; what is left (1/32 of it and a few blocks) is
// used whatever the limit.
void FitScratch(std::int64_t limit_bytes, int workers, WindowShape* shape);

// Bytes of one worker.
std::int64_t SpaceBytes(const WindowShape& shape);

// f32 unless noted; sizes as in window_kernels.h, blocks = those of max_rows.
struct HeadSpace {
  float* queries;      // [PaddedQueries, key_dim]
  float* weights;      // [blocks or 1, PaddedQueries, kBlockRows]
  float* tops;         // [blocks, QueryStride]
  float* sums;         // [blocks, QueryStride]
  float* maximum;      // [QueryStride]
  float* inverse_sum;  // [QueryStride]
  float* outputs;      // [PaddedQueries, ValueStride]
  float* diagonals;    // [blocks * kBlockRows + PaddedQueries], or nothing
};
struct WindowSpace {
  float* panel;                  // [max(key_dim, value_dim), kBlockRows]
  float* staging;                // [kBlockRows, max(key_dim, value_dim)]
  float* value_rows;             // [kBlockRows, ValueStride]
  float* probabilities;          // [PaddedQueries, kBlockRows]
  float* distances;              // [PaddedQueries, kBlockRows]
  float* factors;                // [QueryStride]
  float* reduced;                // [figures, kBlockRows]
  std::int32_t* visible_rows;    // [QueryStride], of the head
  std::int32_t* visible;         // [QueryStride], of one block
  std::vector<HeadSpace> heads;  // [heads_at_once]
};

// One WindowSpace per worker. Memory of workers that get no task is never touched.
class WindowSpaces {
 public:
  static Result<WindowSpaces> Create(const WindowShape& shape, int workers);
  const WindowSpace& worker(int index) const { return spaces_[index]; }

 private:
  std::vector<WindowSpace> spaces_;
  std::vector<std::unique_ptr<float[]>> memory_;
};

}  // namespace kvsieve::evict

#endif  // KVSIEVE_EVICT_WINDOW_SPACE_H_

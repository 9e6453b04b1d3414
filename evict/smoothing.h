// Smoothing of scores along the sequence: neighbours of an important row are kept with it.
#ifndef KVSIEVE_EVICT_SMOOTHING_H_
#define KVSIEVE_EVICT_SMOOTHING_H_

#include <cstdint>
#include <span>
#include <string>

#include "kvsieve/spec_args.h"

namespace kvsieve::evict {

enum class PoolKind : std::uint8_t { kNone, kMax, kAverage };

// What stands beyond the first and last row.
enum class PoolPad : std::uint8_t {
  kExclude,  // nothing: the edge pools over fewer rows
  kZero,     // zeros, which count: a constant averaged by 5 becomes 0.6, 0.8, 1, ... (SnapKV)
};

// A centred window of `width` rows, odd, stride 1.
struct Pool {
  PoolKind kind = PoolKind::kMax;
  int width = 7;
  PoolPad pad = PoolPad::kExclude;

  std::string Canonical() const;  // "pool=max:7,pool_pad=exclude"
};

inline constexpr int kMaxPoolWidth = 1023;

// Reads pool= and pool_pad=; mistakes go to `args`.
void ReadPool(ArgReader& args, Pool* pool);

// smoothed[i] from raw[i - width/2 .. i + width/2]; nothing beyond the spans is looked at. The
// spans have one size and do not overlap. A NaN spreads over its window when averaged.
void Smooth(const Pool& pool, std::span<const float> raw, std::span<float> smoothed);

// out[i] = the largest of values[i - reach .. i - 1], 0 where there is none; values are not
// negative. The spans have one size and do not overlap.
void TrailingMax(std::span<const float> values, std::int64_t reach, std::span<float> out);

}  // namespace kvsieve::evict

#endif  // KVSIEVE_EVICT_SMOOTHING_H_

// What storing rows in a tier costs them, measured on some of the rows themselves.
#ifndef KVSIEVE_LIB_TIER_ERRORS_H_
#define KVSIEVE_LIB_TIER_ERRORS_H_

#include "kvsieve/evict.h"
#include "kvsieve/pipeline.h"
#include "kvsieve/result.h"

namespace kvsieve {

// Sums over the sampled rows: of |k - k'|^2 over |k - mean k|^2, and |v - v'|^2 over |v|^2.
struct TierErrors {
  float key = 0;
  float value = 0;
};

// Rows [first, end) of a head in one store, judged by up to 64 of them, in runs that the store
// encodes together, evenly spread, without those that are far longer than the others
// (LongestTypical). 0 without rows.
Result<TierErrors> MeasureErrors(const LayerStore& store, const HeadObservation& head,
                                 RowIndex first, RowIndex end);

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_TIER_ERRORS_H_

// Which rows a plan cannot put into a tier, since its codecs end before their elements do: f16 at
// 65504, scales in f16 further out.
#ifndef KVSIEVE_LIB_REFUSED_ROWS_H_
#define KVSIEVE_LIB_REFUSED_ROWS_H_

#include <vector>

#include "kvsieve/evict.h"
#include "kvsieve/pipeline.h"
#include "kvsieve/types.h"

namespace kvsieve {

// Those of rows [first, end) of a head that a store cannot hold beside the others, in order. Rows
// are read only where one of them may be as long as that.
std::vector<RowIndex> RefusedRows(const LayerStore& store, const HeadObservation& head,
                                  RowIndex first, RowIndex end);

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_REFUSED_ROWS_H_

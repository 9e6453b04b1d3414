// What encoding did to keys and to values, each on its own.
#ifndef KVSIEVE_LIB_EVAL_ROW_ERRORS_H_
#define KVSIEVE_LIB_EVAL_ROW_ERRORS_H_

#include "kvsieve/cache.h"
#include "kvsieve/eval/compare.h"
#include "kvsieve/eval/trace.h"
#include "kvsieve/parallel.h"
#include "kvsieve/result.h"

namespace kvsieve::eval {

// Fills the row errors of `result` and its layers from a cache that holds rows of the trace's
// prompt, and nothing else. The same bits for any number of workers.
Status MeasureRowErrors(const Trace& trace, const Cache& cache, Parallel& parallel,
                        PipelineResult* result);

}  // namespace kvsieve::eval

#endif  // KVSIEVE_LIB_EVAL_ROW_ERRORS_H_

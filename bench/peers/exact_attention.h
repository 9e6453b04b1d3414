// Attention in f64 over decoded rows, and how far a contender that rounds may be from it.
#ifndef KVSIEVE_BENCH_PEERS_EXACT_ATTENTION_H_
#define KVSIEVE_BENCH_PEERS_EXACT_ATTENTION_H_

#include <cstdint>
#include <vector>

#include "bench/peers/layer_data.h"

namespace kvsieve::bench {

// Rows of one KV head as they decode, f32 [rows, kDim].
struct HeadRows {
  std::int64_t rows() const { return static_cast<std::int64_t>(keys.size()) / kDim; }
  std::vector<float> keys;
  std::vector<float> values;
};

// What a contender rounds beyond f32. All as standard deviations of errors with mean 0; a number
// that is rounded to steps of s is off by s / sqrt(12).
struct Rounding {
  double query_step = 0;      // of a query's element, relative to the largest of its block
  int query_block = kDim;     // elements of such a block
  double query_relative = 0;  // of a query's block as a whole, relative to itself
  double code = 0;            // of a decoded element, relative to the root mean square of its row
  double weight = 0;          // of a row's weight, relative to the largest of 64 rows
  bool f16_sums = false;      // weighted values are summed in f16, one row after the other
};

// Distance of one query head's output from the exact one and what rounding may explain, both
// relative to the norm of the exact output.
struct Deviation {
  double error = 0;
  double tolerance = 0;
};

// query, out: f32 [kDim].
Deviation Deviate(const HeadRows& rows, const float* query, const Rounding& rounding,
                  const float* out);

}  // namespace kvsieve::bench

#endif  // KVSIEVE_BENCH_PEERS_EXACT_ATTENTION_H_

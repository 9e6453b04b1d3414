// What the scorers that look at the observation window share: softmax of the last queries over all
// visible keys, then queries -> query group -> smoothing. (The scope, over heads and layers, is the
// evictor's.)
#ifndef KVSIEVE_EVICT_WINDOW_SCORES_H_
#define KVSIEVE_EVICT_WINDOW_SCORES_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "evict/scorers.h"
#include "evict/smoothing.h"
#include "evict/window_kernels.h"
#include "kvsieve/evict.h"

namespace kvsieve::evict {

// What one window query says of one row; p is the row's softmax weight, o the attention output.
enum class RowWeight : std::uint8_t {
  kAttention,           // p
  kOutputPerturbation,  // p / (1 - p) * |o - v|: how far o moves when the row goes (DropKV)
};

inline constexpr int kMaxWindow = 65536;

// What looks at the rows.
enum class QuerySource : std::uint8_t {
  kObserved,  // the last true queries
  kKeys,      // each head's own last keys, for callers that have no queries
};

struct WindowOptions {
  bool keys_as_queries = false;
  int window = 32;
  Reduce queries = Reduce::kMean;
  Reduce group = Reduce::kMean;
  Pool pool;
  Scope scope = Scope::kKvHead;
  bool causal = true;        // row visible iff its position <= the query's
  bool pool_window = false;  // smooth over the window's rows too: they can be evicted

  // "window=32,queries=mean,..."; group only with true queries
  std::string Canonical() const;
};

// Reads the keys of WindowOptions; `selection` decides pool_window.
WindowOptions ReadWindowOptions(ArgReader& args, const Selection& selection,
                                QuerySource source = QuerySource::kObserved);
void ReadReduce(ArgReader& args, std::string_view key, Reduce* reduce);
std::string_view ReduceName(Reduce reduce);

// Which rows of the observed queries are those of the last `window` positions, clipped to the
// longest head. Error: names the positions whose queries were not observed.
Result<std::vector<int>> FindWindowQueries(int window, const Observation& observation);

// Fills raw and smoothed of all heads. q.K in f32, computed once unless scratch->limit_bytes is
// too small for the logits of one query head; then twice, or three times when values are read.
// Rows of a protected window: smoothed = raw.
// Reads K once for as many query heads of a group as the scratch holds logits for: one by default.
// The result depends on neither scratch nor workers.
//
// Error of a weight p against exact arithmetic: relative 4e-6 + (68 + blocks) * 2^-24 + 2 * e,
// where blocks = rows / 64 and e is the error of a logit, at most (key_dim + 2) * 2^-24 * scale *
// sum |q_d k_d|. The odds p / (1 - p) carry 1 / (1 - p) times that.
Status ScoreWindow(const WindowOptions& options, RowWeight weight, const Observation& observation,
                   Parallel& parallel, ScoreScratch* scratch, Scores* scores);

}  // namespace kvsieve::evict

#endif  // KVSIEVE_EVICT_WINDOW_SCORES_H_

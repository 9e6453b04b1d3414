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
#include "evict/window_pass.h"
#include "kvsieve/evict.h"

namespace kvsieve::evict {

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

// Fills raw and smoothed of all heads (evict/window_pass.h). Rows of a protected window:
// smoothed = raw.
Status ScoreWindow(const WindowOptions& options, RowWeight weight, const Observation& observation,
                   Parallel& parallel, ScoreScratch* scratch, Scores* scores);

}  // namespace kvsieve::evict

#endif  // KVSIEVE_EVICT_WINDOW_SCORES_H_

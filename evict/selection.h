// The selection keys that every evict stage takes: budget, protection, order of rows. Holds what
// the spec says; evict/protection.h applies it to one head.
#ifndef KVSIEVE_EVICT_SELECTION_H_
#define KVSIEVE_EVICT_SELECTION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "evict/budget.h"
#include "evict/selector.h"
#include "evict/split.h"
#include "evict/top_k.h"
#include "kvsieve/result.h"
#include "kvsieve/spec_args.h"
#include "kvsieve/types.h"

namespace kvsieve::evict {

// Positions [first, last], both included.
struct ProtectedPositions {
  TokenPos first = 0;
  TokenPos last = 0;
};

// What happens when a head's protected rows alone pass the budget.
enum class OverBudget : std::uint8_t {
  kProtected,  // all protected rows stay
  kBudget,     // the budget holds: sinks stay, then the newest of the other protected rows
};

struct Selection {
  Budget budget;
  std::int64_t sinks = 4;
  Recent recent;
  std::vector<ProtectedPositions> protect;
  bool protect_window = true;
  std::int64_t min_tokens = 0;
  OverBudget over_budget = OverBudget::kProtected;
  Ties ties = Ties::kLowPosition;
  Split split;
  SelectRule select;

  std::string Canonical() const;  // "budget=512,split=uniform,sinks=4,..."
  // Budget, split and select in words.
  std::string Explanation() const;
};

// Reads the selection keys of `call` through `args`; mistakes go to `args`.
void ReadSelection(ArgReader& args, Selection* selection);

// A constant row budget must hold sinks and the larger of window and recent, unless the spec says
// what else should happen (over_budget).
Status CheckBudget(const SpecCall& call, const Selection& selection, int window);

// The keys of Selection as `kvsieve list` shows them.
#define KVS_EVICT_SELECTION_OPTIONS                                                      \
  "budget=<rows>|<percent>|<size>|<factor>x|auto rounding=up|kvpress "                   \
  "split=uniform|pyramid(beta=20)|"                                                      \
  "adaptive(floor=0.2,scope=layer|model) sinks=4 recent=0|n|p%|budget/8 protect=[a..b] " \
  "protect_window=true|false min_tokens=0 over_budget=protected|budget ties=low|high "   \
  "select=top_k|chunk:n|block:n|threshold:x|top_p:x"

}  // namespace kvsieve::evict

#endif  // KVSIEVE_EVICT_SELECTION_H_

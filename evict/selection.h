// The selection keys that every evict stage takes: budget, protection, order of rows. Holds what
// the spec says; evict/protection.h applies it to one head.
#ifndef KVSIEVE_EVICT_SELECTION_H_
#define KVSIEVE_EVICT_SELECTION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "evict/top_k.h"
#include "kvsieve/result.h"
#include "kvsieve/spec_args.h"
#include "kvsieve/types.h"

namespace kvsieve::evict {

// Rows to keep per KV head, protected rows included.
struct Budget {
  std::int64_t rows = 0;       // when share is empty
  std::optional<Ratio> share;  // of the head's rows, rounded up

  std::int64_t RowsOf(std::int64_t tokens) const { return share ? share->CeilOf(tokens) : rows; }
  std::string ToString() const;  // "512", "12.5%"
};

// The last rows of a head that always stay: a number, or an eighth of the budget.
struct Recent {
  bool eighth_of_budget = false;
  std::int64_t rows = 0;

  // budget / 8 rounds down but is at least 1, as in SnapKV-D, where it comes from.
  std::int64_t RowsOf(std::int64_t budget) const;
};

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

  std::string Canonical() const;  // "budget=512,split=uniform,sinks=4,..."
};

// Reads the selection keys of `call` through `args`; mistakes go to `args`. What the grammar knows
// but this version cannot do goes to *deferred, so that a mistake elsewhere is reported first.
void ReadSelection(ArgReader& args, Selection* selection, Status* deferred);

// A constant row budget must hold sinks and the larger of window and recent, unless the spec says
// what else should happen (over_budget).
Status CheckBudget(const SpecCall& call, const Selection& selection, int window);

// The keys of Selection as `kvsieve list` shows them.
#define KVS_EVICT_SELECTION_OPTIONS                                                    \
  "budget=<rows>|<percent> split=uniform sinks=4 recent=0|n|budget/8 protect=[a..b] "  \
  "protect_window=true|false min_tokens=0 over_budget=protected|budget ties=low|high " \
  "select=top_k"

}  // namespace kvsieve::evict

#endif  // KVSIEVE_EVICT_SELECTION_H_

// How many rows of a head stay: the values of budget= and recent=.
#ifndef KVSIEVE_EVICT_BUDGET_H_
#define KVSIEVE_EVICT_BUDGET_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "kvsieve/evict.h"
#include "kvsieve/spec_args.h"
#include "kvsieve/types.h"

namespace kvsieve::evict {

inline constexpr std::int64_t kMaxRows = INT32_MAX;

enum class BudgetKind : std::uint8_t {
  kRows,   // 512
  kShare,  // 25%: of the head's rows, rounded up
  kAuto,   // a quarter of the rows, at least kAutoLeast and at most kAutoMost
  kBytes,  // 64MiB or 8x: the owner of the stores finds the rows
};

inline constexpr std::int64_t kAutoLeast = 1024;
inline constexpr std::int64_t kAutoMost = 4096;

// SharpInference's automatic budget: a quarter of the context that an engine is set up for, within
// the same bounds, and never more than the context.
std::int64_t AutoRowsOfContext(std::int64_t max_tokens);

// How a percentage becomes rows.
enum class Rounding : std::uint8_t {
  kUp,       // ceil(tokens * share), exact
  kKvpress,  // max(1, int(tokens * (1 - ratio))) in doubles, ratio = 1 - share: can lose a row
};

std::string_view RoundingName(Rounding rounding);

std::string PercentText(const Ratio& share);  // "12.5%", for ParsePercent

// Rows to keep per KV head, protected rows included.
struct Budget {
  BudgetKind kind = BudgetKind::kRows;
  std::int64_t rows = 0;
  Ratio share;
  Rounding rounding = Rounding::kUp;  // of the share
  ByteBudget bytes;

  // Precondition: kind is not kBytes.
  std::int64_t RowsOf(std::int64_t tokens) const;
  std::string ToString() const;     // "512", "12.5%", "auto", "64MiB", "8x"
  std::string Explanation() const;  // the rule in words
};

// The last rows of a head that always stay: a number, a share of the head's rows (rounded up), or
// an eighth of the budget.
struct Recent {
  enum class Kind : std::uint8_t { kRows, kShare, kEighthOfBudget };
  Kind kind = Kind::kRows;
  std::int64_t rows = 0;
  Ratio share;

  // budget / 8 rounds down but is at least 1, as in SnapKV-D, where it comes from.
  std::int64_t RowsOf(std::int64_t budget, std::int64_t tokens) const;
  std::string ToString() const;
};

// Each leaves its value alone when the key is absent; mistakes go to `args`.
void ReadBudget(ArgReader& args, Budget* budget);
void ReadRounding(ArgReader& args, Budget* budget);  // after ReadBudget
void ReadRecent(ArgReader& args, Recent* recent);

}  // namespace kvsieve::evict

#endif  // KVSIEVE_EVICT_BUDGET_H_

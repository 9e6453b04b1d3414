// Which rows of a set fill its budget: the values of select=.
#ifndef KVSIEVE_EVICT_SELECTOR_H_
#define KVSIEVE_EVICT_SELECTOR_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "evict/top_k.h"
#include "kvsieve/spec_args.h"

namespace kvsieve::evict {

enum class SelectKind : std::uint8_t {
  kTopK,       // single rows by score
  kChunk,      // runs of n rows, counted from the first row that is not protected (ChunkKV,
               // arXiv:2502.00299)
  kBlock,      // rows [i n, (i + 1) n): the pages of a paged cache
  kThreshold,  // rows whose smoothed score is at least x
  kTopP,       // the fewest best rows that hold the share x of all scores, protected rows' included
};

struct SelectRule {
  SelectKind kind = SelectKind::kTopK;
  std::int64_t unit_rows = 1;  // chunk, block
  double limit = 0;            // threshold, top_p

  // The budget is a cap, which fewer rows may stay below.
  bool caps() const { return kind == SelectKind::kThreshold || kind == SelectKind::kTopP; }
  std::string Canonical() const;    // "chunk:16"
  std::string Explanation() const;  // empty for top_k
};

// Reads select=; mistakes go to `args`.
void ReadSelect(ArgReader& args, SelectRule* rule);

// A run of rows that stays or goes as a whole.
struct Unit {
  RowRange rows;
  std::int64_t free_rows = 0;   // those outside the protected ranges
  std::uint64_t order_key = 0;  // of the mean scores of its free rows
};

struct RankedRow {
  std::uint64_t order_key = 0;
  float raw = 0;
};

// Reused between calls.
struct SelectScratch {
  TopKScratch top_k;
  std::vector<Unit> units;
  std::vector<RowRange> kept;
  std::vector<RankedRow> ranked;

  // Room for sets of `rows` rows: SelectSet then allocates nothing.
  void Reserve(const SelectRule& rule, std::size_t rows);
};

// Appends to *rows, ascending, all rows of `kept` and at most `best` of the others by `rule`. Whole
// units go in, best mean score first, while the next one fits; the rest of the budget goes to
// single rows. Preconditions as SelectRows.
void SelectSet(const SelectRule& rule, const HeadScores& scores, std::span<const RowRange> kept,
               std::int64_t best, Ties ties, SelectScratch* scratch, std::vector<RowIndex>* rows);

}  // namespace kvsieve::evict

#endif  // KVSIEVE_EVICT_SELECTOR_H_

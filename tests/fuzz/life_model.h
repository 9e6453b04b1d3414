// What a cache must hold, as plain vectors: every token that came, the rows that stay, open drafts.
// It knows nothing of codecs or blocks, and learns from the cache only which rows an eviction
// dropped. Without GoogleTest, for fuzz targets.
#ifndef KVSIEVE_TESTS_FUZZ_LIFE_MODEL_H_
#define KVSIEVE_TESTS_FUZZ_LIFE_MODEL_H_

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <span>
#include <vector>

#include "kvsieve/cache.h"
#include "tests/oracle/attention_oracle.h"

namespace kvsieve::fuzz {

// Ends the process, as libFuzzer wants it, and says where.
#define KVS_REQUIRE(condition)                                             \
  do {                                                                     \
    if (!(condition)) {                                                    \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                        \
    }                                                                      \
  } while (0)

// A token as it came. A position may come again after it was taken back, with other rows: `birth`
// tells them apart.
struct Token {
  TokenPos position = 0;
  std::uint32_t birth = 0;
};

// Rows of `tokens`: [heads, n, dim], a function of layer, head, position and birth alone. Elements
// are multiples of 2^-8 in [-2, 2), so that they are the same in f16 and f32.
enum class RowKind : std::uint8_t { kKey, kValue, kQuery };
std::vector<float> MakeRows(int layer, RowKind kind, std::span<const Token> tokens, int heads,
                            int dim);

class LayerModel {
 public:
  LayerModel(const LayerSpec& spec, int index);

  std::span<const Token> seen() const { return seen_; }
  std::int64_t open_rows() const { return static_cast<std::int64_t>(open_.size()); }
  std::span<const Token> open() const { return open_; }
  TokenPos end() const { return open_.empty() ? next_ : open_.back().position + 1; }

  void Append(std::span<const Token> tokens);
  void OpenRows(std::span<const Token> tokens);
  void Close(std::int64_t accepted);
  // Returns how many tokens went.
  std::int64_t Trim(TokenPos end);
  // What every head has left where rows were dropped by score; 0: not known.
  void SetBudget(std::int64_t rows) { budget_ = rows; }
  // Rows that the next Verify does not find may have been dropped by the cache's decision.
  void AllowDrops() { drops_allowed_ = true; }
  // A plan in bytes also drops rows that a window shows.
  void AllowDropsInWindow() { window_stays_ = false; }
  // The prompt ends: the next query is at end().
  void Finish() {
    drops_allowed_ = true;
    first_of_last_append_ = next_;
  }

  // Every row of the cache is one of this, exact or nearer to it than another row is, and has the
  // bits that it had before unless it went to a colder store. Positions are those expected.
  void Verify(const Cache& cache, bool finished);
  std::int64_t kept_rows() const;
  std::int64_t lifetime() const { return lifetime_; }
  // Attention of some queries, against double precision over the rows that are there.
  void VerifyAttention(const Cache& cache, std::span<const TokenPos> positions,
                       const AttendParams& params) const;
  void VerifyVisible(const Cache& cache, std::span<const TokenPos> positions) const;

 private:
  struct Row {
    Token token;
    std::optional<std::int32_t> tier;  // where it was last seen
    std::uint64_t bits = 0;            // of its decoded elements
  };
  using Head = std::vector<Row>;
  struct Gathered;
  struct Attended {
    std::vector<float> out;
    std::vector<float> lse;
  };

  void AdoptDrops(Head& head, std::span<const TokenPos> positions, bool finished) const;
  void VerifyHead(const Cache& cache, int index, bool finished);
  // row: null for one of a draft.
  void VerifyRow(const Gathered& gathered, int head, std::size_t r, const Token& token,
                 Row* row) const;
  void RequireAttention(const LayerSpec& spec, std::span<const oracle::HeadRows> heads,
                        std::span<const float> queries, const Attended& attended,
                        const oracle::Attention& exact) const;

  LayerSpec spec_;
  int index_;
  std::vector<Token> seen_;
  std::vector<Token> open_;
  std::vector<Head> heads_;
  TokenPos next_ = 0;
  TokenPos first_of_last_append_ = 0;  // its own query saw its window
  std::int64_t lifetime_ = 0;
  std::int64_t budget_ = 0;
  bool drops_allowed_ = false;
  bool window_stays_ = true;
};

// One cache.
class Model {
 public:
  Model(std::span<const LayerSpec> layers, std::int64_t budget);

  std::vector<LayerModel> layers;
  bool finished = false;
  bool queries_complete = true;  // nothing that a scorer needs was left out
  std::int64_t speculative_rows = 64;

  bool AnyOpen() const;
  bool SameOpen() const;
  // All that calls can tell: rows, positions, counters.
  void Verify(const Cache& cache);
};

}  // namespace kvsieve::fuzz

#endif  // KVSIEVE_TESTS_FUZZ_LIFE_MODEL_H_

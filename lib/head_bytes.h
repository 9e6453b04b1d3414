// What the rows of one head will take, from how many there will be: the steps of FinishPrefill and
// of decode appends in numbers of rows, the sizes from the stores themselves.
//
// Heads may share a number of rows, so that bytes of one are bounds while those of all are exact.
// Bytes are therefore told in 64ths and beside their rows: 64 x what a head takes, less what a
// block of 64 encoded rows takes (BlockCost) for each row that its prompt keeps. From some number
// of rows on that repeats every 64 rows.
#ifndef KVSIEVE_LIB_HEAD_BYTES_H_
#define KVSIEVE_LIB_HEAD_BYTES_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "kvsieve/evict.h"
#include "kvsieve/plan_bytes.h"
#include "lib/layer_state.h"

namespace kvsieve {

// What the heads of a layer share. Positions are 0, 1, ...
struct HeadSetting {
  LayerSpec layer;
  std::vector<LayerStore> stores;       // one per tier
  std::vector<std::int64_t> cold_rows;  // that tiers 1, 2, ... take, if there are so many
  RowShape shape;
  std::int64_t prompt_tokens = 0;
  std::int64_t decode_tokens = 0;
  std::int64_t exact_sinks = 0;
  std::int64_t tail = 0;

  const LayerStore& store() const { return stores.front(); }
  int group_rows() const {
    int most = 1;
    for (const LayerStore& tier : stores) most = std::max(most, tier.group_rows());
    return most;
  }
};

class HeadBytes {
 public:
  // `setting` outlives this.
  explicit HeadBytes(const HeadSetting& setting) : setting_(setting) {}

  ByteReport BlockCost() const;

  // In 64ths, beside the rows of `forecast`: an evictor keeps some of the prompt's rows.
  ByteBounds Kept(const HeadForecast& forecast) const;
  // In 64ths, all of it: the rows of a sliding layer fall away by age.
  ByteBounds Sliding() const;

 private:
  struct Counts {  // rows of each segment
    std::int64_t sinks = 0;
    std::int64_t tier = 0;  // in all tiers
    std::int64_t tail = 0;
  };
  using Cold = std::vector<std::int64_t>;  // rows of tiers 1, 2, ...
  std::int64_t end() const { return setting_.prompt_tokens + setting_.decode_tokens; }
  std::int64_t sinks_end(std::int64_t tokens) const;
  RowBounds SinksOf(std::int64_t rows, std::span<const PositionRange> certain) const;
  // How many rows may be cold, of `rows` that the prompt keeps.
  RowBounds Coldable(std::int64_t sinks, std::int64_t rows, const HeadForecast& forecast) const;
  Cold ColdOf(std::int64_t coldable) const;
  ByteBounds Kept(std::int64_t sinks, std::int64_t rows, const Cold& cold,
                  const HeadForecast& forecast) const;
  Counts AfterPrefill(std::int64_t sinks, std::int64_t rows) const;
  Counts AfterDecode(Counts counts) const;
  Counts AfterSliding(Counts counts) const;
  // The last number of rows to look at: those beyond repeat.
  std::int64_t Horizon(const RowBounds& rows) const;

  ByteReport RowBytes(const Counts& counts, const Cold& cold) const;  // all but positions
  ByteBounds Room(const Counts& counts) const;  // of buffers that decode appends grew
  ByteBounds Positions(const Counts& before, const Counts& counts, const Cold& cold,
                       std::span<const PositionRange> certain) const;
  ByteBounds AnyPositions(std::int64_t rows) const;

  const HeadSetting& setting_;
};

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_HEAD_BYTES_H_

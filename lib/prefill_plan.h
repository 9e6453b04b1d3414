// FinishPrefill in three phases: decide which rows go where, reserve all memory (statistics
// included), then commit layer by layer. Until Commit nothing of the cache has changed.
#ifndef KVSIEVE_LIB_PREFILL_PLAN_H_
#define KVSIEVE_LIB_PREFILL_PLAN_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvsieve/allocator.h"
#include "kvsieve/parallel.h"
#include "kvsieve/pipeline.h"
#include "kvsieve/result.h"
#include "lib/layer_state.h"

namespace kvsieve {

class PrefillPlan {
 public:
  PrefillPlan(const Pipeline& pipeline, std::vector<LayerState>& layers, Allocator& allocator,
              Parallel& parallel)
      : pipeline_(pipeline), layers_(layers), allocator_(allocator), parallel_(parallel) {}

  Status Decide(std::int64_t scratch_limit_bytes);
  Status Reserve();
  void Commit();

  std::int64_t scratch_peak_bytes() const { return scratch_peak_bytes_; }

 private:
  // Rows of one head by segment, as indexes into the layer's staging.
  struct HeadPlan {
    std::vector<TokenPos> staged;  // positions of all staged rows
    std::vector<RowIndex> sinks;
    std::vector<std::vector<RowIndex>> tiers;
    std::vector<RowIndex> tail;
    std::vector<std::vector<TokenPos>> tier_positions;
    std::int64_t bytes() const;
  };
  struct LayerPlan {
    std::vector<HeadPlan> heads;
    std::vector<HeadStore> stores;  // filled with memory by Reserve, with rows by Commit
    bool evicted = false;
    std::string note;
  };

  Status Score(std::int64_t scratch_limit_bytes);
  // ranked: indexes of the layers observed.
  Result<std::vector<LayerDecision>> DecideRanked(std::span<const std::size_t> ranked,
                                                  std::span<const Observation> observations,
                                                  ScoreScratch& scratch);
  void KeepAll(std::size_t layer_index);
  // Raises the peak to `bytes` beside the lists of rows as they are now.
  void NoteScratch(std::int64_t bytes);
  void KeepDecided(std::size_t layer_index, const LayerDecision& decision);
  void SplitRows(const LayerState& layer, std::span<const RowIndex> rows,
                 std::span<const std::uint8_t> tiers, HeadPlan& head) const;
  Status LearnHead(const LayerState& layer, int head, const HeadPlan& plan, HeadStore& store) const;
  Status ReserveLayer(const LayerState& layer, LayerPlan& plan);
  void CommitHead(const LayerState& layer, int head, const HeadPlan& plan, HeadStore& store,
                  float* scratch) const;

  const Pipeline& pipeline_;
  std::vector<LayerState>& layers_;
  Allocator& allocator_;
  Parallel& parallel_;
  std::vector<LayerPlan> plans_;
  std::vector<float> scratch_;  // per worker: one block of rows
  std::size_t scratch_floats_ = 0;
  std::int64_t scratch_peak_bytes_ = 0;
};

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_PREFILL_PLAN_H_

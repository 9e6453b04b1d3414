// Taking back the last tokens of one layer. Rows that stay are not touched; memory of the others is
// given back in whole blocks and pages, or becomes room for rows to come.
#ifndef KVSIEVE_LIB_TRIM_H_
#define KVSIEVE_LIB_TRIM_H_

#include <cstdint>
#include <vector>

#include "kvsieve/allocator.h"
#include "kvsieve/result.h"
#include "kvsieve/types.h"
#include "lib/layer_state.h"

namespace kvsieve {

class LayerTrim {
 public:
  // Takes the memory that positions need in another form. All that can fail; changes nothing.
  static Result<LayerTrim> Prepare(Allocator& allocator, const LayerState& layer, TokenPos end);
  // Tokens that go, kept rows or not.
  std::int64_t tokens() const { return tokens_ + verify_gone_; }
  // `layer` is the one given to Prepare, unchanged since.
  void Commit(LayerState& layer);

 private:
  struct HeadCut {
    PositionList::Cut sinks;
    std::vector<PositionList::Cut> tiers;
    PositionList::Cut tail;
  };

  TokenPos end_ = 0;
  std::int64_t tokens_ = 0;  // without verify rows, which nothing has counted yet
  std::int64_t verify_gone_ = 0;
  std::vector<PositionList::Cut> staged_;  // before the prompt is finished
  std::vector<HeadCut> stored_;            // afterwards
};

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_TRIM_H_

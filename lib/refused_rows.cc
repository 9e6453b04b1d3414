#include "lib/refused_rows.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <span>

#include "kvsieve/float16.h"
#include "lib/staging.h"

namespace kvsieve {
namespace {

// No codec ends before f16. Transforms make an element larger by at most 2, where a mean is taken
// off, times sqrt(dim), where the row is rotated.
bool MayRefuse(const Chain& chain, const RowSource& rows) {
  return !(2 * rows.LargestMagnitude() * std::sqrt(static_cast<float>(chain.dim())) <= kF16Max);
}

// Appends the rows without those at which `learn` fails: by halves, for they are few.
template <class Learn>
void AppendHeld(std::span<const RowIndex> rows, Learn learn, std::vector<RowIndex>* held) {
  if (learn(rows).ok()) {
    held->insert(held->end(), rows.begin(), rows.end());
  } else if (rows.size() > 1) {
    AppendHeld(rows.first(rows.size() / 2), learn, held);
    AppendHeld(rows.subspan(rows.size() / 2), learn, held);
  }
}

// Those of `all` that the chain holds.
std::vector<RowIndex> HeldBy(const Chain& chain, const RowSource& rows,
                             std::span<const RowIndex> all) {
  std::vector<float> first(static_cast<std::size_t>(chain.first_stats_floats()));
  std::vector<float> rest(static_cast<std::size_t>(chain.stats_floats()) - first.size());
  const auto learn_first = [&](std::span<const RowIndex> some) {
    return chain.LearnFirst(ChosenRows(rows, some), first.data());
  };
  const auto learn_rest = [&](std::span<const RowIndex> some) {
    return chain.LearnRest(ChosenRows(rows, some), first.data(), rest.data());
  };
  std::vector<RowIndex> learnt;
  AppendHeld(all, learn_first, &learnt);
  std::vector<RowIndex> held;
  if (learn_first(learnt).ok()) AppendHeld(learnt, learn_rest, &held);
  return held;
}

}  // namespace

std::vector<RowIndex> RefusedRows(const LayerStore& store, const HeadObservation& head,
                                  RowIndex first, RowIndex end) {
  std::vector<RowIndex> all;
  std::vector<RowIndex> held;
  for (const Side side : store.sides()) {
    const RowSource& rows = side == Side::kKey ? *head.keys : *head.values;
    if (!MayRefuse(store.chain(side), rows)) continue;
    if (all.empty()) {
      all.resize(static_cast<std::size_t>(end - first));
      std::iota(all.begin(), all.end(), first);
      held = all;
    }
    held = HeldBy(store.chain(side), rows, held);
  }
  std::vector<RowIndex> refused;
  std::set_difference(all.begin(), all.end(), held.begin(), held.end(),
                      std::back_inserter(refused));
  return refused;
}

}  // namespace kvsieve

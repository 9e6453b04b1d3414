#include "evict/split.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <string_view>

#include "kvsieve/str_cat.h"

namespace kvsieve::evict {
namespace {

constexpr double kLeastFloor = 1e-9;  // but 0
constexpr std::string_view kSplitNames[] = {"uniform", "pyramid", "adaptive"};
constexpr std::string_view kScopeNames[] = {"layer", "model"};

// Indexes of the active entries by remainder, largest first, earlier ones first between equals.
void AddRemainders(std::int64_t left, std::span<const std::size_t> active,
                   std::span<const std::int64_t> remainders, std::span<std::int64_t> shares) {
  std::vector<std::size_t> order(active.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return remainders[a] > remainders[b]; });
  for (std::int64_t i = 0; i < left; ++i) ++shares[active[order[static_cast<std::size_t>(i)]]];
}

std::int64_t FloorRows(const Split& split, const RowSet& set) {
  // 1e-9: a floor of 0.2 of 35 rows is 7 rows, although 0.2 is a little more than a fifth.
  const double rows = std::ceil(split.floor * static_cast<double>(set.budget) - 1e-9);
  return std::clamp(static_cast<std::int64_t>(rows), std::int64_t{0}, set.budget);
}

// Keys in `descending` that are at least `key`, or above it.
std::int64_t CountFrom(std::span<const std::uint64_t> descending, std::uint64_t key) {
  return std::upper_bound(descending.begin(), descending.end(), key, std::greater<>()) -
         descending.begin();
}
std::int64_t CountAbove(std::span<const std::uint64_t> descending, std::uint64_t key) {
  return std::lower_bound(descending.begin(), descending.end(), key, std::greater<>()) -
         descending.begin();
}

// The rows that one set keeps as the threshold falls.
struct Competitor {
  std::int64_t least = 0;  // whatever the threshold
  std::int64_t protected_count = 0;
  SetKeys keys;

  std::int64_t RowsFrom(std::uint64_t key) const {
    return std::max(least,
                    protected_count + CountFrom(keys.all, key) - CountFrom(keys.of_protected, key));
  }
  std::int64_t RowsAbove(std::uint64_t key) const {
    return std::max(
        least, protected_count + CountAbove(keys.all, key) - CountAbove(keys.of_protected, key));
  }
};

std::int64_t RowsFrom(std::span<const Competitor> sets, std::uint64_t key) {
  std::int64_t rows = 0;
  for (const Competitor& set : sets) rows += set.RowsFrom(key);
  return rows;
}

std::vector<std::int64_t> Compete(std::span<const Competitor> sets, std::int64_t total) {
  std::uint64_t cut = 0;  // the highest key from which on there are `total` rows
  for (int bit = 63; bit >= 0; --bit) {
    const std::uint64_t higher = cut | std::uint64_t{1} << bit;
    if (RowsFrom(sets, higher) >= total) cut = higher;
  }
  std::vector<std::int64_t> rows;
  for (const Competitor& set : sets) {
    rows.push_back(set.RowsAbove(cut));
    total -= rows.back();
  }
  for (std::size_t i = 0; i < sets.size() && total > 0; ++i) {
    const std::int64_t more = std::min(total, sets[i].RowsFrom(cut) - rows[i]);
    rows[i] += more;
    total -= more;
  }
  return rows;
}

}  // namespace

std::string Split::Canonical() const {
  const std::string_view name = kSplitNames[static_cast<int>(kind)];
  if (kind == SplitKind::kPyramid) return StrCat(name, "(beta=", RealText(beta), ")");
  if (kind == SplitKind::kUniform) return std::string(name);
  return StrCat(name, "(floor=", RealText(floor), ",scope=", kScopeNames[static_cast<int>(scope)],
                ")");
}

std::string Split::Explanation() const {
  switch (kind) {
    case SplitKind::kUniform:
      break;
    case SplitKind::kPyramid:
      return StrCat("rows beyond the protected ones fall linearly over the layers, the last has 1/",
                    RealText(beta), " of the mean (PyramidKV); the total is that of uniform");
    case SplitKind::kAdaptive:
      return StrCat("the heads of ", scope == SplitScope::kLayer ? "a layer" : "all layers",
                    " compete by score, each keeps at least ", RealText(floor),
                    " of its budget and its protected rows (AdaKV); the total is that of uniform");
  }
  return {};
}

void ReadSplit(ArgReader& args, Split* split) {
  const SpecArg* arg = args.Raw("split");
  if (arg == nullptr) return;
  const auto found = std::find(std::begin(kSplitNames), std::end(kSplitNames), arg->value);
  if (found == std::end(kSplitNames)) {
    return args.Fail(arg->value_column, StrCat("option split: unknown value '", arg->value, "'",
                                               Suggest(arg->value, kSplitNames)));
  }
  split->kind = static_cast<SplitKind>(found - std::begin(kSplitNames));
  if (arg->call.empty()) return;
  ArgReader inner(arg->call.front());
  if (split->kind == SplitKind::kPyramid) inner.Real("beta", &split->beta, 1, 1e6);
  if (split->kind == SplitKind::kAdaptive) {
    inner.Real("floor", &split->floor, 0, 1);
    // Written out without an exponent it would not be a word of a spec.
    if (split->floor > 0 && split->floor < kLeastFloor) {
      inner.Fail(inner.column(), StrCat("option floor: ", split->floor,
                                        " is neither 0 nor at least ", kLeastFloor));
    }
    int scope = static_cast<int>(split->scope);
    inner.Choice("scope", kScopeNames, &scope);
    split->scope = static_cast<SplitScope>(scope);
  }
  args.Fail(inner.Finish());
}

std::vector<std::int64_t> Apportion(std::int64_t total, std::span<const std::int64_t> weights,
                                    std::span<const std::int64_t> caps) {
  std::vector<std::int64_t> shares(weights.size(), 0);
  std::vector<std::size_t> active;
  for (std::size_t i = 0; i < caps.size(); ++i) {
    if (caps[i] > 0) active.push_back(i);
  }
  // Those whose share would pass their cap get the cap; the others divide what that leaves.
  for (bool capped = true; capped && !active.empty();) {
    __int128 sum = 0;
    for (const std::size_t i : active) sum += weights[i];
    std::int64_t left = total;
    std::vector<std::size_t> others;
    for (const std::size_t i : active) {
      if (static_cast<__int128>(total) * weights[i] < sum * caps[i]) {
        others.push_back(i);
      } else {
        shares[i] = caps[i];
        left -= caps[i];
      }
    }
    capped = others.size() < active.size();
    total = left;
    active = std::move(others);
  }
  __int128 sum = 0;
  for (const std::size_t i : active) sum += weights[i];
  std::vector<std::int64_t> remainders;
  std::int64_t left = total;
  for (const std::size_t i : active) {
    const __int128 product = static_cast<__int128>(total) * weights[i];
    shares[i] = static_cast<std::int64_t>(product / sum);
    remainders.push_back(static_cast<std::int64_t>(product % sum));
    left -= shares[i];
  }
  if (!active.empty()) AddRemainders(left, active, remainders, shares);
  return shares;
}

std::vector<std::int64_t> PyramidRows(const Split& split, std::span<const RowSet> sets,
                                      std::span<const int> set_layers, int layers) {
  // Of the mean: 2 - 1/beta for the first layer, 1/beta for the last, as PyramidKV has it. Weights
  // are integers, so that shares are exact and the same everywhere.
  constexpr double kUnit = 4294967296.0;
  const double least = 1 / split.beta;
  const double step = layers > 1 ? (2 - 2 * least) / (layers - 1) : 0;
  const double most = layers > 1 ? 2 - least : 1;
  std::vector<std::int64_t> weights;
  std::vector<std::int64_t> caps;
  std::int64_t total = 0;
  for (std::size_t i = 0; i < sets.size(); ++i) {
    const RowSet& set = sets[i];
    weights.push_back(std::llround((most - step * set_layers[i]) * kUnit));
    caps.push_back(set.splits() ? set.rows - set.protected_count : 0);
    total += set.splits() ? set.budget - set.protected_count : 0;
  }
  std::vector<std::int64_t> rows = Apportion(total, weights, caps);
  for (std::size_t i = 0; i < sets.size(); ++i) {
    const RowSet& set = sets[i];
    rows[i] = set.splits() ? set.protected_count + rows[i] : set.budget;
  }
  return rows;
}

std::int64_t AdaptiveLeast(const Split& split, const RowSet& set) {
  return std::max(set.protected_count, FloorRows(split, set));
}

std::vector<std::int64_t> AdaptiveRows(const Split& split, std::span<const RowSet> sets,
                                       std::span<const SetKeys> keys) {
  std::vector<Competitor> competitors;
  std::int64_t total = 0;
  for (std::size_t i = 0; i < sets.size(); ++i) {
    const RowSet& set = sets[i];
    if (!set.splits()) continue;
    competitors.push_back({AdaptiveLeast(split, set), set.protected_count, keys[i]});
    total += set.share;
  }
  const std::vector<std::int64_t> shares = Compete(competitors, total);
  std::vector<std::int64_t> rows;
  std::size_t next = 0;
  for (const RowSet& set : sets) rows.push_back(set.splits() ? shares[next++] : set.budget);
  return rows;
}

}  // namespace kvsieve::evict

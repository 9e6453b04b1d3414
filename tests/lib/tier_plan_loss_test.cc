// Plans in bytes: what is lost. No assignment of as many bytes loses less, and more bytes never
// lose more.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kvsieve/str_cat.h"
#include "tests/lib/tier_plan_fixture.h"

namespace kvsieve::tier_plan_test {
namespace {

using cache_test::MakeLayer;
using cache_test::MustParse;

// Steps are right to 4 * 2^-24 of the losses they lie between (lib/tier_steps.h), and losses are
// summed in f64 here: of rows that are as good as equal, either may be taken.
constexpr double kRounding = 1e-6;

TEST(TierPlan, MoreBytesNeverLoseMore) {
  constexpr std::uint64_t kSeed = 77;
  std::mt19937_64 random(kSeed);
  const Model model({MakeLayer(4, 2, 64, 64), MakeLayer(3, 3, 32, 64)}, 260, 71);
  for (const char* scope : {",scope=model", ",scope=layer", ",scope=kv_head"}) {
    for (const char* tiers :
         {"k=center+turbo5, v=turbo5; k=center+turbo4, v=turbo3; k=center+turbo3, v=turbo2",
          "kv=channel", "kv=channel(group=16); kv=int2", "kv=int4"}) {
      std::vector<std::int64_t> budgets;
      for (int i = 0; i < 25; ++i) {
        budgets.push_back(static_cast<std::int64_t>(
            random() % static_cast<std::uint64_t>(model.FullBytes() / 2)));
      }
      std::ranges::sort(budgets);
      double before = std::numeric_limits<double>::infinity();
      double first = 0;
      for (const std::int64_t budget : budgets) {
        const std::string spec = SpecOf(budget + 1, scope, tiers);
        const double loss = LossOf(model, spec, model.Finished(spec));
        EXPECT_LE(loss, before * (1 + kRounding)) << "seed " << kSeed << ": " << spec;
        before = loss;
        first = std::max(first, loss);
      }
      EXPECT_LT(before, first / 2);
    }
  }
}

// Every assignment of a few rows of two heads: bytes of rows, and losses.
class EveryAssignment {
 public:
  EveryAssignment(const Model& model, const std::string& spec) {
    const auto pipeline = MustParse(spec);
    for (int tier = 0; tier < pipeline->tiers(); ++tier) {
      const Result<LayerStore> store = BuildStore(pipeline->StoreFor(0, 1, tier), model.layers[0]);
      std::int64_t bytes = 0;
      for (const Side side : store->sides()) {
        const RowBytes row = store->chain(side).codec().row_bytes();
        bytes += row.codes + row.scales;
      }
      tier_bytes_.push_back(bytes);
    }
    for (const std::vector<RowLoss>& head : model.LossesOf(spec, 0)) {
      rows_.insert(rows_.end(), head.begin(), head.end());
      last_of_head_.resize(rows_.size());
      last_of_head_.back() = true;
    }
    Extend(0, 0, 0);
    std::ranges::sort(all_);
    for (std::size_t i = 1; i < all_.size(); ++i) {
      all_[i].second = std::min(all_[i].second, all_[i - 1].second);
    }
  }

  // The least loss of as many bytes.
  double LeastLoss(std::int64_t bytes) const {
    const auto end =
        std::ranges::upper_bound(all_, std::pair(bytes, std::numeric_limits<double>::infinity()));
    return (end - 1)->second;
  }
  std::pair<std::int64_t, double> Of(const Cache& cache) const {
    std::int64_t bytes = 0;
    double loss = 0;
    std::size_t row = 0;
    for (int head = 0; head < cache.layer(0).kv_heads; ++head) {
      for (const std::int32_t place : PlaceOfRows(cache, 0, head, cache.next_position())) {
        const auto tier = static_cast<std::size_t>(place);
        bytes += place == kDropped ? 0 : tier_bytes_[tier];
        loss += place == kDropped ? rows_[row].drop : rows_[row].in_tier[tier];
        ++row;
      }
    }
    return {bytes, loss};
  }
  std::size_t size() const { return all_.size(); }

 private:
  // The last row of a head is the window: in the first two tiers, of 8 and 4 bits.
  void Extend(std::size_t row, std::int64_t bytes, double loss) {
    if (row == rows_.size()) {
      all_.emplace_back(bytes, loss);
      return;
    }
    if (!last_of_head_[row]) Extend(row + 1, bytes, loss + rows_[row].drop);
    for (std::size_t tier = 0; tier < (last_of_head_[row] ? 2 : tier_bytes_.size()); ++tier) {
      Extend(row + 1, bytes + tier_bytes_[tier], loss + rows_[row].in_tier[tier]);
    }
  }

  std::vector<std::int64_t> tier_bytes_;
  std::vector<RowLoss> rows_;
  std::vector<bool> last_of_head_;
  std::vector<std::pair<std::int64_t, double>> all_;
};

// What a plan takes is a point of the lower hull of all assignments' bytes and losses, so nothing
// of its size is better.
TEST(TierPlan, NoAssignmentOfItsBytesLosesLess) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    const Model model({MakeLayer(4, 2, 32, 32)}, 4, seed);
    const char* more = ",window=1,sinks=0,pool=none";
    const char* tiers = "kv=int8; kv=int4; kv=int2";
    const EveryAssignment every(model, SpecOf(1, more, tiers));
    ASSERT_EQ(every.size(), 4 * 4 * 4 * 2 * 4 * 4 * 4 * 2U);
    std::set<std::int64_t> sizes;
    for (std::int64_t budget = 1; budget < 700; budget += 7) {
      const auto [bytes, loss] = every.Of(model.Finished(SpecOf(budget, more, tiers)));
      EXPECT_LE(loss, every.LeastLoss(bytes) * (1 + kRounding))
          << "seed " << seed << ", budget " << budget;
      sizes.insert(bytes);
    }
    EXPECT_GT(sizes.size(), 8U);
  }
}

}  // namespace
}  // namespace kvsieve::tier_plan_test

// Several stores in one cache must not cost more than each alone: attention of one token over a
// cache whose rows are in tiers, held against the times of caches that have all rows in one of
// these stores, each weighed by its share of the rows. 32 query heads on 8 KV heads of 128 dims,
// one thread.
//
//   tiers_gate [ROWS [TARGET]]     default 32768 and the best; exit code 1 when tiers are over the
//                                  limit
//
// Times are this thread's, caches take turns. Ranks are random, so that the rows of a tier lie
// anywhere. Each tier behind the first may add 5 %: its queries are prepared, its outputs rotated
// back and its open block attended, whatever its rows. With fewer than 16384 rows that is so near
// to 5 % that noise decides; they, and mixtures with a store without fused kernels, are shown and
// not judged.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bench/timed_decode.h"
#include "kvsieve/spec_args.h"
#include "kvsieve/str_cat.h"
#include "kvsieve/targets.h"

namespace kvsieve::bench {
namespace {

constexpr int kRounds = 25;
constexpr int kTries = 5;
constexpr std::int64_t kLeastJudged = 16384;
constexpr double kMostPerTier = 0.05;  // of each tier behind the first

constexpr const char* kFine = "k=center+turbo5,v=turbo4";
constexpr const char* kMiddle = "k=center+turbo4,v=turbo3";
constexpr const char* kCoarse = "k=center+turbo3,v=turbo2";

// Percent of the rows in each store.
using Shares = std::vector<int>;

struct Family {
  std::vector<const char*> stores;
  std::vector<Shares> mixtures;
};

const std::vector<Family>& Families() {
  static const std::vector<Family> families = {
      {{kFine, kMiddle}, {{50, 50}, {10, 90}}},
      {{kMiddle, kCoarse}, {{50, 50}, {10, 90}}},
      {{kFine, kCoarse}, {{50, 50}, {10, 90}}},
      {{kFine, kMiddle, kCoarse}, {{34, 33, 33}, {10, 30, 60}}},
      {{"kv=f16", "kv=int8"}, {{50, 50}, {10, 90}}},
  };
  return families;
}

// A cache and how long its step took.
struct Contender {
  Contender(const std::string& spec, const Prompt& prompt) : decode(spec, prompt) {}
  double best() const { return *std::min_element(seconds.begin(), seconds.end()); }
  double median() const { return Median(seconds); }

  TimedDecode decode;
  std::vector<double> seconds;
};

std::string SpecOf(const Family& family, const Shares& shares) {
  std::string spec = StrCat("random(budget=100%) | ", family.stores[0]);
  for (std::size_t t = 1; t < shares.size(); ++t) {
    spec += StrCat(" | cold(", shares[t], "%)={", family.stores[t], "}");
  }
  return spec;
}

// What a mixture's rows would take, each in the cache of its own store.
template <class Time>
double WeightedSum(const std::vector<std::unique_ptr<Contender>>& pure, const LayerReport& mixture,
                   Time time) {
  double rows = 0;
  double sum = 0;
  for (std::size_t t = 0; t < pure.size(); ++t) {
    const auto in_tier = static_cast<double>(mixture.stores[1 + t].bytes.rows_kept);
    rows += in_tier;
    sum += in_tier * time(*pure[t]);
  }
  return sum / rows;
}

class FamilyGate {
 public:
  FamilyGate(const Family& family, const Prompt& prompt)
      : family_(family), enough_rows_(prompt.rows() >= kLeastJudged) {
    for (const char* store : family.stores) {
      pure_.push_back(std::make_unique<Contender>(StrCat("none | ", store), prompt));
    }
    for (const Shares& shares : family.mixtures) {
      mixed_.push_back(std::make_unique<Contender>(SpecOf(family, shares), prompt));
    }
  }

  // Whether all that is judged passed. The best round of each counts: what disturbs a round only
  // makes it longer.
  bool Run() {
    bool passed = false;
    for (int tries = 0; tries < kTries && !passed; ++tries) {
      for (int round = 0; round < kRounds; ++round) {
        for (const auto& contender : pure_) Time(*contender);
        for (const auto& contender : mixed_) Time(*contender);
      }
      passed = std::all_of(mixed_.begin(), mixed_.end(), [&](const auto& mixture) {
        return !judged(*mixture) || Passed(*mixture);
      });
    }
    return passed;
  }

  void Print() const {
    for (std::size_t t = 0; t < pure_.size(); ++t) {
      std::printf("%-34s %9.1f\n", family_.stores[t], pure_[t]->best() * 1e6);
    }
    for (std::size_t m = 0; m < mixed_.size(); ++m) {
      const Contender& mixture = *mixed_[m];
      std::string name = "  ";
      for (const int share : family_.mixtures[m]) name += StrCat(share, " % ");
      const char* verdict = !judged(mixture) ? "  not judged" : Passed(mixture) ? "" : "  TOO SLOW";
      std::printf("%-34s %9.1f %9.3f %9.3f %6.2f%s\n", name.c_str(), mixture.best() * 1e6,
                  BestRatio(mixture), MedianRatio(mixture), most(), verdict);
    }
  }

 private:
  static void Time(Contender& contender) {
    contender.seconds.push_back(contender.decode.Seconds());
  }
  bool judged(const Contender& mixture) const {
    return enough_rows_ && mixture.decode.fused() &&
           std::all_of(pure_.begin(), pure_.end(), [](const auto& p) { return p->decode.fused(); });
  }
  double most() const { return 1 + kMostPerTier * static_cast<double>(pure_.size() - 1); }
  bool Passed(const Contender& mixture) const { return BestRatio(mixture) <= most(); }
  double BestRatio(const Contender& mixture) const {
    return mixture.best() /
           WeightedSum(pure_, mixture.decode.Report(), [](const Contender& c) { return c.best(); });
  }
  double MedianRatio(const Contender& mixture) const {
    return mixture.median() / WeightedSum(pure_, mixture.decode.Report(),
                                          [](const Contender& c) { return c.median(); });
  }

  const Family& family_;
  const bool enough_rows_;
  std::vector<std::unique_ptr<Contender>> pure_;
  std::vector<std::unique_ptr<Contender>> mixed_;
};

int Run(std::int64_t rows) {
  const Prompt prompt(rows);
  std::printf("%lld rows, kernels %s; times of tiers over the row-weighted sum of their stores\n",
              static_cast<long long>(rows), std::string(ActiveTarget()).c_str());
  std::printf("%-34s %9s %9s %9s %6s\n", "store, or shares of the tiers", "us/token", "of best",
              "medians", "most");
  bool passed = true;
  for (const Family& family : Families()) {
    FamilyGate gate(family, prompt);
    passed = gate.Run() && passed;
    gate.Print();
  }
  return passed ? 0 : 1;
}

}  // namespace
}  // namespace kvsieve::bench

int main(int argc, char** argv) {
  const auto rows = kvsieve::ParseInt(argc > 1 ? argv[1] : "32768");
  if (argc > 3 || !rows.ok() || *rows < 64 || *rows > (1 << 20)) {
    std::fprintf(stderr, "usage: tiers_gate [ROWS [TARGET]], ROWS from 64 to 1048576\n");
    return 2;
  }
  if (argc > 2) kvsieve::bench::Check(kvsieve::SelectTarget(argv[2]));
  return kvsieve::bench::Run(*rows);
}

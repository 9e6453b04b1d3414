// Random lives of families of forks, against deep copies that share nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <random>
#include <utility>
#include <vector>

#include "kvsieve/cache_set.h"
#include "tests/lib/state_fixture.h"

namespace kvsieve::cache_test {
namespace {

using state_test::ExpectSame;
using state_test::LoadBytes;
using state_test::Saved;

struct FamilyCase {
  const char* spec;
  int window;  // of the second layer
};
// Else GoogleTest prints its bytes, padding included, which memcheck reports.
std::ostream& operator<<(std::ostream& out, const FamilyCase& test_case) {
  return out << test_case.spec;
}

class Family {
 public:
  Family(std::uint64_t seed, const FamilyCase& test_case)
      : random_(seed), layers_{MakeLayer(4, 2, 32, 32), MakeLayer(2, 1, 64, 32)} {
    layers_[1].sliding_window = test_case.window;
    CacheOptions options;
    options.allocator = &allocator_;
    Result<CacheSet> set = CacheSet::Create(MustParse(test_case.spec), layers_, options);
    EXPECT_TRUE(set.ok()) << set.message();
    set_.push_back(*std::move(set));
    EXPECT_TRUE(set_[0].Add().ok());
    twins_.push_back(MustCreate(test_case.spec, layers_));
    Both(0, [&](Cache& cache) {
      for (int i = 0; i < 2; ++i) MustAppend(cache, i, MakePrompt(layers_[i], 250, seed));
      EXPECT_TRUE(cache.FinishPrefill().ok());
    });
  }

  void Step() {
    const int member = Below(set().size());
    switch (Below(12)) {
      case 0:
      case 1:
        return Fork(member);
      case 2:
        return Remove(member);
      case 3:
      case 4:
        return Trim(member);
      case 5:
        return Reload(member);
      case 6:
        return Draft(member);
      default:
        return Append(member);
    }
  }

  void ExpectCountedOnce() {
    const ByteReport total = set().Report();
    ASSERT_EQ(total.resident_bytes(), allocator_.live_bytes);
    ASSERT_LE(total.shared_bytes, total.resident_bytes());
    ByteReport sum;
    for (int i = 0; i < set().size(); ++i) sum += set()[i].Report();
    ASSERT_EQ(total.rows_kept, sum.rows_kept);
    ASSERT_EQ(total.kept_bytes(), total.key_kept_bytes + total.value_kept_bytes);
    // Each shared byte of the set has two holders at least, all of them members.
    ASSERT_GE(sum.shared_bytes, 2 * total.shared_bytes);
    ASSERT_EQ(sum.resident_bytes() - total.resident_bytes(), sum.shared_bytes - total.shared_bytes);
  }

  void ExpectTwins() {
    for (int i = 0; i < set().size(); ++i) {
      SCOPED_TRACE(testing::Message() << "member " << i);
      ExpectSame(set()[i], twins_[i]);
    }
  }

 private:
  CacheSet& set() { return set_.front(); }
  int Below(int n) { return static_cast<int>(random_() % static_cast<std::uint64_t>(n)); }

  template <class Call>
  void Both(int member, Call call) {
    call(set()[member]);
    call(twins_[member]);
  }

  void Append(int member) {
    const std::uint64_t seed = random_();
    const int rows = 1 + Below(60);
    const TokenPos first = set()[member].next_position() + (Below(4) == 0 ? Below(9) : 0);
    Both(member, [&](Cache& cache) {
      for (int i = 0; i < 2; ++i) {
        MustAppend(cache, i, MakePrompt(layers_[i], rows, seed, first), 0, Phase::kDecode);
        ASSERT_TRUE(cache.Evict(i).ok());
      }
    });
  }

  // Rows of which some are accepted.
  void Draft(int member) {
    const std::uint64_t seed = random_();
    const int rows = 1 + Below(40);
    const int accepted = Below(rows + 1);
    Both(member, [&](Cache& cache) {
      const TokenPos first = cache.next_position();
      for (int i = 0; i < 2; ++i) {
        MustAppend(cache, i, MakePrompt(layers_[i], rows, seed, first), 0, Phase::kVerify);
      }
      ASSERT_TRUE(cache.Accept(accepted).ok());
    });
  }

  void Trim(int member) {
    const TokenPos next = set()[member].next_position();
    const TokenPos end = next - Below(std::min(next, 180) + 1);
    Both(member, [&](Cache& cache) {
      ASSERT_TRUE(cache.TrimToPosition(end, kvsieve::Trim::kAllowInexact).ok());
    });
  }

  void Fork(int member) {
    if (set().size() == 6) return;
    ASSERT_TRUE(set().AddFork(member).ok());
    MemorySink state;
    ASSERT_TRUE(twins_[member].Save("", state).ok());
    MemorySource source(state.bytes());
    Result<Cache> twin = Cache::FromState(source, "", {});
    ASSERT_TRUE(twin.ok()) << twin.message();
    twins_.push_back(*std::move(twin));
  }

  void Remove(int member) {
    if (set().size() == 1) return;
    ASSERT_TRUE(set().Remove(member).ok());
    twins_.erase(twins_.begin() + member);
  }

  // What it saved takes the place of what it held.
  void Reload(int member) {
    Cache& cache = set()[member];
    ASSERT_TRUE(LoadBytes(Saved(cache), cache).ok());
    ASSERT_EQ(cache.Report().shared_bytes, 0);
  }

  std::mt19937_64 random_;
  std::vector<LayerSpec> layers_;
  TestAllocator allocator_;
  std::vector<CacheSet> set_;  // one; goes before its allocator
  std::vector<Cache> twins_;
};

class ForkFamilies : public ::testing::TestWithParam<FamilyCase> {};

TEST_P(ForkFamilies, EqualDeepCopiesAndAreCountedOnce) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(testing::Message() << GetParam().spec << " seed " << seed);
    Family family(seed, GetParam());
    for (int step = 0; step < 120; ++step) {
      family.Step();
      family.ExpectCountedOnce();
      if (step % 8 == 7) family.ExpectTwins();
      if (HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Pipelines, ForkFamilies,
    ::testing::Values(FamilyCase{"none | kv=f16", 150}, FamilyCase{"none | kv=int8 | tail=9", 0},
                      FamilyCase{"random(budget=220) | k=center+turbo4, v=int4 | tail=10 | "
                                 "schedule=every(20)",
                                 0},
                      FamilyCase{"random(budget=250) | kv=int8 | cold(70)={kv=turbo3} | "
                                 "exact_sinks=3 | schedule=every(40)",
                                 130},
                      FamilyCase{"random(budget=250) | kv=center+int8 | cold(70)={kv=center+int4}",
                                 130},
                      FamilyCase{"none | k=channel(bits=2), v=int4 | tail=40", 150}));

}  // namespace
}  // namespace kvsieve::cache_test

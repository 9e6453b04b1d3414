#include "evict/top_k.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>

namespace kvsieve::evict {
namespace {

// The first histogram: sign, exponent and 3 bits of mantissa, so that a bin spans an eighth of an
// octave and few rows share the deciding one.
constexpr int kBinBits = 12;
constexpr int kBinShift = 32 - kBinBits;
constexpr int kBins = 1 << kBinBits;

struct Bin {
  std::uint32_t index = 0;
  std::int64_t above = 0;  // keys in higher bins
};

// The bin of the `rank`-th largest key (from 1).
Bin FindBin(std::span<const std::uint32_t> counts, std::int64_t rank) {
  Bin bin{static_cast<std::uint32_t>(counts.size()), 0};
  while (bin.index-- > 0) {
    if (bin.above + counts[bin.index] >= rank) break;
    bin.above += counts[bin.index];
  }
  return bin;
}

// The `rank`-th largest key (from 1). Reorders `keys`.
std::uint64_t KthLargest(std::span<std::uint64_t> keys, std::int64_t rank) {
  constexpr int kDigitBits = 8;
  constexpr std::size_t kFew = 128;  // below this a partial sort is faster than a histogram
  for (int shift = 64 - kDigitBits; shift >= 0 && keys.size() > kFew; shift -= kDigitBits) {
    std::array<std::uint32_t, 1 << kDigitBits> counts{};
    const auto digit = [shift](std::uint64_t key) { return (key >> shift) & 0xFFU; };
    for (const std::uint64_t key : keys) ++counts[digit(key)];
    const Bin bin = FindBin(counts, rank);
    if (counts[bin.index] < keys.size()) {
      const auto end = std::partition(keys.begin(), keys.end(),
                                      [&](std::uint64_t key) { return digit(key) == bin.index; });
      keys = keys.first(static_cast<std::size_t>(end - keys.begin()));
    }
    rank -= bin.above;
  }
  const auto nth = keys.begin() + (rank - 1);
  std::nth_element(keys.begin(), nth, keys.end(), std::greater<>());
  return *nth;
}

// Keys of the rows outside `kept`, and the bin of the `best`-th largest.
Bin MakeKeys(std::span<const float> smoothed, std::span<const RowRange> kept, std::int64_t best,
             std::span<std::uint32_t> keys) {
  // Two histograms in turn: neighbours often share a bin, and an increment must not wait for the
  // one before it.
  std::array<std::uint32_t, kBins> even{};
  std::array<std::uint32_t, kBins> odd{};
  ForEachGap(kept, static_cast<RowIndex>(smoothed.size()), [&](RowRange gap) {
    for (RowIndex row = gap.begin; row < gap.end; ++row) keys[row] = OrderKey(smoothed[row]);
    RowIndex row = gap.begin;
    for (; row + 1 < gap.end; row += 2) {
      ++even[keys[row] >> kBinShift];
      ++odd[keys[row + 1] >> kBinShift];
    }
    if (row < gap.end) ++even[keys[row] >> kBinShift];
  });
  for (int i = 0; i < kBins; ++i) even[i] += odd[i];
  return FindBin(even, best);
}

// Where among the rows of the deciding bin the cut runs.
struct Cut {
  std::uint64_t key = 0;         // smoothed key, raw key
  std::int64_t equal_begin = 0;  // of the rows with exactly this key, in position order,
  std::int64_t equal_end = 0;    // [equal_begin, equal_end) are chosen
};

std::uint64_t FullKey(std::uint32_t key, float raw) {
  return (std::uint64_t{key} << 32) | OrderKey(raw);
}

// scratch->survivors: rows of the deciding bin and above. need: rows to take from that bin.
Cut FindCut(const HeadScores& scores, const Bin& bin, std::int64_t need, Ties ties,
            TopKScratch* scratch) {
  scratch->contested.clear();
  for (const std::uint32_t row : scratch->survivors) {
    const std::uint32_t key = scratch->keys[row];
    if (key >> kBinShift == bin.index) {
      scratch->contested.push_back(FullKey(key, scores.raw[row]));
    }
  }
  Cut cut{KthLargest(scratch->contested, need)};
  std::int64_t above = 0;
  std::int64_t equal = 0;
  for (const std::uint64_t key : scratch->contested) {
    above += key > cut.key;
    equal += key == cut.key;
  }
  const std::int64_t taken = need - above;
  cut.equal_begin = ties == Ties::kLowPosition ? 0 : equal - taken;
  cut.equal_end = cut.equal_begin + taken;
  return cut;
}

}  // namespace

void MergeRanges(std::vector<RowRange>* ranges) {
  std::sort(ranges->begin(), ranges->end(),
            [](const RowRange& a, const RowRange& b) { return a.begin < b.begin; });
  std::size_t merged = 0;
  for (const RowRange range : *ranges) {
    if (range.rows() <= 0) continue;
    if (merged > 0 && range.begin <= (*ranges)[merged - 1].end) {
      (*ranges)[merged - 1].end = std::max((*ranges)[merged - 1].end, range.end);
    } else {
      (*ranges)[merged++] = range;
    }
  }
  ranges->resize(merged);
}

void SelectRows(const HeadScores& scores, std::span<const RowRange> kept, std::int64_t best,
                Ties ties, TopKScratch* scratch, std::vector<RowIndex>* rows) {
  const auto total = static_cast<RowIndex>(scores.smoothed.size());
  std::size_t next_kept = 0;
  const auto emit_kept_before = [&](RowIndex row) {
    for (; next_kept < kept.size() && kept[next_kept].begin < row; ++next_kept) {
      for (RowIndex r = kept[next_kept].begin; r < kept[next_kept].end; ++r) rows->push_back(r);
    }
  };
  constexpr RowIndex kEnd = INT64_MAX;
  if (best <= 0) return emit_kept_before(kEnd);  // scores may be empty: nothing was scored

  scratch->keys.resize(scores.smoothed.size());
  const Bin bin = MakeKeys(scores.smoothed, kept, best, scratch->keys);
  const std::uint32_t lowest = bin.index << kBinShift;
  scratch->survivors.resize(scores.smoothed.size() + 1);  // the branch-free append writes one past
  std::size_t survivors = 0;
  ForEachGap(kept, total, [&](RowRange gap) {
    for (RowIndex row = gap.begin; row < gap.end; ++row) {
      scratch->survivors[survivors] = static_cast<std::uint32_t>(row);
      survivors += scratch->keys[row] >= lowest ? 1 : 0;
    }
  });
  scratch->survivors.resize(survivors);

  const Cut cut = FindCut(scores, bin, best - bin.above, ties, scratch);
  std::int64_t equal = 0;
  for (const std::uint32_t row : scratch->survivors) {
    const std::uint64_t key = FullKey(scratch->keys[row], scores.raw[row]);
    if (key < cut.key) continue;
    if (key == cut.key) {
      const std::int64_t place = equal++;
      if (place < cut.equal_begin || place >= cut.equal_end) continue;
    }
    emit_kept_before(row);
    rows->push_back(row);
  }
  emit_kept_before(kEnd);
}

}  // namespace kvsieve::evict

#include "lib/head_bytes.h"

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "lib/byte_bounds.h"
#include "lib/kept_positions.h"
#include "lib/segments.h"

namespace kvsieve {
namespace {

// A list with gaps may have gone through other forms while it grew.
ByteBounds ListBytes(std::int64_t rows, const RowBounds& span, bool grew) {
  ByteBounds bounds;
  if (rows == 0) return bounds;
  const auto of = [&](std::int64_t s) {
    return PositionList::BytesFor({rows, 0, static_cast<TokenPos>(s - 1)});
  };
  of(span.least).AddTo(bounds.least);
  const bool gaps = span.most > rows;
  // A bitmap shorter than a position has the room of one.
  constexpr std::int64_t kMostSpare = sizeof(TokenPos) - 1;
  (grew && gaps ? PositionList::MostBytesFor(rows, span.most) : of(span.most)).AddTo(bounds.most);
  if (gaps) {
    bounds.least.reserved_bytes = 0;
    bounds.most.reserved_bytes = std::max(bounds.most.reserved_bytes, kMostSpare);
  }
  return bounds;
}

}  // namespace

ByteReport HeadBytes::BlockCost() const {
  ByteReport cost = Tier::BytesOf(setting_.store(), 2 * kBlockRows, {});
  cost += Tier::BytesOf(setting_.store(), kBlockRows, {}) * -1;
  AddRows(setting_.shape, kBlockRows, cost);
  return cost;
}

// One past the exact sinks, once so many tokens came.
std::int64_t HeadBytes::sinks_end(std::int64_t tokens) const {
  return std::min(setting_.exact_sinks, tokens);
}

// How many of the rows kept are exact sinks.
RowBounds HeadBytes::SinksOf(std::int64_t rows, std::span<const PositionRange> certain) const {
  const std::int64_t sinks_end = this->sinks_end(setting_.prompt_tokens);
  const PositionRange sinks = {0, static_cast<TokenPos>(sinks_end)};
  const PositionRange others = {sinks.end, static_cast<TokenPos>(setting_.prompt_tokens)};
  const std::int64_t certain_sinks = KeptPositions::CertainRows(sinks, certain);
  return {std::max(certain_sinks, rows - (others.end - others.begin)),
          std::min(sinks_end, rows - KeptPositions::CertainRows(others, certain))};
}

HeadBytes::Counts HeadBytes::AfterPrefill(std::int64_t sinks, std::int64_t rows) const {
  Counts counts{sinks, 0, 0};
  counts.tier = SealedRows(rows - sinks, setting_.tail, setting_.group_rows());
  counts.tail = rows - sinks - counts.tier;
  return counts;
}

// Rows go to the sinks while there is room, then through the tail.
HeadBytes::Counts HeadBytes::AfterDecode(Counts counts) const {
  const std::int64_t to_sinks = sinks_end(end()) - sinks_end(setting_.prompt_tokens);
  counts.sinks += to_sinks;
  counts.tail += setting_.decode_tokens - to_sinks;
  const std::int64_t sealed = SealedRows(counts.tail, setting_.tail, setting_.group_rows());
  counts.tier += sealed;
  counts.tail -= sealed;
  return counts;
}

// Token by token, as DecodeAppend goes: rows enter, groups leave the tail, rows fall out of the
// window, those of the tier in whole blocks. Once there are no sinks, what follows depends on three
// numbers alone: where they return after a block of tokens, the blocks to come change nothing.
HeadBytes::Counts HeadBytes::AfterSliding(Counts counts) const {
  const std::int64_t window = setting_.layer.sliding_window;
  const std::int64_t kept = counts.sinks + counts.tier + counts.tail;
  std::int64_t first_sink = setting_.prompt_tokens - kept;
  std::int64_t first_in_tier = first_sink + counts.sinks;
  std::array<std::int64_t, 3> block_before = {-1, -1, -1};
  for (std::int64_t token = setting_.prompt_tokens; token < end(); ++token) {
    if ((token - setting_.prompt_tokens) % kBlockRows == 0) {
      const std::array<std::int64_t, 3> now = {counts.tier, counts.tail, token - first_in_tier};
      const bool sinks_are_over = counts.sinks == 0 && token >= setting_.exact_sinks;
      if (sinks_are_over && now == block_before) {
        const std::int64_t skipped = (end() - 1 - token) / kBlockRows * kBlockRows;
        token += skipped;
        first_in_tier += skipped;
      }
      block_before = now;
    }
    const bool is_sink = token < setting_.exact_sinks;
    if (is_sink) first_in_tier = token + 1;
    ++(is_sink ? counts.sinks : counts.tail);
    const std::int64_t sealed = SealedRows(counts.tail, setting_.tail, setting_.group_rows());
    counts.tail -= sealed;
    if (counts.tier == 0) first_in_tier = token + 1 - counts.tail - sealed;
    counts.tier += sealed;
    const std::int64_t oldest = token + 1 - window;
    const std::int64_t old_sinks = std::clamp<std::int64_t>(oldest - first_sink, 0, counts.sinks);
    first_sink += old_sinks;
    counts.sinks -= old_sinks;
    counts.tail = std::min(counts.tail, window);
    while (counts.tier >= kBlockRows && first_in_tier + kBlockRows <= oldest) {
      first_in_tier += kBlockRows;
      counts.tier -= kBlockRows;
    }
  }
  return counts;
}

// Beside exact sinks and the tail, protected rows are never cold. The newest of these lie in the
// tail, others may.
RowBounds HeadBytes::Coldable(std::int64_t sinks, std::int64_t rows,
                              const HeadForecast& forecast) const {
  const std::vector<PositionRange>& warm = forecast.never_cold;
  const auto tokens = static_cast<TokenPos>(setting_.prompt_tokens);
  const auto first_other = static_cast<TokenPos>(sinks_end(setting_.prompt_tokens));
  const std::int64_t warm_sinks = KeptPositions::CertainRows({0, first_other}, warm);
  const std::int64_t warm_others = KeptPositions::CertainRows({first_other, tokens}, warm);
  const std::int64_t newest =
      !warm.empty() && warm.back().end == tokens ? tokens - warm.back().begin : 0;
  const std::int64_t cold = rows - std::max(sinks, warm_sinks) - warm_others;
  const std::int64_t tail = std::min(setting_.tail, rows - sinks);
  return {std::max<std::int64_t>(0, cold - (tail - std::min(tail, newest))),
          std::max<std::int64_t>(0, cold - (tail - std::min(tail, warm_others)))};
}

// The coldest tier first.
HeadBytes::Cold HeadBytes::ColdOf(std::int64_t coldable) const {
  Cold cold(setting_.stores.size() - 1);
  for (std::size_t tier = cold.size(); tier > 0; --tier) {
    cold[tier - 1] = std::min(coldable, setting_.cold_rows[tier - 1]);
    coldable -= cold[tier - 1];
  }
  return cold;
}

ByteReport HeadBytes::RowBytes(const Counts& counts, const Cold& cold) const {
  ByteReport report = ExactRows::BytesOf(setting_.shape, counts.sinks + counts.tail, {});
  std::int64_t warm = counts.tier;
  for (std::size_t t = 0; t < cold.size(); ++t) {
    report += Tier::BytesOf(setting_.stores[t + 1], cold[t], {});
    warm -= cold[t];
  }
  report += Tier::BytesOf(setting_.store(), warm, {});
  AddRows(setting_.shape, counts.sinks + counts.tier + counts.tail, report);
  return report;
}

// Sinks that came one by one may have room for half as many more, and those of a sliding layer for
// the ones that went. The tail's buffers hold, beside its rows, as many that left it at most, and
// grew by half: three times its rows.
ByteBounds HeadBytes::Room(const Counts& counts) const {
  ByteBounds room;
  if (setting_.decode_tokens == 0) return room;
  const std::int64_t tail = std::min(end(), setting_.tail + setting_.group_rows() - 1);
  std::int64_t rows = 3 * tail - counts.tail;
  const bool sinks_change =
      setting_.layer.sliding_window > 0 || setting_.prompt_tokens < setting_.exact_sinks;
  if (sinks_change) rows += 2 * sinks_end(end()) - counts.sinks;
  room.most.reserved_bytes = ExactRows::BytesOf(setting_.shape, rows, {}).payload_bytes;
  return room;
}

// before: right after the prompt.
ByteBounds HeadBytes::Positions(const Counts& before, const Counts& counts, const Cold& cold,
                                std::span<const PositionRange> certain) const {
  const auto prompt_end = static_cast<TokenPos>(setting_.prompt_tokens);
  const auto all_end = static_cast<TokenPos>(end());
  std::vector<PositionRange> all(certain.begin(), certain.end());
  if (prompt_end < all_end) all.push_back({prompt_end, all_end});
  const bool grew = setting_.decode_tokens > 0;
  const auto sinks_end = static_cast<TokenPos>(this->sinks_end(end()));
  ByteBounds bounds;
  if (counts.sinks > 0) {
    const KeptPositions sinks({0, sinks_end}, all, counts.sinks);
    bounds = ListBytes(counts.sinks, sinks.Span(0, counts.sinks), grew);
  }
  const KeptPositions rest({sinks_end, all_end}, all, counts.tier + counts.tail);
  if (counts.tier > 0) {
    // Scores decide which of them are cold.
    RowBounds span = rest.Span(0, counts.tier);
    std::int64_t warm = counts.tier;
    for (const std::int64_t rows : cold) {
      bounds = bounds + ListBytes(rows, {rows, span.most}, false);
      warm -= rows;
    }
    if (warm < counts.tier) span.least = warm;
    bounds = bounds + ListBytes(warm, span, grew);
  }
  if (counts.tail > 0) {
    // Gaps that left it since have left their room behind.
    RowBounds span = rest.Span(counts.tier, counts.tail);
    ByteBounds tail = ListBytes(counts.tail, span, grew);
    if (grew && before.tail > 0 && rest.Span(before.tier, before.tail).most > before.tail) {
      tail.most.reserved_bytes += PositionList::MostBytesFor(before.tail + 1, all_end).resident;
    }
    bounds = bounds + tail;
  }
  return bounds;
}

// Of up to `rows` rows in all, wherever they lie.
ByteBounds HeadBytes::AnyPositions(std::int64_t rows) const {
  ByteBounds bounds;
  const std::int64_t tail = setting_.tail + setting_.group_rows();
  for (const std::int64_t segment : {sinks_end(end()), rows, std::min(rows, tail)}) {
    PositionList::MostBytesFor(segment, end()).AddTo(bounds.most);
  }
  return bounds;
}

std::int64_t HeadBytes::Horizon(const RowBounds& rows) const {
  const std::int64_t group = setting_.group_rows();
  const std::int64_t beyond_exact =
      setting_.exact_sinks + std::max(rows.least, setting_.tail + group);
  return std::min(rows.most, beyond_exact + kBlockRows + group);
}

ByteBounds HeadBytes::Kept(std::int64_t sinks, std::int64_t rows, const Cold& cold,
                           const HeadForecast& forecast) const {
  const Counts before = AfterPrefill(sinks, rows);
  const Counts counts = AfterDecode(before);
  const ByteBounds head = Exactly(RowBytes(counts, cold)) + Room(counts);
  const bool known = forecast.rows.least == forecast.rows.most;
  return known ? head + Positions(before, counts, cold, forecast.certain) : head;
}

ByteBounds HeadBytes::Kept(const HeadForecast& forecast) const {
  const ByteReport block = BlockCost();
  std::optional<ByteBounds> bounds;
  for (std::int64_t rows = forecast.rows.least; rows <= Horizon(forecast.rows); ++rows) {
    const ByteReport shared = block * -rows;
    const RowBounds sinks = SinksOf(rows, forecast.certain);
    for (std::int64_t s = sinks.least; s <= sinks.most; ++s) {
      RowBounds coldable;
      if (setting_.stores.size() > 1) coldable = Coldable(s, rows, forecast);
      for (std::int64_t c = coldable.least; c <= coldable.most; ++c) {
        const ByteBounds head = Kept(s, rows, ColdOf(c), forecast);
        bounds = Cover(bounds, {head.least * kBlockRows + shared, head.most * kBlockRows + shared});
      }
    }
  }
  if (forecast.rows.least == forecast.rows.most) return *bounds;
  const ByteBounds positions = AnyPositions(forecast.rows.most + setting_.decode_tokens);
  return *bounds + ByteBounds{positions.least * kBlockRows, positions.most * kBlockRows};
}

ByteBounds HeadBytes::Sliding() const {
  const std::int64_t rows = FullRows(setting_.layer, setting_.prompt_tokens);
  const std::int64_t first = setting_.prompt_tokens - rows;
  const std::int64_t sinks = std::max<std::int64_t>(0, sinks_end(setting_.prompt_tokens) - first);
  const Counts counts = AfterSliding(AfterPrefill(sinks, rows));
  ByteBounds head = Exactly(RowBytes(counts, ColdOf(0))) + Room(counts);
  for (const std::int64_t segment : {counts.sinks, counts.tier, counts.tail}) {
    head = head + ListBytes(segment, {segment, segment}, true);
  }
  return {head.least * kBlockRows, head.most * kBlockRows};
}

}  // namespace kvsieve

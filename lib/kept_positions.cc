#include "lib/kept_positions.h"

#include <algorithm>

#include "kvsieve/result.h"

namespace kvsieve {
namespace {

std::vector<PositionRange> Inside(PositionRange domain, std::span<const PositionRange> ranges) {
  std::vector<PositionRange> inside;
  for (const PositionRange& range : ranges) {
    const PositionRange part = {std::max(range.begin, domain.begin),
                                std::min(range.end, domain.end)};
    if (part.begin < part.end) inside.push_back(part);
  }
  return inside;
}

std::int64_t Rows(std::span<const PositionRange> ranges) {
  std::int64_t rows = 0;
  for (const PositionRange& range : ranges) rows += range.end - range.begin;
  return rows;
}

// The i-th row of `ranges`.
TokenPos RowOf(std::span<const PositionRange> ranges, std::int64_t i) {
  for (const PositionRange& range : ranges) {
    if (i < range.end - range.begin) return range.begin + static_cast<TokenPos>(i);
    i -= range.end - range.begin;
  }
  KVS_DCHECK(false);
  return 0;
}

}  // namespace

std::int64_t KeptPositions::CertainRows(PositionRange domain,
                                        std::span<const PositionRange> certain) {
  return Rows(Inside(domain, certain));
}

KeptPositions::KeptPositions(PositionRange domain, std::span<const PositionRange> certain,
                             std::int64_t rows)
    : domain_(domain), certain_(Inside(domain, certain)) {
  const std::int64_t chosen = rows - Rows(certain_);
  KVS_DCHECK(chosen >= 0 && rows <= domain.end - domain.begin);
  low_end_ = domain.begin;
  std::int64_t left = chosen;
  for (std::size_t i = 0; left > 0; ++i) {
    const TokenPos gap_end = i < certain_.size() ? certain_[i].begin : domain.end;
    const std::int64_t taken = std::min<std::int64_t>(left, gap_end - low_end_);
    left -= taken;
    low_end_ = left > 0 ? certain_[i].end : low_end_ + static_cast<TokenPos>(taken);
  }
  high_begin_ = domain.end;
  left = chosen;
  for (std::size_t i = certain_.size(); left > 0; --i) {
    const TokenPos gap_begin = i > 0 ? certain_[i - 1].end : domain.begin;
    const std::int64_t taken = std::min<std::int64_t>(left, high_begin_ - gap_begin);
    left -= taken;
    high_begin_ = left > 0 ? certain_[i - 1].begin : high_begin_ - static_cast<TokenPos>(taken);
  }
}

TokenPos KeptPositions::Lowest(std::int64_t i) const {
  const std::int64_t before = low_end_ - domain_.begin;
  if (i < before) return domain_.begin + static_cast<TokenPos>(i);
  return RowOf(Inside({low_end_, domain_.end}, certain_), i - before);
}

TokenPos KeptPositions::Highest(std::int64_t i) const {
  const std::vector<PositionRange> before = Inside({domain_.begin, high_begin_}, certain_);
  const std::int64_t certain_before = Rows(before);
  if (i < certain_before) return RowOf(before, i);
  return high_begin_ + static_cast<TokenPos>(i - certain_before);
}

RowBounds KeptPositions::Span(std::int64_t begin, std::int64_t count) const {
  const std::int64_t last = begin + count - 1;
  return {std::max<std::int64_t>(count, std::int64_t{Lowest(last)} - Highest(begin) + 1),
          std::int64_t{Highest(last)} - Lowest(begin) + 1};
}

}  // namespace kvsieve

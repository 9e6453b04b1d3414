#include "lib/seen_positions.h"

#include <algorithm>

namespace kvsieve {

std::int64_t SeenPositions::TokensBefore(TokenPos position) const {
  const auto after = std::lower_bound(runs_.begin(), runs_.end(), position,
                                      [](const Run& run, TokenPos end) { return run.first < end; });
  if (after == runs_.begin()) return 0;
  const Run& run = *(after - 1);
  const std::int64_t through_run = after == runs_.end() ? tokens_ : after->tokens_before;
  return std::min(through_run, run.tokens_before + position - run.first);
}

void SeenPositions::Reserve(std::span<const TokenPos> more) {
  std::size_t runs = runs_.size();
  std::int64_t expected = next();
  for (const TokenPos position : more) {
    if (position != expected) ++runs;
    expected = std::int64_t{position} + 1;
  }
  // By half, for an engine that leaves a gap with every append.
  if (runs > runs_.capacity()) runs_.reserve(runs + runs / 2);
}

void SeenPositions::Append(std::span<const TokenPos> more) {
  for (const TokenPos position : more) {
    if (position != next()) runs_.push_back({position, tokens_});
    ++tokens_;
  }
}

void SeenPositions::TrimTo(TokenPos end) {
  tokens_ = TokensBefore(end);
  while (!runs_.empty() && runs_.back().tokens_before >= tokens_) runs_.pop_back();
}

}  // namespace kvsieve

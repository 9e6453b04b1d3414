#include "kvsieve/keep_set.h"

#include "kvsieve/str_cat.h"

namespace kvsieve {

Result<KeepSet> KeepSet::Create(std::vector<std::int64_t> head_begin,
                                std::vector<TokenPos> positions, std::vector<std::uint8_t> tiers) {
  const auto total = static_cast<std::int64_t>(positions.size());
  if (head_begin.empty() || head_begin.front() != 0 || head_begin.back() != total) {
    return Status::Invalid(
        StrCat("keep set: head_begin must run from 0 to the ", total, " positions given"));
  }
  if (!tiers.empty() && tiers.size() != positions.size()) {
    return Status::Invalid(StrCat("keep set: ", tiers.size(), " tiers for ", total, " positions"));
  }
  for (std::size_t head = 0; head + 1 < head_begin.size(); ++head) {
    const std::int64_t begin = head_begin[head];
    const std::int64_t end = head_begin[head + 1];
    if (begin > end || end > total) {
      return Status::Invalid(StrCat("keep set: head_begin decreases at head ", head));
    }
    for (std::int64_t i = begin; i < end; ++i) {
      if (positions[i] < 0 || (i > begin && positions[i] <= positions[i - 1])) {
        return Status::Invalid(StrCat("keep set: head ", head, " position ", positions[i],
                                      " is negative or not greater than the one before it"));
      }
    }
  }
  KeepSet set;
  set.head_begin_ = std::move(head_begin);
  set.positions_ = std::move(positions);
  set.tiers_ = std::move(tiers);
  return set;
}

}  // namespace kvsieve

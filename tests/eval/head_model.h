// What one head of a cache must hold, as a plain model: sinks, tail, and rows that were encoded
// together.
#ifndef KVSIEVE_TESTS_EVAL_HEAD_MODEL_H_
#define KVSIEVE_TESTS_EVAL_HEAD_MODEL_H_

#include <cstdint>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "kvsieve/types.h"

namespace kvsieve::eval {

// Rows that were encoded together.
struct Group {
  std::vector<TokenPos> positions;  // of those that are left
};

class HeadModel {
 public:
  HeadModel(std::int64_t tail, int group_rows) : least_tail_(tail), group_(group_rows) {}

  // Before FinishPrefill nothing is stored; afterwards rows come one by one.
  void TakePrompt(std::span<const TokenPos> kept, TokenPos sinks_end) {
    for (const TokenPos position : kept) (position < sinks_end ? sinks_ : tail_).insert(position);
    Seal();
  }
  void Append(TokenPos position) {
    tail_.insert(position);
    Seal();
  }
  void Evict(std::span<const TokenPos> kept) {
    const std::set<TokenPos> stay(kept.begin(), kept.end());
    const auto gone = [&](TokenPos position) { return !stay.contains(position); };
    std::erase_if(sinks_, gone);
    std::erase_if(tail_, gone);
    for (Group& group : groups_) std::erase_if(group.positions, gone);
  }

  bool IsExact(TokenPos position) const {
    return sinks_.contains(position) || tail_.contains(position);
  }
  std::int64_t exact_rows() const { return std::ssize(sinks_) + std::ssize(tail_); }
  std::span<const Group> groups() const { return groups_; }
  // Groups sealed since the last call.
  std::vector<Group> TakeSealed() { return std::exchange(sealed_, {}); }

 private:
  void Seal() {
    while (std::ssize(tail_) >= least_tail_ + group_) {
      Group group;
      for (int i = 0; i < group_; ++i) {
        group.positions.push_back(tail_.extract(tail_.begin()).value());
      }
      sealed_.push_back(group);
      groups_.push_back(std::move(group));
    }
  }

  std::int64_t least_tail_;
  int group_;
  std::set<TokenPos> sinks_;
  std::set<TokenPos> tail_;
  std::vector<Group> groups_;
  std::vector<Group> sealed_;
};

}  // namespace kvsieve::eval

#endif  // KVSIEVE_TESTS_EVAL_HEAD_MODEL_H_

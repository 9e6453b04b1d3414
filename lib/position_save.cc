// Positions of a saved cache: of the rows of a segment, and of all tokens that a layer saw.
#include <algorithm>
#include <bit>
#include <limits>

#include "lib/position_list.h"
#include "lib/seen_positions.h"
#include "lib/state_stream.h"

namespace kvsieve {
namespace {

// As Cache::Append allows: next_position() is one past it.
constexpr TokenPos kMaxPosition = std::numeric_limits<TokenPos>::max() - 1;

// Then the bitmap or the list; a run has no more.
struct PositionRecord {
  std::int64_t rows;
  TokenPos first;
  TokenPos last;
  TokenPos base;  // of a bitmap; 0 otherwise
  std::uint32_t form;
};

// A run of tokens without a gap.
struct RunRecord {
  TokenPos first;
  TokenPos last;
};

}  // namespace

void PositionList::Save(StateWriter& out) const {
  if (rows_ == 0) {
    out.Put(PositionRecord{});
    return;
  }
  const TokenPos base = store_.form == Form::kBitmap ? store_.base : 0;
  out.Put(PositionRecord{rows_, first_, last_, base, static_cast<std::uint32_t>(store_.form)});
  if (store_.form == Form::kRun) return;
  out.Bytes(store_.body.data(), static_cast<std::size_t>(store_.body_bytes(rows_, last_)));
}

Result<PositionList> PositionList::Load(Allocator& allocator, StateReader& in) {
  PositionRecord record;
  KVS_RETURN_IF_ERROR(in.Get(&record));
  const auto [rows, first, last, base, form] = record;
  PositionList list;
  if (rows == 0) {
    if (first == 0 && last == 0 && base == 0 && form == 0) return list;
    return BadState("positions", "no rows, and yet a first or last one");
  }
  const std::int64_t span = std::int64_t{last} - first + 1;
  if (rows < 0 || first < 0 || last > kMaxPosition || rows > span) {
    return BadState("positions", StrCat(rows, " rows from ", first, " to ", last));
  }
  if (form > static_cast<std::uint32_t>(Form::kList)) return BadState("positions", "unknown form");
  list.rows_ = rows;
  list.first_ = first;
  list.last_ = last;
  Store& store = list.store_;
  store.form = static_cast<Form>(form);
  store.base = store.form == Form::kBitmap ? base : first;
  if (store.form != Form::kBitmap && base != 0) return BadState("positions", "base without bitmap");
  if (store.form == Form::kBitmap && (base < 0 || first < base || first - base >= 8)) {
    return BadState("positions", StrCat("a bitmap from ", base, " for rows from ", first));
  }
  if (store.form != Form::kRun) {
    const auto bytes = static_cast<std::uint64_t>(store.body_bytes(rows, last));
    KVS_RETURN_IF_ERROR(in.NeedLeft("positions", bytes, 1));
  }
  KVS_RETURN_IF_ERROR(store.Grow(allocator, {rows, first, last}, {}));
  if (store.form == Form::kBitmap) KVS_RETURN_IF_ERROR(list.LoadBitmap(in));
  if (store.form == Form::kList) KVS_RETURN_IF_ERROR(list.LoadList(in));
  if (store.form == Form::kRun) {
    if (rows != span) return BadState("positions", StrCat(rows, " rows in a run of ", span));
    store.Put(0, first);
  }
  return list;
}

// The marks are made again.
Status PositionList::LoadBitmap(StateReader& in) {
  const std::int64_t bytes = store_.body_bytes(rows_, last_);
  KVS_RETURN_IF_ERROR(in.Bytes(store_.body.data(), static_cast<std::size_t>(bytes)));
  TokenPos* marks = store_.marks.As<TokenPos>();
  std::int64_t rows = 0;
  std::int64_t lowest = 0;
  std::int64_t highest = 0;
  for (std::int64_t at = 0; at < bytes; ++at) {
    for (unsigned bits = store_.body.data()[at]; bits != 0; bits &= bits - 1) {
      highest = store_.base + at * 8 + std::countr_zero(bits);
      if (rows == 0) lowest = highest;
      if (rows % kBlockRows == 0 && rows < rows_) {
        marks[rows / kBlockRows] = static_cast<TokenPos>(highest);
      }
      ++rows;
    }
  }
  if (rows == rows_ && lowest == first_ && highest == last_) return Status::Ok();
  return BadState("positions", StrCat("a bitmap of ", rows, " rows from ", lowest, " to ", highest,
                                      ", expected ", rows_, " from ", first_, " to ", last_));
}

Status PositionList::LoadList(StateReader& in) {
  TokenPos* list = store_.body.As<TokenPos>();
  KVS_RETURN_IF_ERROR(in.Bytes(list, static_cast<std::size_t>(rows_) * sizeof(TokenPos)));
  for (RowIndex r = 1; r < rows_; ++r) {
    if (list[r] <= list[r - 1]) {
      return BadState("positions",
                      StrCat(list[r], " of row ", r, " does not follow ", list[r - 1]));
    }
  }
  if (list[0] == first_ && list[rows_ - 1] == last_) return Status::Ok();
  return BadState("positions", StrCat("a list from ", list[0], " to ", list[rows_ - 1],
                                      ", expected ", first_, " to ", last_));
}

bool SeenPositions::HasAll(std::span<const TokenPos> positions) const {
  if (positions.empty()) return true;
  const auto after = std::upper_bound(runs_.begin(), runs_.end(), positions.front(),
                                      [](TokenPos p, const Run& run) { return p < run.first; });
  if (after == runs_.begin()) return false;
  auto run = static_cast<std::size_t>(after - runs_.begin()) - 1;
  for (const TokenPos position : positions) {
    while (run + 1 < runs_.size() && runs_[run + 1].first <= position) ++run;
    if (position >= end_of(run)) return false;
  }
  return true;
}

void SeenPositions::Save(StateWriter& out) const {
  out.Put(static_cast<std::uint64_t>(runs_.size()));
  for (std::size_t r = 0; r < runs_.size(); ++r) {
    out.Put(RunRecord{runs_[r].first, static_cast<TokenPos>(end_of(r) - 1)});
  }
}

Result<SeenPositions> SeenPositions::Load(StateReader& in) {
  std::uint64_t count = 0;
  KVS_RETURN_IF_ERROR(in.Get(&count));
  KVS_RETURN_IF_ERROR(in.NeedLeft("tokens seen", count, sizeof(RunRecord)));
  SeenPositions seen;
  seen.runs_.reserve(count);
  for (std::uint64_t r = 0; r < count; ++r) {
    RunRecord run;
    KVS_RETURN_IF_ERROR(in.Get(&run));
    // A run that goes on where the last one ended would be part of it.
    if (run.first <= seen.next() || run.first < 0 || run.last < run.first ||
        run.last > kMaxPosition) {
      return BadState("tokens seen", StrCat("a run from ", run.first, " to ", run.last));
    }
    seen.runs_.push_back({run.first, seen.tokens_});
    seen.tokens_ += std::int64_t{run.last} - run.first + 1;
  }
  return seen;
}

}  // namespace kvsieve

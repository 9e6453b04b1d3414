// Positions of a saved cache: of the rows of a segment, and of all tokens that a layer saw.
#include <algorithm>
#include <bit>
#include <limits>
#include <vector>

#include "lib/position_list.h"
#include "lib/position_store.h"
#include "lib/seen_positions.h"
#include "lib/state_stream.h"

namespace kvsieve {
namespace {

using Kind = PositionForm::Kind;

// As Cache::Append allows: next_position() is one past it.
constexpr TokenPos kMaxPosition = std::numeric_limits<TokenPos>::max() - 1;

// Then the bitmap, the list or the split; a run has no more.
struct PositionRecord {
  std::int64_t rows;
  TokenPos first;
  TokenPos last;
  TokenPos base;  // of a bitmap or a split; 0 otherwise
  std::uint16_t kind;
  std::uint16_t low_bits;
};

// A run of tokens without a gap.
struct RunRecord {
  TokenPos first;
  TokenPos last;
};

Status CheckRecord(const PositionRecord& record) {
  const auto [rows, first, last, base, kind, low_bits] = record;
  const std::int64_t span = std::int64_t{last} - first + 1;
  if (rows < 0 || first < 0 || last > kMaxPosition || rows > span) {
    return BadState("positions", StrCat(rows, " rows from ", first, " to ", last));
  }
  if (kind > static_cast<std::uint16_t>(Kind::kSplit) || low_bits > PositionForm::kMaxLowBits) {
    return BadState("positions", "unknown form");
  }
  const auto form = static_cast<Kind>(kind);
  if (low_bits != 0 && form != Kind::kSplit) return BadState("positions", "low bits without split");
  if (form == Kind::kRun || form == Kind::kList) {
    return base == 0 ? Status::Ok() : BadState("positions", "base without bitmap or split");
  }
  const std::int64_t most_before = form == Kind::kBitmap ? 8 : std::int64_t{1} << low_bits;
  if (base >= 0 && first >= base && first - base < most_before) return Status::Ok();
  return BadState("positions", StrCat(form == Kind::kBitmap ? "a bitmap" : "a split", " from ",
                                      base, " for rows from ", first));
}

}  // namespace

void PositionStore::Save(std::int64_t rows, TokenPos last, StateWriter& out) const {
  if (form_.kind == Kind::kRun) return;
  out.Bytes(body_.data(), static_cast<std::size_t>(body_bytes(rows, last)));
  if (form_.kind != Kind::kSplit) return;
  for (RowIndex begin = 0; begin < rows; begin += kBlockRows) {
    const std::int64_t bits = std::min<std::int64_t>(kBlockRows, rows - begin) * form_.low_bits;
    out.Bytes(blocks_.data() + begin / kBlockRows * stride(),
              static_cast<std::size_t>((bits + 7) / 8));
  }
}

// A store's memory is taken once its bytes are known to be there.
Status PositionStore::Load(Allocator& allocator, const PositionSpan& positions, StateReader& in) {
  if (form_.kind != Kind::kRun) {
    const auto bytes = static_cast<std::uint64_t>(body_bytes(positions.rows, positions.last));
    KVS_RETURN_IF_ERROR(in.NeedLeft("positions", bytes, 1));
  }
  if (form_.kind == Kind::kSplit) {
    KVS_RETURN_IF_ERROR(in.NeedLeft(
        "positions", static_cast<std::uint64_t>(positions.rows) * form_.low_bits / 8, 1));
  }
  KVS_RETURN_IF_ERROR(Grow(allocator, positions, {}));
  switch (form_.kind) {
    case Kind::kRun:
      if (positions.rows != positions.length()) {
        return BadState("positions",
                        StrCat(positions.rows, " rows in a run of ", positions.length()));
      }
      Put(0, positions.first);
      return Status::Ok();
    case Kind::kBitmap:
      return LoadBitmap(positions, in);
    case Kind::kList:
      return LoadList(positions, in);
    case Kind::kSplit:
      return LoadSplit(positions, in);
  }
  return Status::Ok();
}

// The marks are made again.
Status PositionStore::LoadBitmap(const PositionSpan& positions, StateReader& in) {
  const std::int64_t bytes = body_bytes(positions.rows, positions.last);
  KVS_RETURN_IF_ERROR(in.Bytes(body_.data(), static_cast<std::size_t>(bytes)));
  TokenPos* marks = blocks_.As<TokenPos>();
  std::int64_t rows = 0;
  std::int64_t lowest = 0;
  std::int64_t highest = 0;
  for (std::int64_t at = 0; at < bytes; ++at) {
    for (unsigned bits = body_.data()[at]; bits != 0; bits &= bits - 1) {
      highest = base_ + at * 8 + std::countr_zero(bits);
      if (rows == 0) lowest = highest;
      if (rows % kBlockRows == 0 && rows < positions.rows) {
        marks[rows / kBlockRows] = static_cast<TokenPos>(highest);
      }
      ++rows;
    }
  }
  if (rows == positions.rows && lowest == positions.first && highest == positions.last) {
    return Status::Ok();
  }
  return BadState("positions", StrCat("a bitmap of ", rows, " rows from ", lowest, " to ", highest,
                                      ", expected ", positions.rows, " from ", positions.first,
                                      " to ", positions.last));
}

Status PositionStore::LoadList(const PositionSpan& positions, StateReader& in) {
  TokenPos* list = body_.As<TokenPos>();
  KVS_RETURN_IF_ERROR(in.Bytes(list, static_cast<std::size_t>(positions.rows) * sizeof(TokenPos)));
  for (RowIndex r = 1; r < positions.rows; ++r) {
    if (list[r] <= list[r - 1]) {
      return BadState("positions",
                      StrCat(list[r], " of row ", r, " does not follow ", list[r - 1]));
    }
  }
  const TokenPos last = list[positions.rows - 1];
  if (list[0] == positions.first && last == positions.last) return Status::Ok();
  return BadState("positions", StrCat("a list from ", list[0], " to ", last, ", expected ",
                                      positions.first, " to ", positions.last));
}

// Once there are as many bits as rows, the first and the last where they must be, all others are
// of rows between these; then the low bits are judged by the positions that come out.
Status PositionStore::LoadSplit(const PositionSpan& positions, StateReader& in) {
  const std::int64_t bytes = body_bytes(positions.rows, positions.last);
  KVS_RETURN_IF_ERROR(in.Bytes(body_.data(), static_cast<std::size_t>(bytes)));
  std::int64_t rows = 0;
  std::int64_t first_bit = 0;
  std::int64_t last_bit = 0;
  for (std::int64_t at = 0; at < bytes; ++at) {
    for (unsigned bits = body_.data()[at]; bits != 0; bits &= bits - 1, ++rows) {
      last_bit = at * 8 + std::countr_zero(bits);
      if (rows == 0) first_bit = last_bit;
      if (rows % kBlockRows != 0 || rows >= positions.rows) continue;
      if (rows > 0) *mark_of(rows / kBlockRows) = static_cast<std::uint32_t>(last_bit);
    }
  }
  if (rows != positions.rows || first_bit != 0 ||
      last_bit != bit_of(positions.rows - 1, positions.last)) {
    return BadState("positions",
                    StrCat("high bits of ", rows, " rows, the last at ", last_bit, ", expected ",
                           positions.rows, ", at ", bit_of(positions.rows - 1, positions.last)));
  }
  TokenPos block[kBlockRows];
  TokenPos before = -1;
  for (RowIndex begin = 0; begin < rows; begin += kBlockRows) {
    const auto count = static_cast<int>(std::min<std::int64_t>(kBlockRows, rows - begin));
    const std::int64_t low_bits = std::int64_t{count} * form_.low_bits;
    std::uint8_t* lows = low_bits_of(begin / kBlockRows);
    KVS_RETURN_IF_ERROR(in.Bytes(lows, static_cast<std::size_t>((low_bits + 7) / 8)));
    if (low_bits % 8 != 0 && lows[low_bits / 8] >> (low_bits % 8) != 0) {
      return BadState("positions", "low bits of no row");
    }
    Read(begin, count, block);
    for (int i = 0; i < count; before = block[i], ++i) {
      if (block[i] > before && (begin + i > 0 || block[i] == positions.first)) continue;
      return BadState("positions",
                      StrCat(block[i], " of row ", begin + i, " does not follow ", before));
    }
  }
  if (before == positions.last) return Status::Ok();
  return BadState("positions", StrCat("they end at ", before, ", expected ", positions.last));
}

void PositionList::Save(StateWriter& out) const {
  if (rows_ == 0) {
    out.Put(PositionRecord{});
    return;
  }
  const auto [kind, low_bits] = store_.form();
  const bool has_base = kind == Kind::kBitmap || kind == Kind::kSplit;
  out.Put(PositionRecord{rows_, first_, last_, has_base ? store_.base() : 0,
                         static_cast<std::uint16_t>(kind), low_bits});
  store_.Save(rows_, last_, out);
}

// Format 1 knew no split: its lists are taken as this build would have made them.
Result<PositionList> PositionList::Load(Allocator& allocator, StateReader& in) {
  PositionRecord record;
  KVS_RETURN_IF_ERROR(in.Get(&record));
  const auto [rows, first, last, base, kind, low_bits] = record;
  PositionList list;
  if (rows == 0) {
    if (first == 0 && last == 0 && base == 0 && kind == 0 && low_bits == 0) return list;
    return BadState("positions", "no rows, and yet a first or last one");
  }
  KVS_RETURN_IF_ERROR(CheckRecord(record));
  list.rows_ = rows;
  list.first_ = first;
  list.last_ = last;
  list.store_ = PositionStore({static_cast<Kind>(kind), low_bits}, base);
  KVS_RETURN_IF_ERROR(list.store_.Load(allocator, {rows, first, last}, in));
  if (in.version() >= 2) return list;
  std::vector<TokenPos> positions(static_cast<std::size_t>(rows));
  list.ReadAll(positions.data());
  return Build(allocator, positions);
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

#include "lib/staging.h"

#include <algorithm>
#include <utility>

#include "kvsieve/float16.h"
#include "lib/row_copy.h"

namespace kvsieve {
namespace {

constexpr std::int64_t kMinPageRows = 256;

}  // namespace

std::int64_t Staging::PageRoom(std::int64_t rows) { return std::max(kMinPageRows, rows); }

Result<Staging::Page> Staging::NewPage(Allocator& allocator, RowIndex begin, std::int64_t room,
                                       std::size_t key_bytes, std::size_t value_bytes) {
  Page page;
  page.begin = begin;
  page.room = room;
  KVS_ASSIGN_OR_RETURN(page.keys, SharedBuffer::Allocate(allocator, key_bytes));
  KVS_ASSIGN_OR_RETURN(page.values, SharedBuffer::Allocate(allocator, value_bytes));
  return page;
}

Result<Staging::Page> Staging::CopyOf(Allocator& allocator, const Page& page) {
  KVS_ASSIGN_OR_RETURN(
      Page copy, NewPage(allocator, page.begin, page.room, page.keys.bytes(), page.values.bytes()));
  for (const Side side : {Side::kKey, Side::kValue}) {
    const SharedBuffer& from = page.buffer(side);
    std::copy_n(from.data(), from.bytes(), copy.buffer(side).data());
  }
  return copy;
}

Status Staging::AddRoom(Allocator& allocator, const RowShape& shape, int heads, std::int64_t rows) {
  const RowIndex end = pages_.empty() ? 0 : pages_.back().end();
  if (end >= rows_ + rows) return Status::Ok();
  const std::int64_t room = PageRoom(rows_ + rows - end);
  const auto page_rows = static_cast<std::size_t>(heads * room);
  KVS_ASSIGN_OR_RETURN(Page page,
                       NewPage(allocator, end, room, page_rows * shape.row_bytes(Side::kKey),
                               page_rows * shape.row_bytes(Side::kValue)));
  pages_.push_back(std::move(page));
  return Status::Ok();
}

const Staging::Page& Staging::PageOf(RowIndex r) const {
  const auto after = std::upper_bound(pages_.begin(), pages_.end(), r,
                                      [](RowIndex row, const Page& p) { return row < p.begin; });
  return *(after - 1);
}

const std::uint8_t* Staging::fresh_row(const RowShape& shape, Side side, int head,
                                       RowIndex r) const {
  const Page& page = PageOf(r);
  return page.buffer(shape.holder(side)).data() +
         static_cast<std::size_t>(head * page.room + r - page.begin) * shape.stride_bytes(side);
}

const std::uint8_t* Staging::row(const RowShape& shape, Side side, int head, RowIndex r) const {
  const RowIndex fresh = r - kept_rows(head);
  return fresh < 0 ? kept_[head].row(shape, side, r) : fresh_row(shape, side, head, fresh);
}

std::vector<TokenPos> Staging::Positions(int head) const {
  std::vector<TokenPos> positions(static_cast<std::size_t>(rows(head)));
  if (!kept_.empty()) kept_[head].positions().ReadAll(positions.data());
  std::copy_n(positions_.As<TokenPos>(), rows_, positions.begin() + kept_rows(head));
  return positions;
}

void Staging::ReadPositions(int head, RowIndex first, int count, TokenPos* out) const {
  const RowIndex kept = kept_rows(head);
  const auto from_kept = static_cast<int>(std::clamp<std::int64_t>(kept - first, 0, count));
  if (from_kept > 0) kept_[head].positions().Read(first, from_kept, out);
  if (from_kept == count) return;
  std::copy_n(positions_.As<TokenPos>() + (first + from_kept - kept), count - from_kept,
              out + from_kept);
}

void Staging::ReadRows(const RowShape& shape, Side side, int head, RowIndex first, int count,
                       float* out) const {
  const int dim = shape.dim(side);
  const RowIndex kept = kept_rows(head);
  for (int done = 0; done < count;) {
    const RowIndex at = first + done;
    // Rows of one piece are read together.
    RowIndex piece_end = kept;
    if (at >= kept) {
      const Page& page = PageOf(at - kept);
      piece_end = kept + page.end();
    }
    const int run = static_cast<int>(std::min<std::int64_t>(count - done, piece_end - at));
    shape.ReadRowMajor(side, row(shape, side, head, at), run, out + std::int64_t{done} * dim);
    done += run;
  }
}

// Copies one head's rows to slots [rows_, rows_ + rows.rows).
Status Staging::CopyHead(const RowShape& shape, Side side, const HeadsView& rows, int head,
                         NonFinitePolicy policy, RowTally* tally) {
  if (shape.row_bytes(side) == 0) return Status::Ok();
  KVS_DCHECK(rows.rows == 0 || !PageOf(rows_).keys.shared());
  for (std::int64_t r = 0; r < rows.rows; ++r) {
    auto* to = const_cast<std::uint8_t*>(fresh_row(shape, side, head, rows_ + r));
    KVS_RETURN_IF_ERROR(CopyCheckedRow(rows, side, head, r, policy, to, tally));
  }
  return Status::Ok();
}

Status Staging::Append(Allocator& allocator, const RowShape& shape, const HeadsView& keys,
                       const HeadsView& values, std::span<const TokenPos> positions,
                       NonFinitePolicy policy, std::int64_t* zeroed) {
  const auto count = static_cast<std::int64_t>(positions.size());
  const std::size_t pages_before = pages_.size();
  Page before;  // the last page, where it is shared and has room: rows go to a copy
  RowTally tally;
  const auto fill = [&]() -> Status {
    if (!pages_.empty() && pages_.back().end() > rows_ && pages_.back().keys.shared()) {
      KVS_ASSIGN_OR_RETURN(Page own, CopyOf(allocator, pages_.back()));
      before = std::exchange(pages_.back(), std::move(own));
    }
    KVS_RETURN_IF_ERROR(AddRoom(allocator, shape, keys.heads, count));
    for (int head = 0; head < keys.heads; ++head) {
      KVS_RETURN_IF_ERROR(CopyHead(shape, Side::kKey, keys, head, policy, &tally));
      KVS_RETURN_IF_ERROR(CopyHead(shape, Side::kValue, values, head, policy, &tally));
    }
    // Last, for what grew does not shrink again.
    return positions_.Grow(allocator, static_cast<std::size_t>(rows_ + count) * sizeof(TokenPos),
                           static_cast<std::size_t>(rows_) * sizeof(TokenPos));
  };
  Status status = NoThrow(fill);
  if (!status.ok()) {
    pages_.resize(pages_before);
    if (before.room > 0) pages_.back() = std::move(before);
    return status;
  }
  std::copy(positions.begin(), positions.end(), positions_.As<TokenPos>() + rows_);
  rows_ += count;
  *zeroed += tally.zeroed;
  largest_ = std::max(largest_, tally.largest);
  return Status::Ok();
}

Result<std::vector<ExactRows>> Staging::Keep(Allocator& allocator, const RowShape& shape,
                                             const KeepSet& keep) const {
  std::vector<ExactRows> kept(static_cast<std::size_t>(keep.kv_heads()));
  for (int head = 0; head < keep.kv_heads(); ++head) {
    const std::span<const TokenPos> positions = keep.positions(head);
    KVS_RETURN_IF_ERROR(kept[head].Reserve(allocator, shape, positions));
    const std::vector<TokenPos> held = Positions(head);
    RowIndex r = 0;
    for (const TokenPos position : positions) {  // both increase
      while (held[r] < position) ++r;
      kept[head].Append(shape, row(shape, Side::kKey, head, r), row(shape, Side::kValue, head, r),
                        position);
    }
  }
  return kept;
}

void Staging::Replace(std::vector<ExactRows> kept) {
  kept_ = std::move(kept);
  pages_.clear();
  positions_ = Buffer();
  rows_ = 0;
}

Result<Staging> Staging::Fork(Allocator& allocator) const {
  Staging fork;
  for (const ExactRows& head : kept_) {
    KVS_ASSIGN_OR_RETURN(ExactRows rows, head.Clone(allocator));
    fork.kept_.push_back(std::move(rows));
  }
  for (const Page& page : pages_) {
    if (page.end() <= rows_) {
      fork.pages_.push_back({page.keys.Share(), page.values.Share(), page.begin, page.room});
      continue;
    }
    KVS_ASSIGN_OR_RETURN(Page copy, CopyOf(allocator, page));
    fork.pages_.push_back(std::move(copy));
  }
  KVS_ASSIGN_OR_RETURN(fork.positions_, positions_.Clone(allocator));
  fork.rows_ = rows_;
  fork.largest_ = largest_;
  return fork;
}

Result<std::vector<PositionList::Cut>> Staging::PrepareTrim(Allocator& allocator,
                                                            TokenPos end) const {
  std::vector<PositionList::Cut> cuts;
  for (const ExactRows& head : kept_) {
    KVS_ASSIGN_OR_RETURN(PositionList::Cut cut, head.positions().PrepareTrim(allocator, end));
    cuts.push_back(std::move(cut));
  }
  return cuts;
}

void Staging::Trim(TokenPos end, std::vector<PositionList::Cut> cuts) {
  for (std::size_t head = 0; head < cuts.size(); ++head) kept_[head].Trim(std::move(cuts[head]));
  const auto no_rows = [](const ExactRows& head) { return head.rows() == 0; };
  if (std::all_of(kept_.begin(), kept_.end(), no_rows)) kept_.clear();
  const TokenPos* fresh = positions_.As<TokenPos>();
  rows_ = std::lower_bound(fresh, fresh + rows_, end) - fresh;
  while (!pages_.empty() && pages_.back().begin >= rows_) pages_.pop_back();
  if (rows_ == 0) positions_ = Buffer();
}

std::int64_t Staging::RowsIn(const Page& page) const {
  return std::min(page.room, rows_ - page.begin);
}

ByteReport Staging::PageBytes(const Page& page, const LayerSpec& layer, const RowShape& shape,
                              std::int64_t rows) {
  ByteReport report;
  const std::int64_t held = rows * layer.kv_heads;
  report.key_kept_bytes = held * static_cast<std::int64_t>(shape.row_bytes(Side::kKey));
  report.value_kept_bytes = held * static_cast<std::int64_t>(shape.row_bytes(Side::kValue));
  report.payload_bytes = report.key_kept_bytes + report.value_kept_bytes;
  const auto bytes = static_cast<std::int64_t>(page.keys.bytes() + page.values.bytes());
  report.reserved_bytes = bytes - report.payload_bytes;
  if (page.keys.shared()) report.shared_bytes = bytes;
  return report;
}

void Staging::AddBytes(const LayerSpec& layer, const RowShape& shape, ByteReport& report) const {
  for (const ExactRows& head : kept_) head.AddBytes(shape, report);
  for (const Page& page : pages_) report += PageBytes(page, layer, shape, RowsIn(page));
  const auto positions = rows_ * static_cast<std::int64_t>(sizeof(TokenPos));
  report.metadata_bytes += positions;
  report.key_kept_bytes += positions;
  report.reserved_bytes += static_cast<std::int64_t>(positions_.bytes()) - positions;
  for (int head = 0; head < layer.kv_heads; ++head) {
    report.rows_kept += rows(head);
    report.f16_rows_bytes += rows(head) * shape.f16_row_bytes();
  }
}

void Staging::AddRepeated(const LayerSpec& layer, const RowShape& shape, CountedMemory& counted,
                          ByteReport& repeated) const {
  for (const Page& page : pages_) {
    if (!page.keys.shared()) continue;
    const auto rows = static_cast<std::uint64_t>(RowsIn(page));
    const auto [held, first] = counted.try_emplace(page.keys.data(), rows);
    if (first) continue;
    // All hold the first so many of its rows. A row that any holds counts, once.
    repeated +=
        PageBytes(page, layer, shape, static_cast<std::int64_t>(std::min(held->second, rows)));
    held->second = std::max(held->second, rows);
  }
}

std::int64_t Staging::BytesFor(const LayerSpec& layer, const RowShape& shape, std::int64_t tokens,
                               std::int64_t chunk) {
  std::int64_t room = 0;
  std::size_t position_bytes = 0;
  for (std::int64_t rows = 0; rows < tokens;) {
    rows = std::min(tokens, rows + chunk);
    if (room < rows) room += PageRoom(rows - room);
    const std::size_t wanted = static_cast<std::size_t>(rows) * sizeof(TokenPos);
    if (position_bytes < wanted) position_bytes = Buffer::GrownBytes(position_bytes, wanted);
  }
  const std::size_t row_bytes = shape.row_bytes(Side::kKey) + shape.row_bytes(Side::kValue);
  return layer.kv_heads * room * static_cast<std::int64_t>(row_bytes) +
         static_cast<std::int64_t>(position_bytes);
}

// Runs of neighbouring rows are read together. Prefetches come last: between the reads they take a
// third longer.
void ChosenRows::ReadRows(RowIndex first, int count, float* out) const {
  const int row_elements = dim();
  const auto place = [&](RowIndex r) {
    const auto at = static_cast<std::size_t>(chosen_[r] * view_->row_stride);
    return static_cast<const std::uint8_t*>(view_->data) + at * ElementBytes(view_->type);
  };
  const bool dense = view_ && view_->row_stride == row_elements;
  for (int i = 0; i < count;) {
    const RowIndex begin = chosen_[first + i];
    int run = 1;
    while (i + run < count && chosen_[first + i + run] == begin + run) ++run;
    float* to = out + std::int64_t{i} * row_elements;
    if (dense) {
      ConvertToF32(place(first + i), view_->type, std::int64_t{run} * row_elements, to);
    } else {
      source_.ReadRows(begin, run, to);
    }
    i += run;
  }
  if (!view_) return;
  const RowIndex ahead_end = std::min<RowIndex>(first + 2 * std::int64_t{count}, rows());
  const std::size_t row_bytes = static_cast<std::size_t>(row_elements) * ElementBytes(view_->type);
  for (RowIndex r = first + count; r < ahead_end; ++r) {
    const std::uint8_t* row = place(r);
    for (std::size_t at = 0; at < row_bytes; at += 64) __builtin_prefetch(row + at, 0, 2);
  }
}

}  // namespace kvsieve

// The prompt's rows of one layer before they are encoded, in the type they came in. One copy from
// the engine; given back layer by layer when the prompt is finished.
//
// Rows of a head are those that an earlier selection kept (schedule=per_chunk; heads may differ),
// then those that came since, the same for every head. These lie in pages, one for each call that
// appended many; forks share the pages that are full, and a shared page is never written.
#ifndef KVSIEVE_LIB_STAGING_H_
#define KVSIEVE_LIB_STAGING_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kvsieve/allocator.h"
#include "kvsieve/byte_report.h"
#include "kvsieve/keep_set.h"
#include "kvsieve/pipeline.h"
#include "kvsieve/result.h"
#include "kvsieve/types.h"
#include "lib/buffer.h"
#include "lib/exact_rows.h"
#include "lib/row_copy.h"
#include "lib/shared_buffer.h"

namespace kvsieve {

class StateReader;
class StateWriter;

class Staging {
 public:
  // Copies the rows behind those already held, scanning for NaN and Inf. `values` is not read where
  // V lies in K. On an error (named by
  // layer, head and row) nothing is added. `*zeroed` grows by the elements set to zero.
  Status Append(Allocator& allocator, const RowShape& shape, const HeadsView& keys,
                const HeadsView& values, std::span<const TokenPos> positions,
                NonFinitePolicy policy, std::int64_t* zeroed);

  std::int64_t rows(int head) const { return kept_rows(head) + rows_; }
  bool empty() const { return kept_.empty() && rows_ == 0; }
  std::int64_t fresh_rows() const { return rows_; }  // since the last selection
  std::vector<TokenPos> Positions(int head) const;
  // Of rows [first, first + count), count <= kBlockRows; takes no memory.
  void ReadPositions(int head, RowIndex first, int count, TokenPos* out) const;
  const std::uint8_t* row(const RowShape& shape, Side side, int head, RowIndex r) const;
  void ReadRows(const RowShape& shape, Side side, int head, RowIndex first, int count,
                float* out) const;
  // No element that was ever appended is larger in magnitude.
  float largest() const { return largest_; }
  // Whether all rows of every head lie in one piece.
  bool in_one_piece() const { return kept_.empty() && pages_.size() == 1; }

  // What stays of each head after a selection; the staging itself is untouched until Replace.
  // keep: per KV head, increasing positions held here.
  Result<std::vector<ExactRows>> Keep(Allocator& allocator, const RowShape& shape,
                                      const KeepSet& keep) const;
  void Replace(std::vector<ExactRows> kept);

  // The same rows, in the same full pages and copies of the rest.
  Result<Staging> Fork(Allocator& allocator) const;
  // lib/rows_save.cc. kv_heads: of the layer.
  void Save(const RowShape& shape, int kv_heads, StateWriter& out) const;
  static Result<Staging> Load(Allocator& allocator, const RowShape& shape, int kv_heads,
                              StateReader& in);

  // Taking back the rows at `end` and behind it, prepared as positions are.
  Result<std::vector<PositionList::Cut>> PrepareTrim(Allocator& allocator, TokenPos end) const;
  void Trim(TokenPos end, std::vector<PositionList::Cut> cuts);

  // What a staging asks of the allocator for `tokens` rows of each head, appended `chunk` at a
  // time.
  static std::int64_t BytesFor(const LayerSpec& layer, const RowShape& shape, std::int64_t tokens,
                               std::int64_t chunk);
  // Adds what is held: one list of positions serves the fresh rows of all heads.
  void AddBytes(const LayerSpec& layer, const RowShape& shape, ByteReport& report) const;
  // Adds to `repeated` what AddBytes says of memory that is in `counted`, and puts in the rest,
  // with the number of rows.
  void AddRepeated(const LayerSpec& layer, const RowShape& shape, CountedMemory& counted,
                   ByteReport& repeated) const;

 private:
  // One allocation for K and one for V: [kv_heads][room][dim].
  struct Page {
    SharedBuffer keys;
    SharedBuffer values;
    RowIndex begin = 0;
    std::int64_t room = 0;
    RowIndex end() const { return begin + room; }
    const SharedBuffer& buffer(Side side) const { return side == Side::kKey ? keys : values; }
    SharedBuffer& buffer(Side side) { return side == Side::kKey ? keys : values; }
  };
  // Rows of a new page for `rows` rows that find no room.
  static std::int64_t PageRoom(std::int64_t rows);
  Status AddRoom(Allocator& allocator, const RowShape& shape, int heads, std::int64_t rows);
  static Result<Page> NewPage(Allocator& allocator, RowIndex begin, std::int64_t room,
                              std::size_t key_bytes, std::size_t value_bytes);
  static Result<Page> CopyOf(Allocator& allocator, const Page& page);
  std::int64_t RowsIn(const Page& page) const;
  // Of `rows` rows and the room behind them.
  static ByteReport PageBytes(const Page& page, const LayerSpec& layer, const RowShape& shape,
                              std::int64_t rows);
  const Page& PageOf(RowIndex r) const;
  const std::uint8_t* fresh_row(const RowShape& shape, Side side, int head, RowIndex r) const;
  Status CopyHead(const RowShape& shape, Side side, const HeadsView& rows, int head,
                  NonFinitePolicy policy, RowTally* tally);

  void SaveFresh(const RowShape& shape, Side side, int head, StateWriter& out) const;
  Status LoadFresh(Allocator& allocator, const RowShape& shape, int kv_heads, StateReader& in);

  std::int64_t kept_rows(int head) const { return kept_.empty() ? 0 : kept_[head].rows(); }

  std::vector<ExactRows> kept_;  // per head; empty before the first selection
  std::vector<Page> pages_;      // rows that came since
  Buffer positions_;             // of the rows in pages_
  std::int64_t rows_ = 0;        // in pages_
  float largest_ = 0;
};

// One head and side of a Staging, as evict and Chain::Learn read it.
class StagedRows final : public RowSource {
 public:
  // Rows from `begin` on.
  StagedRows(const Staging& staging, const RowShape& shape, Side side, int head, RowIndex begin = 0)
      : staging_(staging), shape_(shape), side_(side), head_(head), begin_(begin) {}

  std::int64_t rows() const override { return staging_.rows(head_) - begin_; }
  int dim() const override { return shape_.dim(side_); }
  void ReadRows(RowIndex first, int count, float* out) const override {
    staging_.ReadRows(shape_, side_, head_, begin_ + first, count, out);
  }
  std::optional<RowMajor> TryView() const override {
    if (!staging_.in_one_piece()) return std::nullopt;
    return RowMajor{staging_.row(shape_, side_, head_, begin_), shape_.type(side_),
                    shape_.row_stride(side_)};
  }
  float LargestMagnitude() const override { return staging_.largest(); }

 private:
  const Staging& staging_;
  const RowShape& shape_;
  Side side_;
  int head_;
  RowIndex begin_;
};

// Some rows of another source, by index.
class ChosenRows final : public RowSource {
 public:
  ChosenRows(const RowSource& source, std::span<const RowIndex> chosen)
      : source_(source), chosen_(chosen), view_(source.TryView()) {}
  std::int64_t rows() const override { return static_cast<std::int64_t>(chosen_.size()); }
  int dim() const override { return source_.dim(); }
  // Prefetches the rows behind those it reads, as many, which mostly come next.
  void ReadRows(RowIndex first, int count, float* out) const override;
  float LargestMagnitude() const override { return source_.LargestMagnitude(); }

 private:
  const RowSource& source_;
  std::span<const RowIndex> chosen_;
  std::optional<RowMajor> view_;
};

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_STAGING_H_

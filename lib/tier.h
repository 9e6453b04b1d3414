// Encoded rows of one head in one precision: full blocks of 64 rows and one open block, each
// holding K, then V; what the chains learnt about the head; and the rows' positions. Where V lies
// in K (LayerStore::value is null) there is K alone, and values given are not read.
//
// Codes and scales of a row never change; their address may. Rows are added at the end only, in
// whole groups of the codecs (of one row, mostly). A row has a slot in a block. A group that lost
// rows holds the others in its first slots; the slots behind them stay empty, for its scales are
// made, and the next rows begin the next group.
//
// Forks share the statistics and the blocks that are full; a shared block is never written. Which
// slots of it hold rows is each tier's own, so that a trim that ends inside it, like one that drops
// it, writes nothing. Only Reserve makes room for rows to be written: where they go into a block
// that is shared, since a trim took rows from it, it moves this tier's rows to a block of its own.
#ifndef KVSIEVE_LIB_TIER_H_
#define KVSIEVE_LIB_TIER_H_

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kvsieve/allocator.h"
#include "kvsieve/byte_report.h"
#include "kvsieve/pipeline.h"
#include "kvsieve/result.h"
#include "kvsieve/types.h"
#include "lib/position_list.h"
#include "lib/shared_buffer.h"

namespace kvsieve {

class StateReader;
class StateWriter;

class Tier {
 public:
  // `store` outlives the tier and must be the same in every call.
  explicit Tier(const LayerStore& store) : store_(&store) {}

  const LayerStore& store() const { return *store_; }
  const Chain& chain(Side side) const { return store_->chain(side); }
  std::int64_t rows() const { return rows_; }
  const PositionList& positions() const { return positions_; }
  ChainStats stats(Side side) const;
  // Elements that codecs replaced by the end of their range, in all rows ever stored.
  std::int64_t saturated() const { return saturated_; }

  // -- filling ----------------------------------------------------------------------------------
  // 1. Takes the memory of the statistics. Once, before all else, where the store learns from these
  // rows (LayerStore::learns).
  Status ReserveStats(Allocator& allocator);
  // Reads what tiers share (LayerStore::borrows) from the head's first tier, whose statistics
  // outlive this one. Behind ReserveStats, before all else.
  void BorrowFrom(const Tier& first);
  // 2. Lets a side's chain learn from the rows that will be stored; its first transform, unless
  // that is borrowed, from `sharing`: those of all tiers that share it. Once, before any row, the
  // head's first tier before the others.
  Status Learn(Side side, const RowSource& stored, const RowSource& sharing);
  // 3. Takes all memory for `positions`, which follow those held; it is shared with no fork.
  // Nothing becomes visible.
  Status Reserve(Allocator& allocator, std::span<const TokenPos> positions);
  // 4. Encodes all rows of the sources behind those held. Cannot fail when Learn saw these rows.
  // scratch: f32 [kBlockRows, max dim].
  void Fill(const RowSource& keys, const RowSource& values, std::span<const TokenPos> positions,
            float* scratch);

  // Decode: Reserve, then write rows behind the last without making them visible, then show all of
  // them. keys, values: f32 [count, dim], destroyed. EncodeAhead writes whole groups from the row
  // that will be number rows() + ahead; it fails when a row cannot be represented.
  Status EncodeAhead(std::int64_t ahead, int count, float* keys, float* values);
  void Show(std::span<const TokenPos> positions);

  // Gives back leading blocks whose rows all lie before `position`. Returns the last position
  // that went, -1 when none did.
  TokenPos DropBefore(TokenPos position);
  // Takes the last rows back; whole blocks are given back.
  void Trim(PositionList::Cut cut);

  // Some rows of this tier in new blocks, moved bit by bit; the tier itself is untouched until
  // Replace swaps them in.
  struct Kept;
  Result<Kept> Keep(Allocator& allocator, std::span<const RowIndex> rows) const;
  void Replace(Kept kept);
  // Rows from elsewhere, in order of position, for a tier whose codecs store single rows.
  struct Incoming {
    std::span<const TokenPos> positions;
    const RowSource& keys;
    const RowSource& values;  // not read where V lies in K
  };
  // Keep, with incoming rows encoded among the others, where their positions say. Fails when one
  // cannot be represented.
  Result<Kept> KeepWith(Allocator& allocator, std::span<const RowIndex> rows,
                        const Incoming& incoming) const;

  // The same rows, in the same full blocks and a copy of the open one. `store` is equal to this
  // tier's, and outlives the fork.
  Result<Tier> Fork(Allocator& allocator, const LayerStore& store) const;

  // lib/tier_save.cc. What is written depends on the rows alone: neither room for more nor what
  // rows that went left behind.
  void Save(StateWriter& out) const;
  static Result<Tier> Load(Allocator& allocator, const LayerStore& store, StateReader& in);

  // -- reading ----------------------------------------------------------------------------------
  // Blocks that hold rows; more may be reserved.
  int blocks() const;
  // Slots of block `b` that hold rows: bit s is slot s. first_row: the row in the first of them.
  std::uint64_t slots(int b) const { return blocks_[b].slots; }
  RowIndex first_row(int b) const { return blocks_[b].first_row; }
  ConstBlockRef block(int b, Side side) const;
  void ReadRows(Side side, RowIndex first, int count, float* out) const;

  // Of the statistics of a tier that has some.
  static std::int64_t StatsBytes(const LayerStore& store);
  // What AddBytes says of a tier of `rows` rows in whole groups: codes, scales, statistics,
  // positions, padding and the room of the open block.
  static ByteReport BytesOf(const LayerStore& store, std::int64_t rows,
                            const PositionBytes& positions);
  void AddBytes(ByteReport& report) const;
  // Adds to `repeated` what AddBytes says of memory that is in `counted`, and puts in the rest,
  // with the slots that hold rows.
  void AddRepeated(CountedMemory& counted, ByteReport& repeated) const;

 private:
  // One allocation: the K side, then the V side.
  struct Block {
    SharedBuffer memory;
    int capacity_rows = 0;
    std::uint64_t slots = 0;  // those that hold rows; 0: reserved only
    RowIndex first_row = 0;
  };
  struct Place {
    int block;
    int slot;
  };
  // The floats of a side that lie with this tier: how many, where in stats_, and they; null where
  // it has no statistics.
  int own_floats(Side side) const;
  std::ptrdiff_t own_begin(Side side) const;
  const float* own_stats(Side side) const;
  void CountStats(ByteReport& report) const;
  std::size_t side_begin(const Block& block, Side side) const;
  ConstBlockRef side_of(const Block& block, Side side) const;
  BlockRef writable(Block& block, Side side) const;
  std::size_t block_bytes(int capacity_rows) const;
  Result<Block> NewBlock(Allocator& allocator, int capacity_rows) const;
  Status MoveOpenBlock(Allocator& allocator, int capacity_rows);

  std::int64_t NextSlot() const;
  Place PlaceOf(RowIndex row) const;
  // Empty blocks of `slots` slots in all, and the positions of rows to come.
  Result<Kept> RoomFor(Allocator& allocator, std::span<const TokenPos> positions,
                       std::int64_t slots) const;
  std::vector<std::int64_t> SlotsWhenKept(std::span<const RowIndex> rows) const;
  void MoveRow(RowIndex row, Block& target, int slot) const;
  Status EncodeRow(const Incoming& incoming, RowIndex row, Block& target, int slot,
                   std::int64_t* saturated) const;
  void CopyRows(const Block& from, Block& to) const;
  Result<Block> TightBlock(Allocator& allocator, std::uint64_t slots) const;
  Status LoadStats(Allocator& allocator, StateReader& in, std::uint32_t floats);
  Status LoadBlocks(Allocator& allocator, StateReader& in, std::uint32_t count);
  Status LoadBlock(Allocator& allocator, StateReader& in, std::uint64_t slots);

  const LayerStore* store_;
  SharedBuffer stats_;  // K's floats, then V's, without those that are borrowed
  std::array<const float*, 2> borrowed_ = {};  // K's, V's; null: nothing is
  bool owns_all_ = false;  // of a state of version 1 or 2, whose tiers did not borrow
  std::vector<Block> blocks_;
  std::int64_t rows_ = 0;
  PositionList positions_;
  std::int64_t saturated_ = 0;
  std::int64_t saturated_ahead_ = 0;  // in rows that are not visible yet
};

struct Tier::Kept {
  std::vector<Block> blocks;
  PositionList positions;
  std::int64_t saturated = 0;  // in incoming rows
};

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_TIER_H_

// Compression: how rows that stay are stored. Thinks in bytes of one block (at most kBlockRows
// rows of one head, one side), never in positions or eviction.
//
// A Transform is an exact change of basis before the codec (centring, Hadamard). A Codec writes
// and reads blocks, and attends over them without decoding. A Chain is transforms + codec, which
// is what a store holds for K and for V; only Chain is used by the rest of the library.
#ifndef KVSIEVE_CODEC_H_
#define KVSIEVE_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvsieve/result.h"
#include "kvsieve/spec_args.h"
#include "kvsieve/stage_info.h"
#include "kvsieve/types.h"

namespace kvsieve {

enum class Side : std::uint8_t { kKey, kValue };
// As errors name it.
constexpr std::string_view SideName(Side side) { return side == Side::kKey ? "keys" : "values"; }

// Which kernels attend over a codec's blocks.
enum class KernelPath : std::uint8_t {
  kFused,      // one Highway kernel set on the codes
  kPortable,   // decode 64 rows to f32, then xsimd dot and axpy
  kReference,  // plain scalar loops
};
std::string_view KernelPathName(KernelPath path);  // "fused", ...

// Bytes of one live row.
struct RowBytes {
  std::int64_t codes = 0;
  std::int64_t scales = 0;
};

// One block: `capacity_rows` is 16, 32, 48 or 64. Bytes of rows that were never written are zero,
// so that a kernel may read whole panels.
struct BlockRef {
  std::uint8_t* data = nullptr;
  int capacity_rows = 0;
};
struct ConstBlockRef {
  const std::uint8_t* data = nullptr;
  int capacity_rows = 0;
  ConstBlockRef(const std::uint8_t* d, int capacity) : data(d), capacity_rows(capacity) {}
  ConstBlockRef(BlockRef block)
      : data(block.data), capacity_rows(block.capacity_rows) {}  // NOLINT: implicit on purpose
};

// Most query heads that one Score or Accumulate call takes; a block is read from memory once and
// then served to each tile of heads from cache.
inline constexpr int kHeadTile = 4;

// f32 elements between the accumulators of two heads: dim rounded up to a multiple of 16.
constexpr int AccumulatorStride(int dim) { return (dim + 15) / 16 * 16; }

// What a kernel may prefetch (to L2) while it works: the same side of a block some way ahead.
// Null: nothing.
struct Prefetch {
  const std::uint8_t* data = nullptr;
};

// Stores rows of dim() f32 elements. Stateless: what is learnt about a head lives in `stats`
// (f32 [stats_floats()], owned by the caller, counted as metadata). Codes and scales of a row
// depend on the rows of its group (mostly that row alone) and on stats, and are the same bytes on
// every target.
class Codec {
 public:
  virtual ~Codec() = default;

  virtual std::string Canonical() const = 0;  // "int4(group=32,asym)"
  virtual int dim() const = 0;
  virtual Side side() const = 0;
  virtual KernelPath path() const = 0;

  // Rows that are encoded together and share scales: slots [i n, (i + 1) n) of a block. Divides
  // kBlockRows; blocks have room for whole groups. A group may hold fewer rows, in its first slots.
  virtual int group_rows() const { return 1; }

  // -- sizes: the only source, for allocation and accounting ------------------------------------
  // Scales: a row's share of a full group; a group has all of its scales whatever rows it holds.
  virtual RowBytes row_bytes() const = 0;
  // Bytes of a block of `capacity_rows` (16, 32, 48, 64): a multiple of kBlockAlignment.
  virtual std::size_t BlockBytes(int capacity_rows) const = 0;
  virtual int stats_floats() const { return 0; }

  // -- rows -------------------------------------------------------------------------------------
  // Reads the rows that will be encoded and fills stats. Fails when a row cannot be represented,
  // naming row, value and limit.
  virtual Status Learn(const RowSource& rows, float* stats) const = 0;
  // rows: f32 [count, dim], written as rows [first_row, first_row + count) of the block: groups
  // from the first on, the last of which may be short. Fails (nothing written) when a row cannot be
  // represented under `stats`.
  virtual Status Encode(const float* stats, const float* rows, int count, BlockRef block,
                        int first_row) const = 0;
  // How many elements of `rows` Encode does not refuse but replaces by the end of its range.
  virtual std::int64_t CountSaturated(const float* /*rows*/, int /*count*/) const { return 0; }
  virtual void Decode(const float* stats, ConstBlockRef block, int first_row, int count,
                      float* rows) const = 0;
  // Copies codes and scales of one row bit by bit. The scales are those of its group: rows that
  // share a group move to one group.
  virtual void MoveRow(ConstBlockRef from, int from_row, BlockRef to, int to_row) const = 0;

  // -- attention --------------------------------------------------------------------------------
  // Opaque prepared form of 1..kHeadTile query rows, in caller memory aligned to 64.
  virtual std::size_t QueryBytes() const = 0;
  // q: f32 [heads, dim], already scaled. Key side only.
  virtual void PrepareQueries(const float* q, int heads, void* prepared) const = 0;
  // logits [heads, kBlockRows]: q.k for rows [0, rows); lanes up to the next multiple of
  // kPanelRows may be overwritten with anything. Key side only.
  virtual void Score(const float* stats, const void* prepared, int heads, ConstBlockRef block,
                     int rows, float* logits, Prefetch ahead) const = 0;
  // acc [heads, AccumulatorStride(dim)] += sum over rows of weights[head][row] * v. weights:
  // f32 [heads, kBlockRows], finite and >= 0, zero from `rows` on. Value side only.
  virtual void Accumulate(const float* stats, const float* weights, int heads, ConstBlockRef block,
                          int rows, float* acc, Prefetch ahead) const = 0;
};

// An exact, invertible change of basis of one head's rows. Stateless, like Codec.
class Transform {
 public:
  virtual ~Transform() = default;
  virtual std::string Canonical() const = 0;
  virtual int stats_floats() const { return 0; }
  // True when the first rows of the sequence (attention sinks) should stay exact beside it.
  virtual bool wants_exact_sinks() const { return false; }

  virtual Status Learn(const RowSource& rows, float* stats) const = 0;
  // A bound of the elements that Apply makes of rows whose elements are within `magnitude`, once
  // these rows are learnt; Inf when there is none.
  virtual float BoundAfter(float /*magnitude*/) const {
    return std::numeric_limits<float>::infinity();
  }
  // In place, f32 [count, dim].
  virtual void Apply(const float* stats, float* rows, int count) const = 0;
  virtual void Invert(const float* stats, float* rows, int count) const = 0;
  // Turns a query (in place, f32 [dim]) into this basis; returns what to add to every logit so
  // that transformed q . transformed k + bias == q . k.
  virtual float ApplyToQuery(const float* stats, float* q) const = 0;
  // Turns an accumulated output (in place, f32 [dim]; sum of weights `weight_sum`) back.
  virtual void InvertOutput(const float* stats, float weight_sum, float* out) const = 0;
};

// What a chain learnt about a head: the floats of its stages, one after the other; or, where
// several chains share what their first transform learnt, those of the first apart from those of
// the rest.
struct ChainStats {
  ChainStats(const float* all) : first(all) {}  // NOLINT: implicit on purpose
  ChainStats(const float* of_first, const float* of_rest) : first(of_first), rest(of_rest) {}
  const float* first;
  const float* rest = nullptr;  // null: they follow `first`
};

// Transforms + codec for one side of a head. Immutable; all members as in Codec, in the original
// basis.
class Chain {
 public:
  Chain(std::vector<std::shared_ptr<const Transform>> transforms,
        std::shared_ptr<const Codec> codec);

  std::string Canonical() const;  // "center+turbo(bits=4,seed=0,norm=matched)"
  const Codec& codec() const { return *codec_; }
  int dim() const { return codec_->dim(); }
  Side side() const { return codec_->side(); }
  bool wants_exact_sinks() const;
  // Transforms' and codec's, in chain order.
  int stats_floats() const { return stats_begin_.back() + codec_->stats_floats(); }
  int first_stats_floats() const { return stats_begin_.size() > 1 ? stats_begin_[1] : 0; }
  // Whether both begin with the same transform, and it learns something.
  bool BeginsAs(const Chain& other) const;
  // The codec's own part of `stats`, for codec().Score and codec().Accumulate.
  const float* CodecStats(const ChainStats& stats) const {
    return StageStats(stats, stats_begin_.size() - 1);
  }
  // The part of transform `stage`; of the codec behind the last.
  const float* StageStats(const ChainStats& stats, std::size_t stage) const {
    if (stats.rest == nullptr) return stats.first + stats_begin_[stage];
    return stage == 0 ? stats.first : stats.rest + (stats_begin_[stage] - stats_begin_[1]);
  }

  Status Learn(const RowSource& rows, float* stats) const;
  // The same in two steps, which may see different rows: `first` [first_stats_floats()], then the
  // others.
  Status LearnFirst(const RowSource& rows, float* first) const;
  Status LearnRest(const RowSource& rows, const float* first, float* rest) const;
  // Transforms `rows` in place: what is left in them is what the codec was given.
  Status Encode(const ChainStats& stats, float* rows, int count, BlockRef block,
                int first_row) const;
  void Decode(const ChainStats& stats, ConstBlockRef block, int first_row, int count,
              float* rows) const;

  // q: f32 [heads, dim], scaled, destroyed. bias[head] is what Score leaves out: the caller adds
  // it to every logit of this chain's rows.
  void PrepareQueries(const ChainStats& stats, float* q, int heads, void* prepared,
                      float* bias) const;
  // out: one head's accumulator (f32 [dim]) of this chain, turned into the original basis.
  void FinishOutput(const ChainStats& stats, float weight_sum, float* out) const;

 private:
  std::vector<std::shared_ptr<const Transform>> transforms_;
  std::shared_ptr<const Codec> codec_;
  std::vector<int> stats_begin_;  // floats before each stage; the codec is the last
};

// Builds the chain "t1(..) + t2(..) + codec(..)" for rows of `dim` elements. Errors: unknown name
// (with a suggestion), a group that does not divide dim (with a divisor that does), hadamard
// before turbo, and so on; each with its column.
Result<std::shared_ptr<const Chain>> MakeChain(std::span<const SpecCall> chain, int dim, Side side);

// Whether the chain can be built at all and its canonical form, before any dim is known.
struct ChainOutline {
  std::string canonical;
  bool wants_exact_sinks = false;
  int group_rows = 1;  // the codec's
};
Result<ChainOutline> OutlineChain(std::span<const SpecCall> chain);

std::span<const StageInfo> CodecInfos();
std::span<const StageInfo> TransformInfos();

}  // namespace kvsieve

#endif  // KVSIEVE_CODEC_H_

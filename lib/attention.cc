#include "lib/attention.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kvsieve/float16.h"
#include "lib/softmax.h"
#include "quant/portable.h"

namespace kvsieve {
namespace {

constexpr float kMinusInf = -__builtin_inff();

// Blocks of one task: 8192 rows, enough to hide the cost of a merge.
constexpr int kRangeBlocks = 128;

constexpr std::size_t kAlign = kBlockAlignment;

std::size_t RoundUp(std::size_t n) { return (n + kAlign - 1) / kAlign * kAlign; }

int Tiles(const LayerSpec& layer) { return (layer.group() + kHeadTile - 1) / kHeadTile; }

// Most bytes of prepared queries that any chain of the layer needs for one tile.
std::size_t PreparedBytes(const AttendJob& job) {
  std::size_t most = kAlign;
  for (const HeadStore& head : job.heads) {
    for (const Tier& tier : head.tiers) {
      most = std::max(most, RoundUp(tier.store().key->codec().QueryBytes()));
    }
  }
  return most;
}

int Ranges(const AttendJob& job) {
  int most = 1;
  for (const HeadStore& head : job.heads) {
    int blocks = 0;
    for (const Tier& tier : head.tiers) blocks += tier.blocks();
    most = std::max(most, (blocks + kRangeBlocks - 1) / kRangeBlocks);
  }
  return most;
}

// One worker's memory, cut up. All pointers are aligned to 64.
struct WorkerScratch {
  float* q;                // [group, key_dim], scaled
  float* tile_q;           // [kHeadTile, key_dim], destroyed by PrepareQueries
  float* logits;           // [tiles * kHeadTile, kBlockRows]
  float* acc;              // [group, acc_stride]
  float* bias;             // [group]
  float* max;              // [group]
  float* sum;              // [group]
  float* poison;           // [group]: NaN for a query that holds NaN or Inf, else 0
  float* rows;             // [kBlockRows, larger dim]: exact rows as f32
  std::uint8_t* prepared;  // [tiles, prepared_bytes]
  std::size_t prepared_bytes;

  static std::size_t Cut(const AttendJob& job, std::uint8_t* memory, WorkerScratch* scratch) {
    const auto group = static_cast<std::size_t>(job.layer.group());
    const auto key_dim = static_cast<std::size_t>(job.layer.key_dim);
    const auto value_dim = static_cast<std::size_t>(job.layer.value_dim);
    const auto stride = static_cast<std::size_t>(AccumulatorStride(job.layer.value_dim));
    std::size_t used = 0;
    const auto floats = [&](std::size_t count) {
      auto* at = memory == nullptr ? nullptr : reinterpret_cast<float*>(memory + used);
      used += RoundUp(count * sizeof(float));
      return at;
    };
    WorkerScratch cut{};
    cut.q = floats(group * key_dim);
    cut.tile_q = floats(kHeadTile * key_dim);
    cut.logits = floats(static_cast<std::size_t>(Tiles(job.layer)) * kHeadTile * kBlockRows);
    cut.acc = floats(group * stride);
    cut.bias = floats(group);
    cut.max = floats(group);
    cut.sum = floats(group);
    cut.poison = floats(group);
    cut.rows = floats(kBlockRows * std::max(key_dim, value_dim));
    cut.prepared_bytes = PreparedBytes(job);
    cut.prepared = memory == nullptr ? nullptr : memory + used;
    used += static_cast<std::size_t>(Tiles(job.layer)) * cut.prepared_bytes;
    if (scratch != nullptr) *scratch = cut;
    return used;
  }
};

// (max, sum, out[value_dim]) of one query head, in the original basis, out not yet divided.
struct Partial {
  float* at;
  float& max() const { return at[0]; }
  float& sum() const { return at[1]; }
  float* out() const { return at + 2; }
};

void MergeInto(const Partial& into, float max, float sum, const float* out, int value_dim) {
  if (max == kMinusInf) return;
  const float top = std::max(into.max(), max);
  const float keep = std::exp(into.max() - top);
  const float add = std::exp(max - top);
  into.sum() = into.sum() * keep + sum * add;
  for (int d = 0; d < value_dim; ++d) into.out()[d] = into.out()[d] * keep + out[d] * add;
  into.max() = top;
}

// Which rows of a segment a query at `position` sees. Positions are read only where the mask cuts.
class Visibility {
 public:
  Visibility(TokenPos position, int window)
      : position_(position), oldest_(window > 0 ? std::int64_t{position} - window + 1 : 0) {}

  bool All(TokenPos first, TokenPos last) const { return last <= position_ && first >= oldest_; }
  std::uint64_t Mask(const TokenPos* positions, int rows) const {
    std::uint64_t mask = 0;
    for (int r = 0; r < rows; ++r) {
      const bool visible = positions[r] <= position_ && positions[r] >= oldest_;
      mask |= std::uint64_t{visible} << r;
    }
    return mask;
  }

 private:
  TokenPos position_;
  std::int64_t oldest_;
};

// Bit n of `mask` to the place of the n-th bit set in `slots`.
std::uint64_t Spread(std::uint64_t mask, std::uint64_t slots) {
  const bool without_gaps = (slots & (slots + 1)) == 0;
  if (without_gaps) return mask;
  std::uint64_t spread = 0;
  for (; slots != 0; slots &= slots - 1, mask >>= 1) {
    if ((mask & 1) != 0) spread |= slots & (~slots + 1);
  }
  return spread;
}

}  // namespace

// One task: one KV head, one range, every query in turn.
class Attention {
 public:
  Attention(const AttendJob& job, AttendMemory& memory, int worker)
      : job_(job),
        value_dim_(job.layer.value_dim),
        group_(job.layer.group()),
        stride_(AccumulatorStride(job.layer.value_dim)) {
    WorkerScratch::Cut(
        job, memory.worker_.data() + static_cast<std::size_t>(worker) * memory.worker_bytes_,
        &scratch_);
  }

  static Partial PartialOf(const AttendJob& job, AttendMemory& memory, int head, int range,
                           std::int64_t query, int g) {
    const auto n = static_cast<std::int64_t>(job.query_positions.size());
    const int group = job.layer.group();
    const std::int64_t index =
        ((std::int64_t{head} * memory.ranges_ + range) * n + query) * group + g;
    return {memory.partials_.As<float>() + index * (2 + job.layer.value_dim)};
  }
  static int RangesOf(const AttendMemory& memory) { return memory.ranges_; }

  void Run(AttendMemory& memory, int head, int range) {
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(job_.query_positions.size()); ++i) {
      LoadQueries(head, i);
      partials_first_ = PartialOf(job_, memory, head, range, i, 0);
      for (int g = 0; g < group_; ++g) {
        const Partial partial = PartialAt(g);
        partial.max() = kMinusInf;
        partial.sum() = scratch_.poison[g];
        std::fill_n(partial.out(), value_dim_, 0.0F);
      }
      const Visibility visibility(job_.query_positions[i], job_.layer.sliding_window);
      if (job_.staging != nullptr) {
        AttendStaging(head, visibility);
        continue;
      }
      const HeadStore& store = job_.heads[head];
      if (range == 0) {
        AttendExact(store.sinks, visibility);
        AttendExact(store.tail, visibility);
      }
      int skip = range * kRangeBlocks;
      int left = kRangeBlocks;
      for (const Tier& tier : store.tiers) {
        const int begin = std::min(skip, tier.blocks());
        const int end = std::min(begin + left, tier.blocks());
        if (begin < end) AttendTier(tier, begin, end, visibility);
        skip -= begin;
        left -= end - begin;
      }
    }
  }

 private:
  Partial PartialAt(int g) const { return {partials_first_.at + g * (2 + value_dim_)}; }

  // A query with NaN or Inf is attended as zero, for kernels round queries to integers, and its
  // result made NaN.
  void LoadQueries(int head, std::int64_t i) {
    const int dim = job_.layer.key_dim;
    for (int g = 0; g < group_; ++g) {
      float* q = scratch_.q + g * dim;
      ConvertToF32(job_.queries.row(head * group_ + g, i), job_.queries.type, dim, q);
      float poison = 0.0F;
      for (int d = 0; d < dim; ++d) {
        q[d] *= job_.layer.scale;
        poison += q[d] * 0.0F;
      }
      if (poison != 0.0F) std::fill_n(q, dim, 0.0F);
      scratch_.poison[g] = poison;
    }
  }

  void StartSegment() {
    std::fill_n(scratch_.bias, group_, 0.0F);
    std::fill_n(scratch_.max, group_, kMinusInf);
    std::fill_n(scratch_.sum, group_, 0.0F);
    std::fill_n(scratch_.acc, group_ * stride_, 0.0F);
  }

  SoftmaxState TileState(int first_head) const {
    return {std::min(kHeadTile, group_ - first_head), scratch_.max + first_head,
            scratch_.sum + first_head, scratch_.acc + first_head * stride_, stride_};
  }

  void FinishSegment() {
    for (int g = 0; g < group_; ++g) {
      MergeInto(PartialAt(g), scratch_.max[g], scratch_.sum[g], scratch_.acc + g * stride_,
                value_dim_);
    }
  }

  // Rows that `read(side, out)` gives as f32, through the portable kernels: read once for all query
  // heads and, where V lies in K, for both sides.
  template <class Read>
  void AttendRead(int rows, std::uint64_t visible, Read read) {
    if (visible == 0) return;
    const int key_dim = job_.layer.key_dim;
    read(Side::kKey, scratch_.rows);
    for (int first = 0; first < group_; first += kHeadTile) {
      const SoftmaxState state = TileState(first);
      quant::PortableScore({scratch_.rows, rows, key_dim, key_dim}, scratch_.q + first * key_dim,
                           state.heads, Logits(first));
      UpdateSoftmax(Logits(first), scratch_.bias + first, rows, visible, job_.layer.softcap, state);
    }
    if (job_.shape.holder(Side::kValue) == Side::kValue) read(Side::kValue, scratch_.rows);
    const int stride = job_.shape.row_stride(Side::kValue);
    for (int first = 0; first < group_; first += kHeadTile) {
      const SoftmaxState state = TileState(first);
      quant::PortableAccumulate({scratch_.rows, rows, value_dim_, stride}, Logits(first),
                                state.heads, state.acc);
    }
  }

  void AttendExact(const ExactRows& exact, const Visibility& visibility) {
    if (exact.rows() == 0) return;
    StartSegment();
    TokenPos positions[kBlockRows];
    for (RowIndex begin = 0; begin < exact.rows(); begin += kBlockRows) {
      const auto rows = static_cast<int>(std::min<std::int64_t>(kBlockRows, exact.rows() - begin));
      exact.positions().Read(begin, rows, positions);
      AttendRead(rows, visibility.Mask(positions, rows), [&](Side side, float* out) {
        exact.ReadRows(job_.shape, side, begin, rows, out);
      });
    }
    FinishSegment();
  }

  void AttendStaging(int head, const Visibility& visibility) {
    const Staging& staging = *job_.staging;
    const std::vector<TokenPos> positions = staging.Positions(head);
    const std::int64_t total = staging.rows(head);
    StartSegment();
    for (RowIndex begin = 0; begin < total; begin += kBlockRows) {
      const auto rows = static_cast<int>(std::min<std::int64_t>(kBlockRows, total - begin));
      AttendRead(rows, visibility.Mask(positions.data() + begin, rows), [&](Side side, float* out) {
        staging.ReadRows(job_.shape, side, head, begin, rows, out);
      });
    }
    FinishSegment();
  }

  void PrepareQueries(const Tier& tier) {
    const Chain& chain = tier.chain(Side::kKey);
    const int dim = job_.layer.key_dim;
    for (int first = 0; first < group_; first += kHeadTile) {
      const int heads = std::min(kHeadTile, group_ - first);
      std::memcpy(scratch_.tile_q, scratch_.q + first * dim,
                  static_cast<std::size_t>(heads) * static_cast<std::size_t>(dim) * sizeof(float));
      chain.PrepareQueries(tier.stats(Side::kKey), scratch_.tile_q, heads, Prepared(first),
                           scratch_.bias + first);
    }
  }
  std::uint8_t* Prepared(int first_head) const {
    return scratch_.prepared +
           static_cast<std::size_t>(first_head / kHeadTile) * scratch_.prepared_bytes;
  }

  // The next block of a side: fetching further ahead was slower (quant/kernels.h).
  static Prefetch Ahead(const Tier& tier, int b, Side side) {
    return {b + 1 < tier.blocks() ? tier.block(b + 1, side).data : nullptr};
  }

  void AttendTier(const Tier& tier, int begin, int end, const Visibility& visibility) {
    StartSegment();
    if (job_.layer.value_is_key_prefix) {
      ForEachVisibleBlock(
          tier, begin, end, visibility, [&](int b, int rows, std::uint64_t visible) {
            AttendRead(rows, visible, [&](Side side, float* out) {
              tier.chain(side).Decode(tier.stats(side), tier.block(b, side), 0, rows, out);
            });
          });
    } else {
      AttendCodes(tier, begin, end, visibility);
    }
    FinishSegment();
  }

  // Calls body(block, rows, visible) for blocks with visible rows; slots [0, rows) hold them.
  template <class Body>
  void ForEachVisibleBlock(const Tier& tier, int begin, int end, const Visibility& visibility,
                           Body body) {
    const bool all_visible = visibility.All(tier.positions().first(), tier.positions().last());
    TokenPos positions[kBlockRows];
    for (int b = begin; b < end; ++b) {
      const std::uint64_t slots = tier.slots(b);
      std::uint64_t visible = slots;
      if (!all_visible) {
        const int held = std::popcount(slots);
        tier.positions().Read(tier.first_row(b), held, positions);
        visible = Spread(visibility.Mask(positions, held), slots);
        if (visible == 0) continue;
      }
      body(b, kBlockRows - std::countl_zero(slots), visible);
    }
  }

  // Through the codecs' own kernels.
  void AttendCodes(const Tier& tier, int begin, int end, const Visibility& visibility) {
    PrepareQueries(tier);
    const Codec& key_codec = tier.chain(Side::kKey).codec();
    const Codec& value_codec = tier.chain(Side::kValue).codec();
    const float* key_stats = tier.chain(Side::kKey).CodecStats(tier.stats(Side::kKey));
    const float* value_stats = tier.chain(Side::kValue).CodecStats(tier.stats(Side::kValue));
    ForEachVisibleBlock(tier, begin, end, visibility, [&](int b, int rows, std::uint64_t visible) {
      for (int first = 0; first < group_; first += kHeadTile) {
        const SoftmaxState state = TileState(first);
        // Only the first tile fetches ahead: the others find the block in cache.
        const bool fetch = first == 0;
        key_codec.Score(key_stats, Prepared(first), state.heads, tier.block(b, Side::kKey), rows,
                        Logits(0), fetch ? Ahead(tier, b, Side::kKey) : Prefetch{});
        UpdateSoftmax(Logits(0), scratch_.bias + first, rows, visible, job_.layer.softcap, state);
        value_codec.Accumulate(value_stats, Logits(0), state.heads, tier.block(b, Side::kValue),
                               rows, state.acc, fetch ? Ahead(tier, b, Side::kValue) : Prefetch{});
      }
    });
    for (int g = 0; g < group_; ++g) {
      tier.chain(Side::kValue)
          .FinishOutput(tier.stats(Side::kValue), scratch_.sum[g], scratch_.acc + g * stride_);
    }
  }

  float* Logits(int first_head) const { return scratch_.logits + first_head * kBlockRows; }

  const AttendJob& job_;
  const int value_dim_;
  const int group_;
  const int stride_;
  WorkerScratch scratch_{};
  Partial partials_first_{nullptr};
};

Status AttendMemory::Prepare(const AttendJob& job, int workers) {
  worker_bytes_ = WorkerScratch::Cut(job, nullptr, nullptr);
  ranges_ = Ranges(job);
  const std::size_t partials = job.query_positions.size() *
                               static_cast<std::size_t>(job.layer.query_heads) *
                               static_cast<std::size_t>(ranges_) *
                               static_cast<std::size_t>(2 + job.layer.value_dim) * sizeof(float);
  Allocator& allocator = DefaultAllocator();
  KVS_RETURN_IF_ERROR(
      worker_.Grow(allocator, worker_bytes_ * static_cast<std::size_t>(workers), 0));
  return partials_.Grow(allocator, partials, 0);
}

Status Attend(const AttendJob& job, Parallel& parallel, AttendMemory& memory, float* out,
              float* lse) {
  KVS_RETURN_IF_ERROR(memory.Prepare(job, parallel.workers()));
  const int ranges = Attention::RangesOf(memory);
  const std::int64_t tasks = std::int64_t{job.layer.kv_heads} * ranges;
  ParallelFor(parallel, tasks, [&](std::int64_t task, int worker) {
    Attention(job, memory, worker)
        .Run(memory, static_cast<int>(task / ranges), static_cast<int>(task % ranges));
  });
  const auto n = static_cast<std::int64_t>(job.query_positions.size());
  const int group = job.layer.group();
  const int dim = job.layer.value_dim;
  for (int query_head = 0; query_head < job.layer.query_heads; ++query_head) {
    for (std::int64_t i = 0; i < n; ++i) {
      const int head = query_head / group;
      const int g = query_head % group;
      const Partial total = Attention::PartialOf(job, memory, head, 0, i, g);
      for (int range = 1; range < ranges; ++range) {
        const Partial part = Attention::PartialOf(job, memory, head, range, i, g);
        MergeInto(total, part.max(), part.sum(), part.out(), dim);
      }
      const float inverse = total.sum() != 0 ? 1.0F / total.sum() : 0.0F;
      const std::int64_t at = query_head * n + i;
      for (int d = 0; d < dim; ++d) out[at * dim + d] = total.out()[d] * inverse;
      if (lse != nullptr)
        lse[at] = total.sum() != 0 ? total.max() + std::log(total.sum()) : kMinusInf;
    }
  }
  return Status::Ok();
}

}  // namespace kvsieve

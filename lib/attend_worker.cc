#include "lib/attend_worker.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kvsieve/float16.h"
#include "quant/portable.h"

namespace kvsieve {
namespace {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();
constexpr std::size_t kAlign = kBlockAlignment;

std::size_t RoundUp(std::size_t n) { return (n + kAlign - 1) / kAlign * kAlign; }

int Tiles(const LayerSpec& layer) { return (layer.group() + kHeadTile - 1) / kHeadTile; }

// Most bytes of prepared queries that any chain of the layer needs for one tile. All heads have the
// same chains.
std::size_t PreparedBytes(const AttendJob& job) {
  std::size_t most = kAlign;
  if (job.heads.empty()) return most;
  for (const Tier& tier : job.heads.front().tiers) {
    most = std::max(most, RoundUp(tier.store().key->codec().QueryBytes()));
  }
  return most;
}

// Scales in place; whether an element is NaN or Inf then. Integers, so that it vectorizes.
bool ScaleQuery(float scale, float* q, int dim) {
  constexpr std::uint32_t kExponent = 0x7F800000U;
  std::uint32_t found = 0;
  for (int d = 0; d < dim; ++d) {
    q[d] *= scale;
    found |= (std::bit_cast<std::uint32_t>(q[d]) & kExponent) == kExponent ? 1U : 0U;
  }
  return found != 0;
}

// Into the second-level cache, as the kernels prefetch.
void PrefetchBlock(const Tier& tier, int b) {
  for (const Side side : {Side::kKey, Side::kValue}) {
    const ConstBlockRef block = tier.block(b, side);
    const std::size_t bytes = tier.chain(side).codec().BlockBytes(block.capacity_rows);
    for (std::size_t at = 0; at < bytes; at += 64) __builtin_prefetch(block.data + at, 0, 2);
  }
}

// Calls body(block, rows, visible) for the blocks [begin, end) that have visible rows, which lie in
// slots [0, rows).
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

}  // namespace

void AttendSums::Merge(int g, float other_max, float other_sum, const float* other_out,
                       int value_dim) const {
  if (other_max == kMinusInf) return;
  const float top = std::max(max[g], other_max);
  const float keep = std::exp(max[g] - top);
  const float add = std::exp(other_max - top);
  float* to = out + std::int64_t{g} * out_stride;
  sum[g] = sum[g] * keep + other_sum * add;
  for (int d = 0; d < value_dim; ++d) to[d] = to[d] * keep + other_out[d] * add;
  max[g] = top;
}

std::size_t AttendWorker::Cut(const AttendJob& job, std::uint8_t* memory, Memory* cut) {
  const auto group = static_cast<std::size_t>(job.layer.group());
  const auto key_dim = static_cast<std::size_t>(job.layer.key_dim);
  const auto value_dim = static_cast<std::size_t>(job.layer.value_dim);
  const auto tiles = static_cast<std::size_t>(Tiles(job.layer));
  const int stride = AccumulatorStride(job.layer.value_dim);
  std::size_t used = 0;
  const auto floats = [&](std::size_t count) {
    auto* at = memory == nullptr ? nullptr : reinterpret_cast<float*>(memory + used);
    used += RoundUp(count * sizeof(float));
    return at;
  };
  const auto sums = [&] {
    float* max = floats(group);
    float* sum = floats(group);
    return AttendSums{max, sum, floats(group * static_cast<std::size_t>(stride)), stride};
  };
  cut->q = floats(group * key_dim);
  cut->tile_q = floats(kHeadTile * key_dim);
  cut->logits = floats(tiles * kHeadTile * kBlockRows);
  cut->bias = floats(group);
  cut->no_bias = floats(group);
  cut->poison = floats(group);
  cut->segment = sums();
  cut->total = sums();
  cut->rows = floats(kBlockRows * std::max(key_dim, value_dim));
  cut->prepared_bytes = PreparedBytes(job);
  cut->prepared = memory == nullptr ? nullptr : memory + used;
  return used + tiles * cut->prepared_bytes;
}

std::size_t AttendWorker::MemoryBytes(const AttendJob& job) {
  Memory cut{};
  return Cut(job, nullptr, &cut);
}

void AttendWorker::Start(const AttendJob& job, std::uint8_t* memory) {
  job_ = &job;
  group_ = job.layer.group();
  Cut(job, memory, &memory_);
  std::fill_n(memory_.no_bias, group_, 0.0F);
  cold_ = true;
  held_ = {-1, 0};
  prepared_for_ = nullptr;
}

const AttendSums& AttendWorker::Run(int head, int range, std::int64_t i) {
  LoadQueries(head, i);
  has_total_ = false;
  const Visibility visibility(job_->query_positions[i], job_->layer.sliding_window);
  if (job_->staging != nullptr) {
    AttendStaging(head, visibility);
  } else {
    const HeadStore& store = job_->heads[head];
    if (range == 0) {
      AttendExact(store.sinks, visibility);
      AttendExact(store.tail, visibility);
      AttendVerify(head, visibility);
    }
    int skip = range * kRangeBlocks;
    int left = kRangeBlocks;
    for (std::size_t t = 0; t < store.tiers.size(); ++t) {
      const Tier& tier = store.tiers[t];
      const int begin = std::min(skip, tier.blocks());
      const int end = std::min(begin + left, tier.blocks());
      next_tier_ = TierBehind(head, t);
      if (begin < end) AttendTier(tier, begin, end, visibility);
      skip -= begin;
      left -= end - begin;
    }
  }
  if (!has_total_) {
    StartSegment();
    std::swap(memory_.segment, memory_.total);
  }
  for (int g = 0; g < group_; ++g) memory_.total.sum[g] += memory_.poison[g];
  return memory_.total;
}

// A query with NaN or Inf is attended as zero, for kernels round queries to integers, and its
// result made NaN. Ranges that follow each other share the work.
void AttendWorker::LoadQueries(int head, std::int64_t i) {
  if (held_ == std::pair{head, i}) return;
  held_ = {head, i};
  prepared_for_ = nullptr;
  const int dim = job_->layer.key_dim;
  for (int g = 0; g < group_; ++g) {
    float* q = memory_.q + g * dim;
    ConvertToF32(job_->queries.row(head * group_ + g, i), job_->queries.type, dim, q);
    const bool bad = ScaleQuery(job_->layer.scale, q, dim);
    if (bad) std::fill_n(q, dim, 0.0F);
    memory_.poison[g] = bad ? std::numeric_limits<float>::quiet_NaN() : 0.0F;
  }
}

void AttendWorker::StartSegment() {
  std::fill_n(memory_.segment.max, group_, kMinusInf);
  std::fill_n(memory_.segment.sum, group_, 0.0F);
  std::fill_n(memory_.segment.out, group_ * memory_.segment.out_stride, 0.0F);
}

void AttendWorker::FinishSegment() {
  if (!has_total_) {
    std::swap(memory_.segment, memory_.total);
    has_total_ = true;
    return;
  }
  const AttendSums& segment = memory_.segment;
  for (int g = 0; g < group_; ++g) {
    memory_.total.Merge(g, segment.max[g], segment.sum[g], segment.out + g * segment.out_stride,
                        job_->layer.value_dim);
  }
}

SoftmaxState AttendWorker::TileState(int first_head) const {
  const AttendSums& segment = memory_.segment;
  return {std::min(kHeadTile, group_ - first_head), segment.max + first_head,
          segment.sum + first_head, segment.out + first_head * segment.out_stride,
          segment.out_stride};
}

// Rows that `read(side, out)` gives as f32, through the portable kernels: read once for all query
// heads and, where V lies in K, for both sides.
template <class Read>
void AttendWorker::AttendRead(int rows, std::uint64_t visible, Read read) {
  if (visible == 0) return;
  const int key_dim = job_->layer.key_dim;
  read(Side::kKey, memory_.rows);
  for (int first = 0; first < group_; first += kHeadTile) {
    const SoftmaxState state = TileState(first);
    quant::PortableScore({memory_.rows, rows, key_dim, key_dim}, memory_.q + first * key_dim,
                         state.heads, Logits(first));
    UpdateSoftmax(Logits(first), memory_.no_bias + first, rows, visible, job_->layer.softcap,
                  state);
  }
  if (job_->shape.holder(Side::kValue) == Side::kValue) read(Side::kValue, memory_.rows);
  const int stride = job_->shape.row_stride(Side::kValue);
  for (int first = 0; first < group_; first += kHeadTile) {
    const SoftmaxState state = TileState(first);
    quant::PortableAccumulate({memory_.rows, rows, job_->layer.value_dim, stride}, Logits(first),
                              state.heads, state.acc);
  }
}

void AttendWorker::AttendExact(const ExactRows& exact, const Visibility& visibility) {
  if (exact.rows() == 0) return;
  StartSegment();
  TokenPos positions[kBlockRows];
  for (RowIndex begin = 0; begin < exact.rows(); begin += kBlockRows) {
    const auto rows = static_cast<int>(std::min<std::int64_t>(kBlockRows, exact.rows() - begin));
    exact.positions().Read(begin, rows, positions);
    AttendRead(rows, visibility.Mask(positions, rows),
               [&](Side side, float* out) { exact.ReadRows(job_->shape, side, begin, rows, out); });
  }
  FinishSegment();
}

void AttendWorker::AttendVerify(int head, const Visibility& visibility) {
  if (job_->verify == nullptr || job_->verify->rows() == 0) return;
  const VerifyRows& verify = *job_->verify;
  StartSegment();
  for (RowIndex begin = 0; begin < verify.rows(); begin += kBlockRows) {
    const auto rows = static_cast<int>(std::min<std::int64_t>(kBlockRows, verify.rows() - begin));
    const std::uint64_t visible = visibility.Mask(verify.positions().data() + begin, rows);
    AttendRead(rows, visible, [&](Side side, float* out) {
      verify.ReadRows(job_->shape, side, head, begin, rows, out);
    });
  }
  FinishSegment();
}

void AttendWorker::AttendStaging(int head, const Visibility& visibility) {
  const Staging& staging = *job_->staging;
  const std::vector<TokenPos> positions = staging.Positions(head);
  const std::int64_t total = staging.rows(head);
  StartSegment();
  for (RowIndex begin = 0; begin < total; begin += kBlockRows) {
    const auto rows = static_cast<int>(std::min<std::int64_t>(kBlockRows, total - begin));
    AttendRead(rows, visibility.Mask(positions.data() + begin, rows), [&](Side side, float* out) {
      staging.ReadRows(job_->shape, side, head, begin, rows, out);
    });
  }
  FinishSegment();
}

void AttendWorker::AttendTier(const Tier& tier, int begin, int end, const Visibility& visibility) {
  StartSegment();
  if (job_->layer.value_is_key_prefix) {
    ForEachVisibleBlock(tier, begin, end, visibility, [&](int b, int rows, std::uint64_t visible) {
      AttendRead(rows, visible, [&](Side side, float* out) {
        tier.chain(side).Decode(tier.stats(side), tier.block(b, side), 0, rows, out);
      });
    });
  } else {
    AttendCodes(tier, begin, end, visibility);
  }
  FinishSegment();
}

// Through the codecs' own kernels.
void AttendWorker::AttendCodes(const Tier& tier, int begin, int end, const Visibility& visibility) {
  const Chain& keys = tier.chain(Side::kKey);
  const Chain& values = tier.chain(Side::kValue);
  const float* key_stats = keys.CodecStats(tier.stats(Side::kKey));
  const float* value_stats = values.CodecStats(tier.stats(Side::kValue));
  if (cold_) PrefetchBlock(tier, begin);
  cold_ = false;
  PrepareQueries(tier);
  ForEachVisibleBlock(tier, begin, end, visibility, [&](int b, int rows, std::uint64_t visible) {
    for (int first = 0; first < group_; first += kHeadTile) {
      const SoftmaxState state = TileState(first);
      // Only the first tile fetches ahead: the others find the block in cache.
      const bool fetch = first == 0;
      keys.codec().Score(key_stats, Prepared(first), state.heads, tier.block(b, Side::kKey), rows,
                         Logits(0), fetch ? Ahead(tier, b, Side::kKey) : Prefetch{});
      UpdateSoftmax(Logits(0), memory_.bias + first, rows, visible, job_->layer.softcap, state);
      values.codec().Accumulate(value_stats, Logits(0), state.heads, tier.block(b, Side::kValue),
                                rows, state.acc, fetch ? Ahead(tier, b, Side::kValue) : Prefetch{});
    }
  });
  const AttendSums& segment = memory_.segment;
  for (int g = 0; g < group_; ++g) {
    values.FinishOutput(tier.stats(Side::kValue), segment.sum[g],
                        segment.out + g * segment.out_stride);
  }
}

void AttendWorker::PrepareQueries(const Tier& tier) {
  if (prepared_for_ == &tier) return;
  const Chain& chain = tier.chain(Side::kKey);
  const int dim = job_->layer.key_dim;
  for (int first = 0; first < group_; first += kHeadTile) {
    const int heads = std::min(kHeadTile, group_ - first);
    std::memcpy(memory_.tile_q, memory_.q + first * dim,
                static_cast<std::size_t>(heads) * static_cast<std::size_t>(dim) * sizeof(float));
    chain.PrepareQueries(tier.stats(Side::kKey), memory_.tile_q, heads, Prepared(first),
                         memory_.bias + first);
  }
  prepared_for_ = &tier;
}

// Whose blocks come next: without fetching them each KV head would begin with a wait for memory.
// Another worker may be the one that takes them; then nothing is lost but the fetching.
const Tier* AttendWorker::TierBehind(int head, std::size_t tier) const {
  ++tier;
  for (; head < job_->layer.kv_heads; ++head, tier = 0) {
    const std::vector<Tier>& tiers = job_->heads[head].tiers;
    for (; tier < tiers.size(); ++tier) {
      if (tiers[tier].blocks() > 0) return &tiers[tier];
    }
  }
  return nullptr;
}

// The next block of a side: fetching further ahead was slower (quant/kernels.h).
Prefetch AttendWorker::Ahead(const Tier& tier, int b, Side side) const {
  if (b + 1 < tier.blocks()) return {tier.block(b + 1, side).data};
  return {next_tier_ != nullptr ? next_tier_->block(0, side).data : nullptr};
}

std::uint8_t* AttendWorker::Prepared(int first_head) const {
  return memory_.prepared +
         static_cast<std::size_t>(first_head / kHeadTile) * memory_.prepared_bytes;
}

}  // namespace kvsieve

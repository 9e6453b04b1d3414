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

int Tiles(int lanes) { return (lanes + kHeadTile - 1) / kHeadTile; }

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

// Slots [0, rows); rows > 0.
std::uint64_t FirstRows(int rows) { return ~std::uint64_t{0} >> (kBlockRows - rows); }

// Into the second-level cache, as the kernels prefetch.
void PrefetchBlock(const Tier& tier, int b) {
  for (const Side side : {Side::kKey, Side::kValue}) {
    const ConstBlockRef block = tier.block(b, side);
    const std::size_t bytes = tier.chain(side).codec().BlockBytes(block.capacity_rows);
    for (std::size_t at = 0; at < bytes; at += 64) __builtin_prefetch(block.data + at, 0, 2);
  }
}

}  // namespace

void AttendSums::Merge(int lane, float other_max, float other_sum, const float* other_out,
                       int value_dim) const {
  if (other_max == kMinusInf) return;
  const float top = std::max(max[lane], other_max);
  const float keep = std::exp(max[lane] - top);
  const float add = std::exp(other_max - top);
  float* to = out + std::int64_t{lane} * out_stride;
  sum[lane] = sum[lane] * keep + other_sum * add;
  for (int d = 0; d < value_dim; ++d) to[d] = to[d] * keep + other_out[d] * add;
  max[lane] = top;
}

std::size_t AttendWorker::Cut(const AttendJob& job, std::int64_t queries, std::uint8_t* memory,
                              Memory* cut) {
  const int most_lanes = BatchOf(job.layer, queries) * job.layer.group();
  const auto lanes = static_cast<std::size_t>(most_lanes);
  const auto key_dim = static_cast<std::size_t>(job.layer.key_dim);
  const auto value_dim = static_cast<std::size_t>(job.layer.value_dim);
  const auto tiles = static_cast<std::size_t>(Tiles(most_lanes));
  const int stride = AccumulatorStride(job.layer.value_dim);
  std::size_t used = 0;
  const auto floats = [&](std::size_t count) {
    auto* at = memory == nullptr ? nullptr : reinterpret_cast<float*>(memory + used);
    used += RoundUp(count * sizeof(float));
    return at;
  };
  const auto sums = [&] {
    float* max = floats(lanes);
    float* sum = floats(lanes);
    return AttendSums{max, sum, floats(lanes * static_cast<std::size_t>(stride)), stride};
  };
  cut->q = floats(lanes * key_dim);
  cut->tile_q = floats(kHeadTile * key_dim);
  cut->logits = floats(tiles * kHeadTile * kBlockRows);
  cut->bias = floats(lanes);
  cut->no_bias = floats(lanes);
  cut->poison = floats(lanes);
  cut->segment = sums();
  cut->total = sums();
  cut->rows = floats(kBlockRows * std::max(key_dim, value_dim));
  cut->prepared_bytes = PreparedBytes(job);
  cut->prepared = memory == nullptr ? nullptr : memory + used;
  return used + tiles * cut->prepared_bytes;
}

std::size_t AttendWorker::MemoryBytes(const AttendJob& job, std::int64_t queries) {
  Memory cut{};
  return Cut(job, queries, nullptr, &cut);
}

void AttendWorker::Start(const AttendJob& job, std::uint8_t* memory) {
  job_ = &job;
  group_ = job.layer.group();
  const std::int64_t queries = std::ssize(job.query_positions);
  Cut(job, queries, memory, &memory_);
  std::fill_n(memory_.no_bias, BatchOf(job.layer, queries) * group_, 0.0F);
  cold_ = true;
  held_ = {-1, 0, 0};
  prepared_for_ = nullptr;
}

const AttendSums& AttendWorker::Run(int head, BlockRange range, std::int64_t first, int count) {
  first_ = first;
  count_ = count;
  lanes_ = count * group_;
  LoadQueries(head);
  has_total_ = false;
  if (job_->staging != nullptr) {
    AttendStaging(head);
  } else {
    const HeadStore& store = job_->heads[head];
    if (range.begin == 0) {
      AttendExact(store.sinks);
      AttendExact(store.tail);
      AttendVerify(head);
    }
    int skip = range.begin;
    int left = range.end - range.begin;
    for (std::size_t t = 0; t < store.tiers.size(); ++t) {
      const Tier& tier = store.tiers[t];
      const int begin = std::min(skip, tier.blocks());
      const int end = std::min(begin + left, tier.blocks());
      next_tier_ = TierBehind(head, t);
      if (begin < end) AttendTier(tier, begin, end);
      skip -= begin;
      left -= end - begin;
    }
  }
  if (!has_total_) {
    StartSegment();
    std::swap(memory_.segment, memory_.total);
  }
  for (int lane = 0; lane < lanes_; ++lane) memory_.total.sum[lane] += memory_.poison[lane];
  return memory_.total;
}

// A query with NaN or Inf is attended as zero, for kernels round queries to integers, and its
// result made NaN. Ranges that follow each other share the work.
void AttendWorker::LoadQueries(int head) {
  if (held_ == std::tuple{head, first_, count_}) return;
  held_ = {head, first_, count_};
  prepared_for_ = nullptr;
  const int dim = job_->layer.key_dim;
  int lane = 0;
  for (std::int64_t i = first_; i < first_ + count_; ++i) {
    for (int g = 0; g < group_; ++g, ++lane) {
      float* q = memory_.q + lane * dim;
      ConvertToF32(job_->queries.row(head * group_ + g, i), job_->queries.type, dim, q);
      const bool bad = ScaleQuery(job_->layer.scale, q, dim);
      if (bad) std::fill_n(q, dim, 0.0F);
      memory_.poison[lane] = bad ? std::numeric_limits<float>::quiet_NaN() : 0.0F;
    }
  }
}

void AttendWorker::StartSegment() {
  std::fill_n(memory_.segment.max, lanes_, kMinusInf);
  std::fill_n(memory_.segment.sum, lanes_, 0.0F);
  std::fill_n(memory_.segment.out, lanes_ * memory_.segment.out_stride, 0.0F);
}

void AttendWorker::FinishSegment() {
  if (!has_total_) {
    std::swap(memory_.segment, memory_.total);
    has_total_ = true;
    return;
  }
  const AttendSums& segment = memory_.segment;
  for (int lane = 0; lane < lanes_; ++lane) {
    memory_.total.Merge(lane, segment.max[lane], segment.sum[lane], segment.From(lane).out,
                        job_->layer.value_dim);
  }
}

SoftmaxState AttendWorker::State(int first_lane, int lanes) const {
  const AttendSums sums = memory_.segment.From(first_lane);
  return {lanes, sums.max, sums.sum, sums.out, sums.out_stride};
}

SoftmaxState AttendWorker::TileState(int first_lane) const {
  return State(first_lane, std::min(kHeadTile, lanes_ - first_lane));
}

// Which rows, in `slots` of a block and at these increasing positions, each query sees; whether any
// sees one.
bool AttendWorker::LookAt(const TokenPos* positions, std::uint64_t slots) {
  const int held = std::popcount(slots);
  std::uint64_t any = 0;
  for (int b = 0; b < count_; ++b) {
    const Visibility visibility(job_->query_positions[first_ + b], job_->layer.sliding_window);
    const bool all = visibility.All(positions[0], positions[held - 1]);
    visible_[b] = all ? slots : Spread(visibility.Mask(positions, held), slots);
    any |= visible_[b];
  }
  return any != 0;
}

// One tile's logits become weights. The lanes of a query are next to each other.
void AttendWorker::Weigh(int first_lane, int rows, const float* bias, float* logits,
                         const SoftmaxState& tile) const {
  if (count_ == 1) {
    UpdateSoftmax(logits, bias, rows, visible_[0], job_->layer.softcap, tile);
    return;
  }
  for (int done = 0; done < tile.heads;) {
    const int query = (first_lane + done) / group_;
    const int lanes = std::min(tile.heads - done, (query + 1) * group_ - first_lane - done);
    UpdateSoftmax(logits + done * kBlockRows, bias + done, rows, visible_[query],
                  job_->layer.softcap, State(first_lane + done, lanes));
    done += lanes;
  }
}

// Calls body(block, rows) for the blocks [begin, end) that have rows which a query sees; they lie
// in slots [0, rows).
template <class Body>
void AttendWorker::ForEachVisibleBlock(const Tier& tier, int begin, int end, Body body) {
  bool all_visible = true;
  for (int b = 0; b < count_; ++b) {
    const Visibility visibility(job_->query_positions[first_ + b], job_->layer.sliding_window);
    all_visible = all_visible && visibility.All(tier.positions().first(), tier.positions().last());
  }
  TokenPos positions[kBlockRows];
  for (int b = begin; b < end; ++b) {
    const std::uint64_t slots = tier.slots(b);
    if (all_visible) {
      visible_[0] = slots;
      if (count_ > 1) std::fill_n(visible_, count_, slots);
    } else {
      tier.positions().Read(tier.first_row(b), std::popcount(slots), positions);
      if (!LookAt(positions, slots)) continue;
    }
    body(b, kBlockRows - std::countl_zero(slots));
  }
}

// Rows that `read(side, out)` gives as f32, through the portable kernels: read once for all lanes
// and, where V lies in K, for both sides.
template <class Read>
void AttendWorker::AttendRead(int rows, Read read) {
  const int key_dim = job_->layer.key_dim;
  read(Side::kKey, memory_.rows);
  for (int first = 0; first < lanes_; first += kHeadTile) {
    const SoftmaxState state = TileState(first);
    quant::PortableScore({memory_.rows, rows, key_dim, key_dim}, memory_.q + first * key_dim,
                         state.heads, Logits(first));
    Weigh(first, rows, memory_.no_bias + first, Logits(first), state);
  }
  if (job_->shape.holder(Side::kValue) == Side::kValue) read(Side::kValue, memory_.rows);
  const int stride = job_->shape.row_stride(Side::kValue);
  for (int first = 0; first < lanes_; first += kHeadTile) {
    const SoftmaxState state = TileState(first);
    quant::PortableAccumulate({memory_.rows, rows, job_->layer.value_dim, stride}, Logits(first),
                              state.heads, state.acc);
  }
}

void AttendWorker::AttendExact(const ExactRows& exact) {
  if (exact.rows() == 0) return;
  StartSegment();
  TokenPos positions[kBlockRows];
  for (RowIndex begin = 0; begin < exact.rows(); begin += kBlockRows) {
    const auto rows = static_cast<int>(std::min<std::int64_t>(kBlockRows, exact.rows() - begin));
    exact.positions().Read(begin, rows, positions);
    if (!LookAt(positions, FirstRows(rows))) continue;
    AttendRead(rows,
               [&](Side side, float* out) { exact.ReadRows(job_->shape, side, begin, rows, out); });
  }
  FinishSegment();
}

void AttendWorker::AttendVerify(int head) {
  if (job_->verify == nullptr || job_->verify->rows() == 0) return;
  const VerifyRows& verify = *job_->verify;
  StartSegment();
  for (RowIndex begin = 0; begin < verify.rows(); begin += kBlockRows) {
    const auto rows = static_cast<int>(std::min<std::int64_t>(kBlockRows, verify.rows() - begin));
    if (!LookAt(verify.positions().data() + begin, FirstRows(rows))) continue;
    AttendRead(rows, [&](Side side, float* out) {
      verify.ReadRows(job_->shape, side, head, begin, rows, out);
    });
  }
  FinishSegment();
}

void AttendWorker::AttendStaging(int head) {
  const Staging& staging = *job_->staging;
  const std::int64_t total = staging.rows(head);
  StartSegment();
  TokenPos positions[kBlockRows];
  for (RowIndex begin = 0; begin < total; begin += kBlockRows) {
    const auto rows = static_cast<int>(std::min<std::int64_t>(kBlockRows, total - begin));
    staging.ReadPositions(head, begin, rows, positions);
    if (!LookAt(positions, FirstRows(rows))) continue;
    AttendRead(rows, [&](Side side, float* out) {
      staging.ReadRows(job_->shape, side, head, begin, rows, out);
    });
  }
  FinishSegment();
}

void AttendWorker::AttendTier(const Tier& tier, int begin, int end) {
  StartSegment();
  if (job_->layer.value_is_key_prefix) {
    ForEachVisibleBlock(tier, begin, end, [&](int b, int rows) {
      AttendRead(rows, [&](Side side, float* out) {
        tier.chain(side).Decode(tier.stats(side), tier.block(b, side), 0, rows, out);
      });
    });
  } else {
    AttendCodes(tier, begin, end);
  }
  FinishSegment();
}

// Through the codecs' own kernels.
void AttendWorker::AttendCodes(const Tier& tier, int begin, int end) {
  const Chain& keys = tier.chain(Side::kKey);
  const Chain& values = tier.chain(Side::kValue);
  const float* key_stats = keys.CodecStats(tier.stats(Side::kKey));
  const float* value_stats = values.CodecStats(tier.stats(Side::kValue));
  if (cold_) PrefetchBlock(tier, begin);
  cold_ = false;
  PrepareQueries(tier);
  ForEachVisibleBlock(tier, begin, end, [&](int b, int rows) {
    for (int first = 0; first < lanes_; first += kHeadTile) {
      const SoftmaxState state = TileState(first);
      // Only the first tile fetches ahead: the others find the block in cache.
      const bool fetch = first == 0;
      keys.codec().Score(key_stats, Prepared(first), state.heads, tier.block(b, Side::kKey), rows,
                         Logits(0), fetch ? Ahead(tier, b, Side::kKey) : Prefetch{});
      Weigh(first, rows, memory_.bias + first, Logits(0), state);
      values.codec().Accumulate(value_stats, Logits(0), state.heads, tier.block(b, Side::kValue),
                                rows, state.acc, fetch ? Ahead(tier, b, Side::kValue) : Prefetch{});
    }
  });
  const AttendSums& segment = memory_.segment;
  for (int lane = 0; lane < lanes_; ++lane) {
    values.FinishOutput(tier.stats(Side::kValue), segment.sum[lane], segment.From(lane).out);
  }
}

void AttendWorker::PrepareQueries(const Tier& tier) {
  if (prepared_for_ == &tier) return;
  const Chain& chain = tier.chain(Side::kKey);
  const int dim = job_->layer.key_dim;
  for (int first = 0; first < lanes_; first += kHeadTile) {
    const int heads = std::min(kHeadTile, lanes_ - first);
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

std::uint8_t* AttendWorker::Prepared(int first_lane) const {
  return memory_.prepared +
         static_cast<std::size_t>(first_lane / kHeadTile) * memory_.prepared_bytes;
}

}  // namespace kvsieve

#include "tests/lib/cache_fixture.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <thread>

#include "kvsieve/float16.h"
#include "kvsieve/str_cat.h"

namespace kvsieve::cache_test {

LayerSpec MakeLayer(int query_heads, int kv_heads, int key_dim, int value_dim) {
  LayerSpec layer;
  layer.query_heads = query_heads;
  layer.kv_heads = kv_heads;
  layer.key_dim = key_dim;
  layer.value_dim = value_dim;
  layer.scale = 1.0F / std::sqrt(static_cast<float>(key_dim));
  return layer;
}

std::string Describe(const LayerSpec& layer) {
  return StrCat("heads ", layer.query_heads, "/", layer.kv_heads, ", dims ", layer.key_dim, "/",
                layer.value_dim);
}

std::shared_ptr<const Pipeline> MustParse(std::string_view spec) {
  Result<Pipeline> pipeline = Pipeline::Parse(spec);
  if (!pipeline.ok()) {
    ADD_FAILURE() << spec << ": " << pipeline.message();
    std::abort();
  }
  return std::make_shared<const Pipeline>(*std::move(pipeline));
}

Cache MustCreate(std::string_view spec, const std::vector<LayerSpec>& layers,
                 const CacheOptions& options) {
  Result<Cache> cache = Cache::Create(MustParse(spec), layers, options);
  if (!cache.ok()) {
    ADD_FAILURE() << spec << ": " << cache.message();
    std::abort();
  }
  return *std::move(cache);
}

std::vector<float> UniformRows(std::int64_t count, std::uint64_t seed) {
  // splitmix64 (Steele, Lea, Flood 2014).
  std::uint64_t state = seed * 0x9E3779B97F4A7C15U + 1;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) {
    std::uint64_t x = state += 0x9E3779B97F4A7C15U;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
    x ^= x >> 31;
    value = (static_cast<float>(x >> 40) * 0x1p-23F - 1.0F) * 1.7320508F;
  }
  return values;
}

std::vector<TokenPos> Positions(TokenPos first, std::int64_t count) {
  std::vector<TokenPos> positions(static_cast<std::size_t>(count));
  for (TokenPos& position : positions) position = first++;
  return positions;
}

std::vector<float> RoundedToF16(std::vector<float> values) {
  for (float& value : values) value = ToFloat(ToF16(value));
  return values;
}

TypedRows::TypedRows(std::span<const float> values, ElementType type)
    : type_(type), bytes_(values.size() * ElementBytes(type)) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (type == ElementType::kF32) std::memcpy(bytes_.data() + i * 4, &values[i], 4);
    const std::uint16_t bits =
        type == ElementType::kF16 ? ToF16(values[i]).bits : ToBF16(values[i]).bits;
    if (type != ElementType::kF32) std::memcpy(bytes_.data() + i * 2, &bits, 2);
  }
}

HeadsView TypedRows::HeadMajor(int heads, std::int64_t rows, int dim) const {
  return {bytes_.data(), type_, heads, rows, dim, rows * dim, dim};
}

HeadsView Prompt::KeyView(std::int64_t first, std::int64_t count) const {
  HeadsView view = HeadsView::HeadMajor(keys.data(), layer.kv_heads, rows(), layer.key_dim);
  view.data = keys.data() + first * layer.key_dim;
  view.rows = count;
  return view;
}

HeadsView Prompt::ValueView(std::int64_t first, std::int64_t count) const {
  if (layer.value_is_key_prefix) return {};
  HeadsView view = HeadsView::HeadMajor(values.data(), layer.kv_heads, rows(), layer.value_dim);
  view.data = values.data() + first * layer.value_dim;
  view.rows = count;
  return view;
}

std::span<const TokenPos> Prompt::PositionView(std::int64_t first, std::int64_t count) const {
  return std::span(positions).subspan(static_cast<std::size_t>(first),
                                      static_cast<std::size_t>(count));
}

std::vector<oracle::HeadRows> Prompt::Heads() const {
  std::vector<oracle::HeadRows> heads(static_cast<std::size_t>(layer.kv_heads));
  for (int h = 0; h < layer.kv_heads; ++h) {
    const auto of_head = [&](const std::vector<float>& all, int dim) {
      const auto begin = all.begin() + h * rows() * dim;
      return std::vector<float>(begin, begin + rows() * dim);
    };
    heads[h] = {positions, of_head(keys, layer.key_dim), of_head(values, layer.value_dim)};
  }
  return heads;
}

std::vector<float> KeyPrefixes(std::span<const float> keys, int key_dim, int value_dim) {
  std::vector<float> values;
  for (auto row = keys.begin(); row != keys.end(); row += key_dim) {
    values.insert(values.end(), row, row + value_dim);
  }
  return values;
}

Prompt MakePrompt(const LayerSpec& layer, std::int64_t rows, std::uint64_t seed,
                  TokenPos first_position) {
  Prompt prompt{layer, Positions(first_position, rows),
                UniformRows(layer.kv_heads * rows * layer.key_dim, 2 * seed),
                UniformRows(layer.kv_heads * rows * layer.value_dim, 2 * seed + 1)};
  if (layer.value_is_key_prefix) {
    prompt.values = KeyPrefixes(prompt.keys, layer.key_dim, layer.value_dim);
  }
  return prompt;
}

Status AppendRows(Cache& cache, int layer_index, Phase phase, const Prompt& prompt,
                  std::int64_t first, std::int64_t count) {
  return cache.Append(layer_index, phase, prompt.KeyView(first, count),
                      prompt.ValueView(first, count), prompt.PositionView(first, count));
}

void MustAppend(Cache& cache, int layer_index, const Prompt& prompt, std::int64_t chunk,
                Phase phase) {
  if (chunk == 0) chunk = prompt.rows();
  for (std::int64_t first = 0; first < prompt.rows(); first += chunk) {
    const std::int64_t count = std::min(chunk, prompt.rows() - first);
    const Status status = AppendRows(cache, layer_index, phase, prompt, first, count);
    ASSERT_TRUE(status.ok()) << status.message();
  }
}

oracle::HeadRows GatherHead(const Cache& cache, int layer_index, int head) {
  const auto rows = static_cast<std::size_t>(cache.rows(layer_index, head));
  const LayerSpec& layer = cache.layer(layer_index);
  oracle::HeadRows gathered;
  gathered.positions.resize(rows);
  gathered.keys.resize(rows * static_cast<std::size_t>(layer.key_dim));
  gathered.values.resize(rows * static_cast<std::size_t>(layer.value_dim));
  const Status status =
      cache.Gather(layer_index, head, gathered.positions, gathered.keys, gathered.values);
  EXPECT_TRUE(status.ok()) << status.message();
  return gathered;
}

std::vector<oracle::HeadRows> GatherLayer(const Cache& cache, int layer_index) {
  std::vector<oracle::HeadRows> heads;
  for (int h = 0; h < cache.layer(layer_index).kv_heads; ++h) {
    heads.push_back(GatherHead(cache, layer_index, h));
  }
  return heads;
}

Attended MustAttend(const Cache& cache, int layer_index, std::span<const float> queries,
                    std::span<const TokenPos> positions, const AttendParams& params) {
  const LayerSpec& layer = cache.layer(layer_index);
  const auto n = static_cast<std::int64_t>(positions.size());
  const auto count = static_cast<std::size_t>(layer.query_heads * n);
  constexpr float kPoison = 12345.0F;
  Attended attended{std::vector<float>(count * static_cast<std::size_t>(layer.value_dim), kPoison),
                    std::vector<float>(count, kPoison)};
  AttendScratch scratch;
  const Status status =
      cache.Attend(layer_index, positions,
                   HeadsView::HeadMajor(queries.data(), layer.query_heads, n, layer.key_dim),
                   params, scratch, attended.out.data(), attended.lse.data());
  EXPECT_TRUE(status.ok()) << status.message();
  return attended;
}

std::vector<OutputError> OutputErrors(const Attended& attended, const oracle::Attention& exact,
                                      int value_dim) {
  std::vector<OutputError> errors(exact.lse.size());
  for (std::size_t i = 0; i < errors.size(); ++i) {
    double error = 0.0;
    double norm = 0.0;
    for (int d = 0; d < value_dim; ++d) {
      const std::size_t at = i * static_cast<std::size_t>(value_dim) + static_cast<std::size_t>(d);
      error += (attended.out[at] - exact.out[at]) * (attended.out[at] - exact.out[at]);
      norm += exact.out[at] * exact.out[at];
    }
    errors[i] = {std::sqrt(error), std::sqrt(norm)};
  }
  return errors;
}

void ExpectAttentionNear(const Attended& attended, const oracle::Attention& exact, int value_dim,
                         double relative, double lse_bound) {
  const std::vector<OutputError> errors = OutputErrors(attended, exact, value_dim);
  for (std::size_t i = 0; i < errors.size(); ++i) {
    // Written so that NaN fails.
    ASSERT_TRUE(errors[i].relative() <= relative)
        << "query " << i << ": relative error " << errors[i].relative();
    if (std::isinf(exact.lse[i])) {
      ASSERT_EQ(attended.lse[i], -std::numeric_limits<float>::infinity()) << "query " << i;
    } else {
      ASSERT_NEAR(attended.lse[i], exact.lse[i], lse_bound) << "query " << i;
    }
  }
}

namespace {

double LargestNorm(const std::vector<float>& rows, int dim) {
  double largest = 0.0;
  for (std::size_t at = 0; at < rows.size(); at += static_cast<std::size_t>(dim)) {
    double square = 0.0;
    for (int d = 0; d < dim; ++d) square += double{rows[at + d]} * rows[at + d];
    largest = std::max(largest, square);
  }
  return std::sqrt(largest);
}

}  // namespace

QueryRounding RoundingOf(std::string_view spec, const LayerSpec& layer) {
  const Result<LayerStore> store = BuildStore(MustParse(spec)->main_store(), layer);
  EXPECT_TRUE(store.ok()) << store.message();
  const Codec& codec = store->key->codec();
  const bool small = codec.row_bytes().codes * 8 <= codec.dim() * 5 + 4;
  return small && codec.path() == KernelPath::kFused ? QueryRounding::kByte
                                                     : QueryRounding::kSixteenBits;
}

KernelBound BoundOf(const LayerSpec& layer, std::span<const oracle::HeadRows> heads) {
  KernelBound bound;
  for (const oracle::HeadRows& head : heads) {
    bound.max_key = std::max(bound.max_key, 2 * LargestNorm(head.keys, layer.key_dim));
    bound.max_value = std::max(bound.max_value, LargestNorm(head.values, layer.value_dim));
    bound.rows = std::max(bound.rows, static_cast<double>(head.rows()));
  }
  return bound;
}

void ExpectWithinKernelBound(const LayerSpec& layer, std::span<const oracle::HeadRows> heads,
                             std::span<const float> queries, const Attended& attended,
                             const oracle::Attention& exact, QueryRounding rounding) {
  const bool byte = rounding == QueryRounding::kByte;
  const double unit = byte ? 6 * 0.29 / 64 * 5 / std::sqrt(layer.key_dim) : 0x1p-13;
  const KernelBound bound = BoundOf(layer, heads);
  const std::vector<OutputError> errors = OutputErrors(attended, exact, layer.value_dim);
  const auto dim = static_cast<std::size_t>(layer.key_dim);
  for (std::size_t i = 0; i < errors.size(); ++i) {
    const std::vector<float> q(queries.begin() + static_cast<std::ptrdiff_t>(i * dim),
                               queries.begin() + static_cast<std::ptrdiff_t>((i + 1) * dim));
    const double logit = unit * LargestNorm(q, layer.key_dim) * layer.scale * bound.max_key + 1e-5;
    const double spread = byte ? std::sqrt(exact.top[i]) : 1.0;
    const double weights = 0x1p-13 * std::sqrt(bound.rows) * exact.top[i];
    // Written so that NaN fails.
    ASSERT_TRUE(errors[i].error <= (2 * logit * spread + weights + 1e-5) * bound.max_value)
        << "query " << i << ": error " << errors[i].error << " of " << errors[i].norm;
    if (std::isinf(exact.lse[i])) {
      ASSERT_EQ(attended.lse[i], -std::numeric_limits<float>::infinity()) << "query " << i;
    } else {
      ASSERT_NEAR(attended.lse[i], exact.lse[i], logit + 1e-5) << "query " << i;
    }
  }
}

void Threads::Run(std::int64_t tasks, TaskFn fn, void* context) {
  std::atomic<std::int64_t> next{0};
  std::vector<std::thread> threads;
  for (int worker = 0; worker < workers_; ++worker) {
    threads.emplace_back([&, worker] {
      for (std::int64_t task; (task = next++) < tasks;) fn(context, task, worker);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

std::string BytesText(const ByteReport& r, WithReserve reserve) {
  std::string text = StrCat(
      "full ", r.key_full_bytes, "+", r.value_full_bytes, " f16 rows ", r.f16_rows_bytes,
      " payload ", r.payload_bytes, " scales ", r.scale_bytes, " metadata ", r.metadata_bytes,
      " kept ", r.key_kept_bytes, "+", r.value_kept_bytes, " observation ", r.observation_bytes,
      " seen ", r.tokens_seen, " rows ", r.rows_kept, " lifetime ", r.lifetime_tokens);
  if (reserve == WithReserve::kYes) {
    text += StrCat(" padding ", r.padding_bytes, " reserved ", r.reserved_bytes);
  }
  return text;
}

std::string StateOf(const Cache& cache, WithReserve reserve) {
  std::string state =
      StrCat("next ", cache.next_position(), " exact from ", cache.oldest_exact_position());
  for (int i = 0; i < cache.layers(); ++i) {
    const LayerReport report = cache.ReportLayer(i);
    state += StrCat("\nlayer ", i, ": ", report.applied, "; ", report.note, "; ",
                    BytesText(report.bytes, reserve));
    for (const oracle::HeadRows& head : GatherLayer(cache, i)) {
      std::uint64_t hash = 14695981039346656037U;  // FNV-1a over bit patterns
      const auto mix = [&](std::uint32_t bits) { hash = (hash ^ bits) * 1099511628211U; };
      for (const TokenPos position : head.positions) mix(static_cast<std::uint32_t>(position));
      for (const float value : head.keys) mix(std::bit_cast<std::uint32_t>(value));
      for (const float value : head.values) mix(std::bit_cast<std::uint32_t>(value));
      state += StrCat("\n  ", head.rows(), " rows ", hash);
    }
  }
  return state;
}

// Behind what was asked for, to see writes past it.
constexpr std::size_t kGuardBytes = 16;
constexpr std::uint8_t kGuard = 0xA5;

void* TestAllocator::Allocate(std::size_t bytes) {
  EXPECT_GT(bytes, 0U);
  if (fail_at == 0) {
    ++refusals;
    if (fail == Fail::kOne) fail_at = -1;
    return nullptr;
  }
  if (fail_at > 0) --fail_at;
  const std::size_t guarded = bytes + kGuardBytes;
  const std::size_t rounded = (guarded + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
  void* memory = std::aligned_alloc(kBlockAlignment, rounded);
  if (memory == nullptr) return nullptr;
  std::memset(memory, 0, bytes);
  std::memset(static_cast<std::uint8_t*>(memory) + bytes, kGuard, kGuardBytes);
  live_bytes += static_cast<std::int64_t>(bytes);
  peak_bytes = std::max(peak_bytes, live_bytes);
  return memory;
}

void TestAllocator::Deallocate(void* memory, std::size_t bytes) {
  const auto* guard = static_cast<const std::uint8_t*>(memory) + bytes;
  EXPECT_TRUE(std::all_of(guard, guard + kGuardBytes, [](std::uint8_t b) { return b == kGuard; }))
      << "written past the " << bytes << " bytes that were asked for";
  live_bytes -= static_cast<std::int64_t>(bytes);
  std::free(memory);
}

}  // namespace kvsieve::cache_test

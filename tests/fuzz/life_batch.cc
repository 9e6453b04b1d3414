#include "tests/fuzz/life_batch.h"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "kvsieve/byte_stream.h"
#include "kvsieve/float16.h"

namespace kvsieve::fuzz {
namespace {

// Every kind of store, tail, eviction and schedule. The third layer is MLA, so that K and V are
// stored alike there.
constexpr const char* kSpecs[] = {
    "none | kv=f16",
    "none | kv=int8 | exact_sinks=4 | tail=7",
    "recency(budget=40) | kv=f16 | schedule=every(8)",
    "random(budget=40) | k=center+turbo4, v=int4, layers(2..2)={kv=turbo4} | tail=5 | "
    "schedule=every(11)",
    "snapkv(budget=40,window=8) | kv=int8 | tail=3 | schedule=per_chunk",
    "snapkv(budget=40,window=8,scope=layer) | kv=turbo3 | schedule=every(9)",
    "snapkv(budget=60%,window=8) | kv=center+int8 | cold(20%)={kv=center+turbo3} | exact_sinks=2",
    "random(budget=40) | kv=int8 | cold(10)={kv=int4} | tail=4 | schedule=per_chunk",
    "key_norm(budget=40) | kv=int4 | cold(12)={kv=turbo2} | cold(6)={kv=turbo1} | "
    "schedule=every(13)",
    "recency(budget=48) | kv=channel(bits=2,group=16) | tail=20",
    "random(budget=64,select=block:16) | kv=channel(bits=4,group=16) | schedule=every(20)",
    "waterfill(budget=2x,window=8) | tiers=[kv=int8; kv=turbo4; kv=turbo2] | tail=6",
    "key_diff(budget=2x) | kv=q8_0",
    "lag(budget=32,sinks=2) | kv=hadamard+int4 | exact_sinks=3, tail=2",
    "none | kv=channel_scale+int8 | tail=9",
    "random(budget=30,over_budget=budget) | kv=fp8 | schedule=every(1)",
};

std::vector<LayerSpec> Layers() {
  std::vector<LayerSpec> layers(3);
  layers[0].query_heads = 4;
  layers[1].query_heads = layers[2].query_heads = 2;
  layers[0].kv_heads = 2;
  layers[1].kv_heads = layers[2].kv_heads = 1;
  for (LayerSpec& layer : layers) {
    layer.key_dim = layer.value_dim = 32;
    layer.scale = 0.18F;
  }
  layers[1].sliding_window = 24;
  layers[1].softcap = 20;
  layers[2].key_dim = 64;
  layers[2].value_is_key_prefix = true;
  return layers;
}

std::vector<TokenPos> PositionsOf(std::span<const Token> tokens) {
  std::vector<TokenPos> positions;
  for (const Token& token : tokens) positions.push_back(token.position);
  return positions;
}

}  // namespace

void* CountingAllocator::Allocate(std::size_t bytes) {
  if (fail_at == 0) return nullptr;
  if (fail_at > 0) --fail_at;
  void* memory = std::aligned_alloc(kBlockAlignment, (bytes + 63) / 64 * 64);
  KVS_REQUIRE(memory != nullptr);
  std::memset(memory, 0, bytes);
  live_bytes += static_cast<std::int64_t>(bytes);
  return memory;
}

void CountingAllocator::Deallocate(void* memory, std::size_t bytes) {
  live_bytes -= static_cast<std::int64_t>(bytes);
  std::free(memory);
}

LifeBatch::LifeBatch(int pipeline, int flags)
    : layers_(Layers()), spec_(kSpecs[pipeline % std::size(kSpecs)]), f16_rows_((flags & 1) != 0) {
  Result<Pipeline> parsed = Pipeline::Parse(spec_);
  KVS_REQUIRE(parsed.ok());
  scores_in_decode_ = spec_.find("every(") != std::string::npos;
  CacheOptions options;
  options.allocator = &allocator_;
  if ((flags & 2) != 0) options.decode_rows = DecodeRows::kExact;
  Result<CacheSet> set =
      CacheSet::Create(std::make_shared<const Pipeline>(*std::move(parsed)), layers_, options);
  KVS_REQUIRE(set.ok());
  set_.emplace(*std::move(set));
  KVS_REQUIRE(set_->Add().ok());
  models_.push_back(NewModel());
}

// A budget in rows, uniform over heads, is what they have after an eviction.
Model LifeBatch::NewModel() const {
  const std::size_t at = spec_.find("budget=");
  if (at == std::string::npos) return {layers_, 0};
  char* end = nullptr;
  const std::int64_t rows = std::strtoll(spec_.c_str() + at + 7, &end, 10);
  return {layers_, *end == ',' || *end == ')' ? rows : 0};
}

LifeBatch::~LifeBatch() {
  set_.reset();
  KVS_REQUIRE(allocator_.live_bytes == 0);
}

bool LifeBatch::Done(const Status& status) const {
  if (status.ok()) return true;
  KVS_REQUIRE(status.message().find('\n') == std::string::npos);
  KVS_REQUIRE(faulty_ && status.error().code == ErrorCode::kOutOfMemory);
  return false;
}
void LifeBatch::Refused(const Status& status, ErrorCode code) const {
  KVS_REQUIRE(!status.ok());
  KVS_REQUIRE(status.message().find('\n') == std::string::npos);
  KVS_REQUIRE(status.error().code == code ||
              (faulty_ && status.error().code == ErrorCode::kOutOfMemory));
}

std::vector<Token> LifeBatch::NextTokens(int layer, std::int64_t count, int gap) {
  std::vector<Token> tokens;
  for (std::int64_t i = 0; i < count; ++i) {
    tokens.push_back({static_cast<TokenPos>(model().layers[layer].end() + gap + i), births_});
  }
  ++births_;
  return tokens;
}

Status LifeBatch::AppendRows(int layer, Phase phase, std::span<const Token> tokens) {
  const LayerSpec& spec = layers_[layer];
  const auto n = static_cast<std::int64_t>(tokens.size());
  const std::vector<float> keys =
      MakeRows(layer, RowKind::kKey, tokens, spec.kv_heads, spec.key_dim);
  const std::vector<float> values =
      MakeRows(layer, RowKind::kValue, tokens, spec.kv_heads, spec.value_dim);
  std::vector<F16> keys_f16;
  std::vector<F16> values_f16;
  for (const float x : keys) keys_f16.push_back(ToF16(x));
  for (const float x : values) values_f16.push_back(ToF16(x));
  const auto view = [&](const std::vector<float>& f32, const std::vector<F16>& f16, int dim) {
    return f16_rows_ ? HeadsView::HeadMajor(f16.data(), spec.kv_heads, n, dim)
                     : HeadsView::HeadMajor(f32.data(), spec.kv_heads, n, dim);
  };
  HeadsView value_view;
  if (!spec.value_is_key_prefix) value_view = view(values, values_f16, spec.value_dim);
  return cache().Append(layer, phase, view(keys, keys_f16, spec.key_dim), value_view,
                        PositionsOf(tokens));
}

bool LifeBatch::Observe(int layer, std::span<const Token> tokens) {
  const LayerSpec& spec = layers_[layer];
  const std::vector<float> queries =
      MakeRows(layer, RowKind::kQuery, tokens, spec.query_heads, spec.key_dim);
  const Status status =
      cache().Observe(layer, PositionsOf(tokens),
                      HeadsView::HeadMajor(queries.data(), spec.query_heads,
                                           static_cast<std::int64_t>(tokens.size()), spec.key_dim));
  if (model().finished && !scores_in_decode_) {
    Refused(status, ErrorCode::kState);
    return true;
  }
  return Done(status);
}

std::vector<std::byte> LifeBatch::SavedBytes() {
  MemorySink sink;
  const Status status = cache().Save("fuzz", sink);
  KVS_REQUIRE(status.ok() != model().AnyOpen());
  return sink.bytes();
}

void LifeBatch::ExpectCounted() const {
  const ByteReport report = set_->Report();
  KVS_REQUIRE(report.resident_bytes() == allocator_.live_bytes);
  KVS_REQUIRE(report.shared_bytes <= report.resident_bytes());
}

}  // namespace kvsieve::fuzz

#include "kvsieve/cache.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "kvsieve/str_cat.h"
#include "lib/cache_impl.h"
#include "lib/prefill_plan.h"
#include "lib/reselect.h"
#include "lib/tier_store.h"

namespace kvsieve {
namespace {

Status CheckIndex(int layer_index, std::size_t layers) {
  if (layer_index >= 0 && static_cast<std::size_t>(layer_index) < layers) return Status::Ok();
  return Status::Invalid(StrCat("layer index ", layer_index, " is outside [0, ", layers, ")"));
}

// Runs `call(layer)` on one of `layers`; an error gets the layer's name, a refused heap request
// becomes one.
template <class Layers, class Call>
Status OnLayer(Layers& layers, int layer_index, Call&& call) {
  return NoThrow([&]() -> Status {
    KVS_RETURN_IF_ERROR(CheckIndex(layer_index, layers.size()));
    auto& layer = layers[layer_index];
    return WithLayer(layer, call(layer));
  });
}

Status CheckView(std::string_view name, const HeadsView& view, int heads, std::int64_t rows,
                 int dim) {
  if (view.heads != heads || view.rows != rows || view.dim != dim ||
      (view.data == nullptr && rows > 0)) {
    return Status::Invalid(StrCat(name, " have shape [", view.heads, ", ", view.rows, ", ",
                                  view.dim, "]", view.data == nullptr ? " (null)" : "",
                                  ", expected [", heads, ", ", rows, ", ", dim, "]"));
  }
  // Strides that would make rows overlap: a view filled in the wrong order.
  if (rows > 1 && view.row_stride < dim) {
    return Status::Invalid(
        StrCat(name, " have row_stride ", view.row_stride, ", smaller than their dim ", dim));
  }
  if (heads > 1 && rows > 0 && view.head_stride < dim) {
    return Status::Invalid(
        StrCat(name, " have head_stride ", view.head_stride, ", smaller than their dim ", dim));
  }
  constexpr std::int64_t kMostBytes = std::numeric_limits<std::ptrdiff_t>::max();
  const __int128 end = static_cast<__int128>(heads - 1) * view.head_stride +
                       static_cast<__int128>(rows - 1) * view.row_stride + dim;
  if (rows > 0 && end > kMostBytes / static_cast<int>(ElementBytes(view.type))) {
    return Status::Invalid(StrCat(name, " have head_stride ", view.head_stride, " and row_stride ",
                                  view.row_stride, ", beyond all memory"));
  }
  return Status::Ok();
}

// Strictly increasing and not before `next`.
Status CheckPositions(std::span<const TokenPos> positions, TokenPos next) {
  constexpr TokenPos kLast = std::numeric_limits<TokenPos>::max() - 1;
  if (!positions.empty() && next > kLast) {
    return Status::Invalid(StrCat("position ", positions[0], ": none is left behind ", kLast));
  }
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const TokenPos least = i == 0 ? next : positions[i - 1] + 1;
    if (positions[i] < least || positions[i] > kLast) {
      return Status::Invalid(StrCat("position ", positions[i], " of row ", i, " must be in [",
                                    least, ", ", kLast, "]"));
    }
  }
  return Status::Ok();
}

// An MLA layer takes none: V lies in K.
Status CheckValues(const HeadsView& values, const LayerSpec& layer, std::int64_t rows) {
  if (!layer.value_is_key_prefix) {
    return CheckView("values", values, layer.kv_heads, rows, layer.value_dim);
  }
  if (values.data == nullptr && values.rows == 0) return Status::Ok();
  return Status::Invalid(StrCat("values have ", values.rows, " rows, but V is the first ",
                                layer.value_dim,
                                " elements of K (value_is_key_prefix): give an empty view"));
}

Status CheckTypes(const LayerState& layer, ElementType keys, ElementType values) {
  const bool typed = layer.typed || layer.verify.rows() > 0;
  if (!typed || (keys == layer.shape.key_type && values == layer.shape.value_type)) {
    return Status::Ok();
  }
  return Status::Invalid(StrCat("rows are ", ElementName(keys), "/", ElementName(values),
                                ", the layer's first rows were ", ElementName(layer.shape.key_type),
                                "/", ElementName(layer.shape.value_type)));
}

Status CheckSinkLogits(std::span<const float> sinks, int query_heads) {
  if (sinks.empty()) return Status::Ok();
  if (std::ssize(sinks) != query_heads) {
    return Status::Invalid(
        StrCat("sink_logits are ", sinks.size(), ", the layer has ", query_heads, " query heads"));
  }
  for (std::size_t head = 0; head < sinks.size(); ++head) {
    if (std::isfinite(sinks[head])) continue;
    return Status(ErrorCode::kNonFinite, StrCat("sink_logits, query head ", head, ": NaN or Inf"));
  }
  return Status::Ok();
}

Result<LayerState> MakeLayer(const Pipeline& pipeline, const LayerSpec& spec, int index,
                             int count) {
  KVS_RETURN_IF_ERROR(spec.Validate());
  LayerState layer;
  layer.spec = spec;
  layer.shape.key_dim = spec.key_dim;
  layer.shape.value_dim = spec.value_dim;
  layer.shape.value_is_key_prefix = spec.value_is_key_prefix;
  Result<std::vector<LayerStore>> stores = BuildTierStores(pipeline, index, count, spec);
  if (!stores.ok()) return WithLayer(layer, stores.TakeStatus());
  layer.stores = *std::move(stores);
  layer.demotes = pipeline.demotes() && layer.stores.size() > 1;
  return layer;
}

// verify_rows: open ones of the layer.
Status CheckPhase(Phase phase, bool finished, std::int64_t verify_rows) {
  if (phase == Phase::kPrefill && finished) {
    return Status(ErrorCode::kState,
                  "phase prefill after the prompt was finished (FinishPrefill): use phase decode");
  }
  if (phase != Phase::kPrefill && !finished) {
    return Status(ErrorCode::kState, StrCat("phase ", phase == Phase::kVerify ? "verify" : "decode",
                                            ": finish the prompt first (FinishPrefill)"));
  }
  if (phase == Phase::kDecode && verify_rows > 0) {
    return Status(ErrorCode::kState, StrCat("phase decode while ", verify_rows,
                                            " verify rows are open: accept or roll back first"));
  }
  return Status::Ok();
}

Status CheckVerifyRoom(std::int64_t open, std::int64_t more, std::int64_t most) {
  if (more <= most - open) return Status::Ok();
  return Status::Invalid(StrCat(more, " verify rows beside ", open, " open ones are more than the ",
                                most, " of ReserveSpeculative"));
}

}  // namespace

AttendScratch::AttendScratch() : impl_(std::make_unique<Impl>()) {}
AttendScratch::AttendScratch(std::span<std::byte> memory) : impl_(std::make_unique<Impl>(memory)) {}
AttendScratch::~AttendScratch() = default;
AttendScratch::AttendScratch(AttendScratch&&) noexcept = default;
AttendScratch& AttendScratch::operator=(AttendScratch&&) noexcept = default;
std::int64_t AttendScratch::bytes() const { return impl_->memory.bytes(); }

Cache::Cache(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Cache::~Cache() = default;
Cache::Cache(Cache&&) noexcept = default;
Cache& Cache::operator=(Cache&&) noexcept = default;

Result<Cache> Cache::Create(std::shared_ptr<const Pipeline> pipeline, std::vector<LayerSpec> layers,
                            const CacheOptions& options) {
  return NoThrow([&]() -> Result<Cache> {
    auto impl = std::make_unique<Impl>();
    if (pipeline == nullptr) return Status::Invalid("cache: no pipeline was given");
    if (layers.empty()) return Status::Invalid("cache: no layers were given");
    const int count = static_cast<int>(layers.size());
    KVS_RETURN_IF_ERROR(pipeline->CheckLayers(count));
    for (int i = 0; i < count; ++i) {
      KVS_ASSIGN_OR_RETURN(LayerState layer, MakeLayer(*pipeline, layers[i], i, count));
      impl->layers.push_back(std::move(layer));
    }
    impl->pipeline = std::move(pipeline);
    impl->allocator = options.allocator != nullptr ? options.allocator : &DefaultAllocator();
    impl->parallel = options.parallel;
    impl->decode_rows = options.decode_rows;
    return Cache(std::move(impl));
  });
}

Status Cache::Append(int layer_index, Phase phase, const HeadsView& keys, const HeadsView& values,
                     std::span<const TokenPos> positions) {
  return OnLayer(impl_->layers, layer_index, [&](LayerState& layer) -> Status {
    const auto n = static_cast<std::int64_t>(positions.size());
    const std::int64_t open = layer.verify.rows();
    KVS_RETURN_IF_ERROR(CheckPhase(phase, impl_->finished, open));
    if (phase == Phase::kVerify) {
      KVS_RETURN_IF_ERROR(CheckVerifyRoom(open, n, impl_->speculative.most));
    }
    KVS_RETURN_IF_ERROR(CheckView("keys", keys, layer.spec.kv_heads, n, layer.spec.key_dim));
    KVS_RETURN_IF_ERROR(CheckValues(values, layer.spec, n));
    KVS_RETURN_IF_ERROR(CheckPositions(positions, layer.end_position()));
    const ElementType value_type = layer.spec.value_is_key_prefix ? keys.type : values.type;
    KVS_RETURN_IF_ERROR(CheckTypes(layer, keys.type, value_type));
    if (n == 0) return Status::Ok();
    // Should these be refused, the layer holds none and the next rows name their types anew.
    layer.shape.key_type = keys.type;
    layer.shape.value_type = value_type;
    return impl_->AddRows(layer, phase, keys, values, positions);
  });
}

Status Cache::Impl::AddRows(LayerState& layer, Phase phase, const HeadsView& keys,
                            const HeadsView& values, std::span<const TokenPos> positions) {
  const NonFinitePolicy policy = pipeline->nonfinite();
  if (phase == Phase::kVerify) {
    return layer.verify.Append(*allocator, layer.shape, keys, values, positions, policy,
                               speculative);
  }
  if (phase == Phase::kDecode) {
    DecodeAppend decode = DecodeInto(layer);
    KVS_RETURN_IF_ERROR(decode.Prepare(keys, values, positions, policy));
    decode.Commit();
    return Status::Ok();
  }
  layer.seen.Reserve(positions);
  KVS_RETURN_IF_ERROR(layer.staging.Append(*allocator, layer.shape, keys, values, positions, policy,
                                           &layer.zeroed));
  layer.CountTokens(positions, pipeline->exact_sinks());
  return Status::Ok();
}

DecodeAppend Cache::Impl::DecodeInto(LayerState& layer) {
  const bool exact = decode_rows == DecodeRows::kExact;
  return {layer, *allocator, pipeline->exact_sinks(), exact ? kEndlessTail : pipeline->tail()};
}

Status Cache::Evict(int layer_index) {
  return OnLayer(impl_->layers, layer_index, [&](LayerState& layer) -> Status {
    const Schedule& schedule = impl_->pipeline->schedule();
    const bool per_chunk = schedule.kind == Schedule::Kind::kPerChunk && !impl_->finished;
    const bool every = schedule.kind == Schedule::Kind::kEvery && impl_->finished &&
                       layer.since_eviction >= schedule.tokens;
    if ((!per_chunk && !every) || layer.slides() || layer.tokens() == 0) return Status::Ok();
    if (layer.verify.rows() > 0) return Status::Ok();
    const TierRule tiers = layer.demotes ? impl_->pipeline->tier_rule() : TierRule();
    const ReselectContext context{*impl_->pipeline->evictor(), tiers, *impl_->allocator,
                                  impl_->workers()};
    KVS_ASSIGN_OR_RETURN(const std::int64_t scratch_bytes, per_chunk
                                                               ? ReselectStaged(context, layer)
                                                               : ReselectStored(context, layer));
    impl_->scratch_peak_bytes = std::max(impl_->scratch_peak_bytes, scratch_bytes);
    layer.since_eviction = 0;
    layer.external_scores = {};
    return Status::Ok();
  });
}

Status Cache::Observe(int layer_index, std::span<const TokenPos> positions,
                      const HeadsView& queries) {
  return OnLayer(impl_->layers, layer_index, [&](LayerState& layer) -> Status {
    if (impl_->finished && impl_->pipeline->schedule().kind != Schedule::Kind::kEvery) {
      return Status(ErrorCode::kState,
                    "observe after the prompt was finished (FinishPrefill): only schedule=every(n) "
                    "scores during decode");
    }
    if (layer.verify.rows() > 0) {
      return Status(ErrorCode::kState,
                    StrCat("observe while ", layer.verify.rows(),
                           " verify rows are open: after Accept, the queries of those that stay"));
    }
    KVS_RETURN_IF_ERROR(CheckView("queries", queries, layer.spec.query_heads,
                                  static_cast<std::int64_t>(positions.size()), layer.spec.key_dim));
    KVS_RETURN_IF_ERROR(CheckPositions(positions, layer.ring.end()));
    const int capacity = impl_->pipeline->ObservedQueries(layer.spec);
    if (capacity == 0) return Status::Ok();
    return layer.ring.Observe(*impl_->allocator, layer.spec, capacity, positions, queries);
  });
}

// The number of scores is checked where they are ranked: rows may still come.
Status Cache::SetExternalScores(int layer_index, std::span<const float> scores) {
  return OnLayer(impl_->layers, layer_index, [&](LayerState& layer) -> Status {
    const Evictor* evictor = impl_->pipeline->evictor();
    if (evictor == nullptr || !evictor->needs().external_scores) {
      return Status::Invalid("the pipeline does not rank rows by external scores");
    }
    layer.external_scores = scores;
    return Status::Ok();
  });
}

Status Cache::FinishPrefill(std::int64_t scratch_limit_bytes) {
  return NoThrow([&]() -> Status {
    if (impl_->finished) return Status(ErrorCode::kState, "FinishPrefill was called before");
    PrefillPlan plan(*impl_->pipeline, impl_->layers, *impl_->allocator, impl_->workers());
    KVS_RETURN_IF_ERROR(plan.Decide(scratch_limit_bytes));
    KVS_RETURN_IF_ERROR(plan.Reserve());
    plan.Commit();
    impl_->finished = true;
    impl_->scratch_peak_bytes = std::max(impl_->scratch_peak_bytes, plan.scratch_peak_bytes());
    return Status::Ok();
  });
}

void Cache::Clear() {
  for (LayerState& layer : impl_->layers) {
    static_cast<LayerProgress&>(layer) = {};
    layer.staging = Staging();
    layer.ring = QueryRing();
    layer.heads.clear();
    layer.verify = VerifyRows();
  }
  impl_->finished = false;
  impl_->scratch_peak_bytes = 0;
}

Status Cache::Attend(int layer_index, std::span<const TokenPos> query_positions,
                     const HeadsView& queries, const AttendParams& params, AttendScratch& scratch,
                     float* out, float* lse) const {
  return OnLayer(impl_->layers, layer_index, [&](const LayerState& layer) -> Status {
    const auto n = static_cast<std::int64_t>(query_positions.size());
    KVS_RETURN_IF_ERROR(
        CheckView("queries", queries, layer.spec.query_heads, n, layer.spec.key_dim));
    if (n > 0 && out == nullptr) return Status::Invalid("attend: out is null");
    AttendJob job;
    job.layer = layer.spec;
    job.layer.scale = params.scale.value_or(layer.spec.scale);
    job.layer.softcap = params.softcap.value_or(layer.spec.softcap);
    job.layer.sliding_window = params.sliding_window.value_or(layer.spec.sliding_window);
    KVS_RETURN_IF_ERROR(job.layer.Validate());
    KVS_RETURN_IF_ERROR(CheckSinkLogits(params.sink_logits, layer.spec.query_heads));
    job.sink_logits = params.sink_logits;
    job.shape = layer.shape;
    job.queries = queries;
    job.query_positions = query_positions;
    job.heads = layer.heads;
    job.verify = &layer.verify;
    if (!impl_->finished) job.staging = &layer.staging;
    Parallel& parallel = params.parallel != nullptr ? *params.parallel : scratch.impl_->serial;
    return kvsieve::Attend(job, parallel, scratch.impl_->memory, out, lse);
  });
}

Result<std::int64_t> Cache::AttendScratchBytes(int layer_index, std::int64_t queries,
                                               int workers) const {
  return NoThrow([&]() -> Result<std::int64_t> {
    KVS_RETURN_IF_ERROR(CheckIndex(layer_index, impl_->layers.size()));
    const LayerState& layer = impl_->layers[layer_index];
    AttendJob job;
    job.layer = layer.spec;
    job.shape = layer.shape;
    job.heads = layer.heads;
    return static_cast<std::int64_t>(AttendBytes(job, queries, workers));
  });
}

int Cache::layers() const { return static_cast<int>(impl_->layers.size()); }
const LayerSpec& Cache::layer(int layer_index) const { return impl_->layers[layer_index].spec; }

std::int64_t Cache::rows(int layer_index, int head) const {
  const LayerState& layer = impl_->layers[layer_index];
  if (!impl_->finished) return layer.staging.rows(head);
  return layer.heads[head].rows() + layer.verify.rows();
}

TokenPos Cache::next_position() const { return impl_->layers.front().end_position(); }

}  // namespace kvsieve

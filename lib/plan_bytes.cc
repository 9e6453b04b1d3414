#include "kvsieve/plan_bytes.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "kvsieve/str_cat.h"
#include "lib/byte_bounds.h"
#include "lib/head_bytes.h"
#include "lib/kept_positions.h"
#include "lib/plan_limits.h"
#include "lib/planned_bytes.h"
#include "lib/staging.h"
#include "lib/tier_store.h"

namespace kvsieve {
namespace {

std::int64_t Floor64(std::int64_t n) { return n / kBlockRows - (n % kBlockRows < 0 ? 1 : 0); }

// From 64ths.
ByteBounds Whole(const ByteBounds& bounds) {
  ByteBounds whole;
  for (const auto field : kByteReportSums) {
    whole.least.*field = std::max<std::int64_t>(0, Floor64(bounds.least.*field));
    whole.most.*field = -Floor64(-(bounds.most.*field));
  }
  return whole;
}

bool Alike(const HeadForecast& a, const HeadForecast& b) {
  const auto same = [](const PositionRange& x, const PositionRange& y) {
    return x.begin == y.begin && x.end == y.end;
  };
  const auto alike = [&](const auto& x, const auto& y) {
    return std::equal(x.begin(), x.end(), y.begin(), y.end(), same);
  };
  return a.rows.least == b.rows.least && a.rows.most == b.rows.most &&
         alike(a.certain, b.certain) && alike(a.never_cold, b.never_cold);
}

// Some layers together: heads beside their rows, and the rows (lib/head_bytes.h).
struct Stored {
  ByteBounds beside;
  ByteReport block;
  RowBounds rows;

  ByteBounds bytes() const {
    return Whole({beside.least + block * rows.least, beside.most + block * rows.most});
  }
};

class Planner {
 public:
  Planner(const Pipeline& pipeline, std::span<const LayerSpec> layers, const PlanRequest& request)
      : pipeline_(pipeline), layers_(layers), request_(request) {}

  Status Build();
  Result<BytePlan> Run();

 private:
  // What a budget in bytes may come to: the rows of all heads, as Ranking::Select takes them.
  struct Totals {
    RowBounds rows;
    std::optional<std::int64_t> limit_bytes;  // kept bytes do not pass it
  };
  BytePlan BoundOfPlan() const;
  Result<Forecast> Foresee(std::int64_t total_rows) const;
  Result<Forecast> Foresee(const Totals& totals) const;
  Result<Totals> FindTotals(const ByteBudget& budget) const;
  Result<ByteRange> KeptAt(std::int64_t total_rows) const;
  std::int64_t Unevenness() const;
  std::int64_t ranked_heads() const;

  Stored StoredBy(std::size_t layer, const Forecast* forecast, std::int64_t decode_tokens) const;
  BytePlan PlanOf(const Forecast* forecast, std::int64_t decode_tokens) const;
  std::int64_t RingBytes(const LayerSpec& layer, std::int64_t tokens) const;
  std::int64_t ChunkTokens() const;
  ByteRange StagedBytes(const Forecast* forecast) const;
  ByteRange StagedByChunks(std::size_t layer, const RowBounds& kept) const;
  ByteReport Seen(std::size_t layer, std::int64_t decode_tokens) const;

  const Pipeline& pipeline_;
  std::span<const LayerSpec> layers_;
  const PlanRequest& request_;
  std::vector<HeadSetting> settings_;
};

Status Planner::Build() {
  if (layers_.empty()) return Status::Invalid("plan: no layers were given");
  const int count = static_cast<int>(layers_.size());
  KVS_RETURN_IF_ERROR(pipeline_.CheckLayers(count));
  for (int i = 0; i < count; ++i) {
    const LayerSpec& layer = layers_[static_cast<std::size_t>(i)];
    KVS_RETURN_IF_ERROR(layer.Validate());
    HeadSetting setting;
    setting.layer = layer;
    Result<std::vector<LayerStore>> stores = BuildTierStores(pipeline_, i, count, layer);
    if (!stores.ok()) {
      return Status(stores.error().code,
                    StrCat("layer ", layer.layer, ": ", stores.error().message));
    }
    setting.stores = *std::move(stores);
    for (const ColdRows& cold : pipeline_.tier_rule().cold) {
      setting.cold_rows.push_back(cold.RowsOf(request_.prompt_tokens));
    }
    if (setting.stores.size() > 1 && setting.group_rows() > 1 && !pipeline_.plans_tiers()) {
      return Status::Unsupported("plan: cold tiers with codec channel are not planned");
    }
    setting.shape.key_type = request_.key_type;
    setting.shape.value_type = request_.value_type;
    setting.shape.key_dim = layer.key_dim;
    setting.shape.value_dim = layer.value_dim;
    setting.shape.value_is_key_prefix = layer.value_is_key_prefix;
    setting.prompt_tokens = request_.prompt_tokens;
    setting.exact_sinks = pipeline_.exact_sinks();
    setting.tail = pipeline_.tail();
    settings_.push_back(std::move(setting));
  }
  return Status::Ok();
}

Result<Forecast> Planner::Foresee(std::int64_t total_rows) const {
  ForecastCall call;
  call.layers = layers_;
  call.tokens = request_.prompt_tokens;
  call.total_rows = total_rows;
  if (pipeline_.schedule().kind == Schedule::Kind::kPerChunk) {
    call.decisions = ForecastCall::Decisions::kEachChunk;
  }
  return pipeline_.evictor()->Foresee(call);
}

// Of any total in between. More rows protect no fewer; a split that rounds may give a head a row
// less although there are more to divide.
Result<Forecast> Planner::Foresee(const Totals& totals) const {
  KVS_ASSIGN_OR_RETURN(Forecast forecast, Foresee(totals.rows.least));
  if (totals.rows.least == totals.rows.most) return forecast;
  KVS_ASSIGN_OR_RETURN(const Forecast most, Foresee(totals.rows.most));
  const PositionRange prompt = {0, static_cast<TokenPos>(request_.prompt_tokens)};
  forecast.rows = {};
  for (std::size_t i = 0; i < forecast.layers.size(); ++i) {
    LayerForecast& layer = forecast.layers[i];
    RowBounds alone;
    for (std::size_t h = 0; h < layer.heads.size(); ++h) {
      HeadForecast& head = layer.heads[h];
      const std::int64_t certain = KeptPositions::CertainRows(prompt, head.certain);
      head.rows.least = std::max(certain, head.rows.least - 1);
      head.rows.most = std::min(request_.prompt_tokens, most.layers[i].heads[h].rows.most + 1);
      alone += head.rows;
    }
    const auto heads = static_cast<std::int64_t>(layer.heads.size());
    layer.rows = {std::max(alone.least, layer.rows.least - heads),
                  std::min(alone.most, most.layers[i].rows.most + heads)};
    forecast.rows += layer.rows;
  }
  return forecast;
}

ByteReport Planner::Seen(std::size_t layer, std::int64_t decode_tokens) const {
  ByteReport seen;
  AddSeen(layers_[layer], request_.prompt_tokens + decode_tokens, layers_[layer].kv_heads, seen);
  seen.lifetime_tokens = seen.tokens_seen;
  return seen;
}

Stored Planner::StoredBy(std::size_t layer, const Forecast* forecast,
                         std::int64_t decode_tokens) const {
  HeadSetting setting = settings_[layer];
  setting.decode_tokens = decode_tokens;
  const HeadBytes head_bytes(setting);
  const std::int64_t heads = setting.layer.kv_heads;
  Stored stored;
  if (setting.layer.sliding_window > 0) {
    const ByteBounds head = head_bytes.Sliding();
    stored.beside = {head.least * heads, head.most * heads};
    return stored;
  }
  stored.block = head_bytes.BlockCost();
  const auto tokens = static_cast<TokenPos>(request_.prompt_tokens);
  const HeadForecast all{{tokens, tokens}, {{0, tokens}}, {{0, tokens}}};
  if (forecast == nullptr) {
    const ByteBounds head = head_bytes.Kept(all);
    stored.beside = {head.least * heads, head.most * heads};
    stored.rows = {tokens * heads, tokens * heads};
    return stored;
  }
  const LayerForecast& kept = forecast->layers[layer];
  stored.rows = kept.rows;
  ByteBounds of_head;
  for (std::size_t h = 0; h < kept.heads.size(); ++h) {
    if (h == 0 || !Alike(kept.heads[h], kept.heads[h - 1])) {
      of_head = head_bytes.Kept(kept.heads[h]);
    }
    stored.beside = stored.beside + of_head;
  }
  return stored;
}

BytePlan Planner::PlanOf(const Forecast* forecast, std::int64_t decode_tokens) const {
  BytePlan plan;
  Stored together;  // of use while an encoded row takes as much in one layer as in another
  ByteReport beside_all;
  bool alike = forecast != nullptr;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const Stored stored = StoredBy(i, forecast, decode_tokens);
    ByteReport beside = Seen(i, decode_tokens);
    if (pipeline_.schedule().kind == Schedule::Kind::kEvery) {
      beside.observation_bytes = RingBytes(layers_[i], request_.prompt_tokens + decode_tokens);
    }
    const ByteBounds bytes = stored.bytes() + Exactly(beside);
    plan.layers.push_back({layers_[i].layer, bytes});
    plan.bytes = plan.bytes + bytes;
    beside_all += beside;
    together.beside = together.beside + stored.beside;
    if (layers_[i].sliding_window > 0) continue;
    alike = alike && (together.rows.most == 0 || SameSums(together.block, stored.block));
    together.block = stored.block;
    together.rows += stored.rows;
  }
  if (alike) {
    together.rows = forecast->rows;
    plan.bytes = together.bytes() + Exactly(beside_all);
  }
  plan.kept = {plan.bytes.least.kept_bytes(), plan.bytes.most.kept_bytes()};
  plan.resident = {plan.bytes.least.resident_bytes(), plan.bytes.most.resident_bytes()};
  return plan;
}

std::int64_t Planner::RingBytes(const LayerSpec& layer, std::int64_t tokens) const {
  const std::int64_t window = pipeline_.ObservedQueries(layer);
  return QueryRing::BytesFor(layer, std::min(window, tokens));
}

Result<ByteRange> Planner::KeptAt(std::int64_t total_rows) const {
  KVS_ASSIGN_OR_RETURN(const Forecast forecast, Foresee(total_rows));
  return PlanOf(&forecast, 0).kept;
}

std::int64_t Planner::ranked_heads() const {
  std::int64_t heads = 0;
  for (const LayerSpec& layer : layers_) heads += layer.sliding_window > 0 ? 0 : layer.kv_heads;
  return heads;
}

// By how much more rows may take less: rows that fill a group leave the exact tail, and a head that
// closes its gaps stores one position.
std::int64_t Planner::Unevenness() const {
  std::int64_t bytes = 0;
  for (const HeadSetting& setting : settings_) {
    if (setting.layer.sliding_window > 0) continue;
    const std::int64_t tail_rows = setting.group_rows() - 1;
    const std::int64_t of_head =
        ExactRows::BytesOf(setting.shape, tail_rows, {}).payload_bytes +
        PositionList::MostBytesFor(request_.prompt_tokens, request_.prompt_tokens).live;
    bytes += setting.layer.kv_heads * of_head;
  }
  return bytes;
}

// DecideBytes finds rows that fit while one more does not. All totals fit whose most bytes do, and
// none fits whose least bytes do not.
Result<Planner::Totals> Planner::FindTotals(const ByteBudget& budget) const {
  ByteReport seen;
  for (std::size_t i = 0; i < layers_.size(); ++i) seen += Seen(i, 0);
  const std::int64_t limit = budget.LimitOf(seen.full_bytes());
  const std::int64_t least = ranked_heads();
  const std::int64_t all = least * request_.prompt_tokens;
  if (!pipeline_.evictor()->budget_is_cap()) {
    KVS_ASSIGN_OR_RETURN(const ByteRange everything, KeptAt(all));
    if (everything.most <= limit) return Totals{{all, all}, limit};
  }
  const std::int64_t uneven = Unevenness();
  // The largest total from `least` on that passes; `least` if none does.
  const auto largest = [&](auto&& passes) -> Result<std::int64_t> {
    std::int64_t yes = least;
    for (std::int64_t no = all + 1; no - yes > 1;) {
      const std::int64_t middle = yes + (no - yes) / 2;
      KVS_ASSIGN_OR_RETURN(const ByteRange kept, KeptAt(middle));
      (passes(kept) ? yes : no) = middle;
    }
    return yes;
  };
  Totals totals;
  KVS_ASSIGN_OR_RETURN(totals.rows.least,
                       largest([&](const ByteRange& kept) { return kept.most + uneven <= limit; }));
  KVS_ASSIGN_OR_RETURN(totals.rows.most, largest([&](const ByteRange& kept) {
                         return kept.least - uneven <= limit;
                       }));
  KVS_ASSIGN_OR_RETURN(const ByteRange fewest, KeptAt(least));
  if (fewest.most <= limit) totals.limit_bytes = limit;
  return totals;
}

std::int64_t Planner::ChunkTokens() const {
  const std::int64_t tokens = request_.prompt_tokens;
  return request_.chunk_tokens > 0 ? std::min(request_.chunk_tokens, tokens) : tokens;
}

// Under schedule=per_chunk: rows kept so far and one chunk; while the next are chosen, those that
// stay lie beside them.
ByteRange Planner::StagedByChunks(std::size_t layer, const RowBounds& kept) const {
  const HeadSetting& setting = settings_[layer];
  const std::int64_t chunk = ChunkTokens();
  const auto exact = [&](std::int64_t rows, std::int64_t position_bytes) {
    return ExactRows::BytesOf(setting.shape, rows, {position_bytes, position_bytes}).kept_bytes();
  };
  const PositionBytes positions = PositionList::MostBytesFor(kept.most, request_.prompt_tokens);
  return {exact(kept.least, 0), 2 * exact(kept.most, setting.layer.kv_heads * positions.resident) +
                                    Staging::BytesFor(setting.layer, setting.shape, chunk, chunk)};
}

ByteRange Planner::StagedBytes(const Forecast* forecast) const {
  const std::int64_t tokens = request_.prompt_tokens;
  const bool in_chunks = pipeline_.schedule().kind == Schedule::Kind::kPerChunk;
  ByteRange staged;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const std::int64_t ring = RingBytes(layers_[i], tokens);
    const std::int64_t all =
        Staging::BytesFor(layers_[i], settings_[i].shape, tokens, ChunkTokens());
    ByteRange of_layer = {all, all};
    if (in_chunks && forecast != nullptr && layers_[i].sliding_window == 0) {
      of_layer = StagedByChunks(i, forecast->layers[i].rows);
    }
    staged.least += of_layer.least + ring;
    staged.most += of_layer.most + ring;
  }
  return staged;
}

// Of waterfill only the most is told.
BytePlan Planner::BoundOfPlan() const {
  std::vector<ByteReport> seen;
  for (std::size_t i = 0; i < layers_.size(); ++i) seen.push_back(Seen(i, 0));
  BytePlan plan = BoundPlanned(*pipeline_.evictor(), settings_, seen);
  const ByteRange staged = StagedBytes(nullptr);
  plan.prefill_peak = {staged.least, staged.most + plan.resident.most};
  return plan;
}

Result<BytePlan> Planner::Run() {
  if (pipeline_.plans_tiers()) return BoundOfPlan();
  std::optional<Forecast> forecast;
  Totals totals;
  if (pipeline_.evictor() != nullptr && request_.prompt_tokens > 0 && ranked_heads() > 0) {
    const ByteBudget* budget = pipeline_.evictor()->byte_budget();
    if (budget != nullptr) {
      KVS_ASSIGN_OR_RETURN(totals, FindTotals(*budget));
    }
    KVS_ASSIGN_OR_RETURN(forecast, Foresee(totals));
    if (pipeline_.tiers() > 1) KVS_RETURN_IF_ERROR(CheckTiers(*forecast));
  }
  const Forecast* known = forecast ? &*forecast : nullptr;
  BytePlan after_prompt = PlanOf(known, 0);
  const ByteRange staged = StagedBytes(known);
  BytePlan plan = request_.decode_tokens > 0 ? PlanOf(known, request_.decode_tokens) : after_prompt;
  // The ring of schedule=every(n) is in both.
  plan.prefill_peak = {
      staged.least + after_prompt.resident.least - after_prompt.bytes.least.observation_bytes,
      staged.most + after_prompt.resident.most - after_prompt.bytes.most.observation_bytes};
  if (totals.limit_bytes && request_.decode_tokens == 0) {
    const std::int64_t over = std::max<std::int64_t>(0, plan.kept.most - *totals.limit_bytes);
    plan.kept.most -= over;
    plan.resident.most -= over;
    plan.prefill_peak.most -= over;
  }
  return plan;
}

}  // namespace

Result<BytePlan> PlanBytes(const Pipeline& pipeline, std::span<const LayerSpec> layers,
                           const PlanRequest& request) {
  return NoThrow([&]() -> Result<BytePlan> {
    KVS_RETURN_IF_ERROR(CheckRequest(pipeline, request));
    Planner planner(pipeline, layers, request);
    KVS_RETURN_IF_ERROR(planner.Build());
    return planner.Run();
  });
}

}  // namespace kvsieve

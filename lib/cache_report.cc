// What a cache holds, read back: decoded rows and byte reports.
#include <algorithm>
#include <optional>

#include "kvsieve/cache.h"
#include "kvsieve/str_cat.h"
#include "lib/cache_impl.h"

namespace kvsieve {
namespace {

// "k=..., v=... | cold(35%)={k=..., v=...}" or "tiers=[k=..., v=...; ...]"
std::string StoresText(const LayerState& layer, const TierRule& rule) {
  std::string text = StoreText(layer.stores.front());
  if (layer.stores.size() > 1 && rule.cold.empty()) {
    for (std::size_t t = 1; t < layer.stores.size(); ++t) {
      text += StrCat("; ", StoreText(layer.stores[t]));
    }
    return StrCat("tiers=[", text, "]");
  }
  for (std::size_t t = 1; t < layer.stores.size(); ++t) {
    text += StrCat(" | cold(", rule.cold[t - 1].ToString(), ")={", StoreText(layer.stores[t]), "}");
  }
  return text;
}

// Where V lies in K, attention decodes a block once for both.
KernelPath PathOf(const LayerStore& store, Side side) {
  return store.value == nullptr ? KernelPath::kPortable : store.chain(side).codec().path();
}

// "fused", or "fused/portable" where tiers differ.
std::string PathsOf(const LayerState& layer, Side side) {
  std::string paths;
  for (const LayerStore& store : layer.stores) {
    const std::string_view path = KernelPathName(PathOf(store, side));
    if (paths.find(path) == std::string::npos) paths += StrCat(paths.empty() ? "" : "/", path);
  }
  return paths;
}

void AddSeen(const LayerState& layer, std::int64_t heads, ByteReport& report) {
  AddSeen(layer.spec, layer.tokens(), heads, report);
  report.lifetime_tokens += layer.lifetime_tokens * heads;
}

std::vector<TokenPos> PositionsOf(const LayerState& layer, int head, bool finished) {
  if (!finished) return layer.staging.Positions(head);
  std::vector<TokenPos> positions(static_cast<std::size_t>(layer.heads[head].rows()));
  StoredOrder(layer.heads[head]).ReadPositions(positions.data());
  const std::span<const TokenPos> verify = layer.verify.positions();
  positions.insert(positions.end(), verify.begin(), verify.end());
  return positions;
}

Status CheckHead(std::span<const LayerState> layers, int layer_index, int head) {
  if (layer_index < 0 || layer_index >= std::ssize(layers)) {
    return Status::Invalid(
        StrCat("layer index ", layer_index, " is outside [0, ", layers.size(), ")"));
  }
  const int kv_heads = layers[layer_index].spec.kv_heads;
  if (head >= 0 && head < kv_heads) return Status::Ok();
  return Status::Invalid(StrCat("head ", head, " is outside [0, ", kv_heads, ")"));
}

std::int64_t Saturated(const LayerState& layer) {
  std::int64_t saturated = 0;
  for (const HeadStore& store : layer.heads) {
    for (const Tier& tier : store.tiers) saturated += tier.saturated();
  }
  return saturated;
}

bool HoldsEncodedRows(const LayerState& layer) {
  return std::any_of(layer.heads.begin(), layer.heads.end(), [](const HeadStore& head) {
    return std::any_of(head.tiers.begin(), head.tiers.end(),
                       [](const Tier& tier) { return tier.rows() > 0; });
  });
}

// What did not run, and what rows lost on their way in: read from the layer as it is now.
std::string NoteOf(const LayerState& layer, bool finished) {
  std::string note = layer.note;
  const auto add = [&note](const std::string& text) {
    note += StrCat(note.empty() ? "" : "; ", text);
  };
  if (layer.lifetime_tokens == 0) {
    add("inactive: no tokens came");
  } else if (finished && layer.tokens() > 0 && !HoldsEncodedRows(layer)) {
    add("store inactive: all rows are exact");
  }
  if (layer.verify.rows() > 0) add(StrCat(layer.verify.rows(), " verify rows open, not counted"));
  if (layer.zeroed > 0) add(StrCat(layer.zeroed, " NaN or Inf set to 0"));
  if (layer.demoted_rows > 0)
    add(StrCat(layer.demoted_rows, " rows moved to colder stores so far"));
  // Nothing remembers which rows they were in, so rows that left are counted too.
  if (const std::int64_t saturated = Saturated(layer); saturated > 0) {
    add(StrCat(saturated, " values beyond their codec's range stored as its end so far"));
  }
  return note;
}

}  // namespace

LayerReport Cache::ReportLayer(int layer_index) const {
  const LayerState& layer = impl_->layers[layer_index];
  LayerReport report;
  report.layer = layer.spec.layer;
  report.note = NoteOf(layer, impl_->finished);
  report.demoted_rows = layer.demoted_rows;
  const std::string store = StoresText(layer, impl_->pipeline->tier_rule());
  const Evictor* evictor = impl_->pipeline->evictor();
  report.requested = StrCat(evictor != nullptr ? evictor->Canonical() : "none", " | ", store);
  report.applied = StrCat(layer.evicted    ? evictor->Canonical()
                          : layer.slides() ? "sliding window"
                                           : "none",
                          " | ", impl_->finished ? store : "staged, not encoded yet");
  report.key_path = PathsOf(layer, Side::kKey);
  report.value_path = PathsOf(layer, Side::kValue);

  ByteReport& bytes = report.bytes;
  AddSeen(layer, layer.spec.kv_heads, bytes);
  bytes.observation_bytes = layer.ring.resident_bytes();
  bytes.reserved_bytes = layer.verify.resident_bytes();
  bytes.scratch_peak_bytes = impl_->scratch_peak_bytes;
  if (!impl_->finished) {
    layer.staging.AddBytes(layer.spec, layer.shape, bytes);
    return report;
  }
  report.stores.push_back({"exact", {}});
  for (const LayerStore& tier : layer.stores) report.stores.push_back({StoreText(tier), {}});
  for (const HeadStore& head : layer.heads) {
    ByteReport& of_head = report.heads.emplace_back();
    AddSeen(layer, 1, of_head);
    const std::vector<ByteReport> stores = head.BytesByStore(layer.shape);
    for (std::size_t s = 0; s < stores.size(); ++s) {
      report.stores[s].bytes += stores[s];
      of_head += stores[s];
      bytes += stores[s];
    }
  }
  return report;
}

ByteReport Cache::Report() const {
  ByteReport total;
  for (int i = 0; i < layers(); ++i) total += ReportLayer(i).bytes;
  return total;
}

Status Cache::Gather(int layer_index, int head, std::span<TokenPos> positions,
                     std::span<float> keys, std::span<float> values) const {
  return NoThrow([&]() -> Status {
    KVS_RETURN_IF_ERROR(CheckHead(impl_->layers, layer_index, head));
    const LayerState& layer = impl_->layers[layer_index];
    const std::int64_t n = rows(layer_index, head);
    const auto fits = [&](std::size_t size, int dim) {
      return size == 0 || size == static_cast<std::size_t>(n * dim);
    };
    if (!fits(positions.size(), 1) || !fits(keys.size(), layer.spec.key_dim) ||
        !fits(values.size(), layer.spec.value_dim)) {
      return Status::Invalid(StrCat("gather: spans must be empty or hold all ", n, " rows"));
    }
    std::optional<StoredOrder> stored;
    if (impl_->finished) stored.emplace(layer.heads[head]);
    const std::int64_t settled = n - layer.verify.rows();
    const auto gather = [&](Side side, std::span<float> out) {
      if (out.empty()) return;
      const int dim = layer.shape.dim(side);
      for (RowIndex first = 0; first < settled; first += kBlockRows) {
        const auto count = static_cast<int>(std::min<std::int64_t>(kBlockRows, settled - first));
        float* to = out.data() + first * dim;
        if (stored) {
          stored->ReadRows(layer.shape, side, first, count, to);
        } else {
          layer.staging.ReadRows(layer.shape, side, head, first, count, to);
        }
      }
      layer.verify.ReadRows(layer.shape, side, head, 0, static_cast<int>(n - settled),
                            out.data() + settled * dim);
    };
    gather(Side::kKey, keys);
    gather(Side::kValue, values);
    if (positions.empty()) return Status::Ok();
    const std::vector<TokenPos> held = PositionsOf(layer, head, impl_->finished);
    std::copy(held.begin(), held.end(), positions.begin());
    return Status::Ok();
  });
}

Status Cache::RowTiers(int layer_index, int head, std::span<std::int32_t> tiers) const {
  return NoThrow([&]() -> Status {
    KVS_RETURN_IF_ERROR(CheckHead(impl_->layers, layer_index, head));
    const std::int64_t n = rows(layer_index, head);
    if (std::ssize(tiers) != n) {
      return Status::Invalid(StrCat("row tiers: the span holds ", tiers.size(),
                                    " elements, expected all ", n, " rows"));
    }
    std::fill(tiers.begin(), tiers.end(), kExactRow);  // also of verify rows, the last ones
    if (impl_->finished) {
      StoredOrder(impl_->layers[layer_index].heads[head]).ReadTiers(kExactRow, tiers.data());
    }
    return Status::Ok();
  });
}

Status Cache::Visible(int layer_index, int head, std::span<const TokenPos> query_positions,
                      std::span<std::uint8_t> mask) const {
  return NoThrow([&]() -> Status {
    KVS_RETURN_IF_ERROR(CheckHead(impl_->layers, layer_index, head));
    const LayerState& layer = impl_->layers[layer_index];
    const std::size_t wanted =
        query_positions.size() * static_cast<std::size_t>(rows(layer_index, head));
    if (mask.size() != wanted) {
      return Status::Invalid(StrCat("visible: the mask holds ", mask.size(), " elements, ",
                                    query_positions.size(), " queries over ",
                                    rows(layer_index, head), " rows take ", wanted));
    }
    const std::vector<TokenPos> held = PositionsOf(layer, head, impl_->finished);
    auto* to = mask.data();
    for (const TokenPos query : query_positions) {
      const std::int64_t oldest =
          layer.slides() ? std::int64_t{query} - layer.spec.sliding_window + 1 : 0;
      for (const TokenPos row : held) *to++ = row <= query && row >= oldest ? 1 : 0;
    }
    return Status::Ok();
  });
}

}  // namespace kvsieve

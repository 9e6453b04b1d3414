// What a cache holds, read back: decoded rows and byte reports.
#include <algorithm>

#include "kvsieve/cache.h"
#include "kvsieve/str_cat.h"
#include "lib/cache_impl.h"

namespace kvsieve {
namespace {

std::string StoreText(const LayerStore& store) {
  return StrCat("k=", store.key->Canonical(), ", v=", store.value->Canonical());
}

void AddSeen(const LayerState& layer, std::int64_t heads, ByteReport& report) {
  report.key_full_bytes += layer.full_rows() * heads * layer.spec.key_dim * 2;
  report.value_full_bytes += layer.full_rows() * heads * layer.spec.value_dim * 2;
  report.tokens_seen += layer.tokens * heads;
  report.lifetime_tokens += layer.tokens * heads;
}

}  // namespace

LayerReport Cache::ReportLayer(int layer_index) const {
  const LayerState& layer = impl_->layers[layer_index];
  LayerReport report;
  report.layer = layer.spec.layer;
  report.note = layer.note;
  if (layer.zeroed > 0) {
    report.note += StrCat(report.note.empty() ? "" : "; ", layer.zeroed, " NaN or Inf set to 0");
  }
  const std::string store = StoreText(layer.stores.front());
  const Evictor* evictor = impl_->pipeline->evictor();
  report.requested = StrCat(evictor != nullptr ? evictor->Canonical() : "none", " | ", store);
  report.applied = StrCat(layer.evicted    ? evictor->Canonical()
                          : layer.slides() ? "sliding window"
                                           : "none",
                          " | ", impl_->finished ? store : "staged, not encoded yet");
  report.key_path = KernelPathName(layer.stores.front().key->codec().path());
  report.value_path = KernelPathName(layer.stores.front().value->codec().path());

  ByteReport& bytes = report.bytes;
  AddSeen(layer, layer.spec.kv_heads, bytes);
  bytes.observation_bytes = layer.ring.resident_bytes();
  bytes.scratch_peak_bytes = impl_->scratch_peak_bytes;
  if (!impl_->finished) layer.staging.AddBytes(layer.spec, layer.shape, bytes);
  for (const HeadStore& head : layer.heads) {
    ByteReport& of_head = report.heads.emplace_back();
    AddSeen(layer, 1, of_head);
    head.AddBytes(layer.shape, of_head);
    ByteReport stored = of_head;  // without what AddSeen counted for the whole layer
    stored.key_full_bytes = stored.value_full_bytes = 0;
    stored.tokens_seen = stored.lifetime_tokens = 0;
    bytes += stored;
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
    if (layer_index < 0 || layer_index >= layers()) {
      return Status::Invalid(
          StrCat("layer index ", layer_index, " is outside [0, ", layers(), ")"));
    }
    const LayerState& layer = impl_->layers[layer_index];
    if (head < 0 || head >= layer.spec.kv_heads) {
      return Status::Invalid(StrCat("head ", head, " is outside [0, ", layer.spec.kv_heads, ")"));
    }
    const std::int64_t n = rows(layer_index, head);
    const auto fits = [&](std::size_t size, int dim) {
      return size == 0 || size == static_cast<std::size_t>(n * dim);
    };
    if (!fits(positions.size(), 1) || !fits(keys.size(), layer.spec.key_dim) ||
        !fits(values.size(), layer.spec.value_dim)) {
      return Status::Invalid(StrCat("gather: spans must be empty or hold all ", n, " rows"));
    }
    const auto gather = [&](Side side, std::span<float> out) {
      const int dim = layer.shape.dim(side);
      for (RowIndex first = 0; !out.empty() && first < n; first += kBlockRows) {
        const auto count = static_cast<int>(std::min<std::int64_t>(kBlockRows, n - first));
        float* to = out.data() + first * dim;
        if (impl_->finished) {
          ReadStoredRows(layer.heads[head], layer.shape, side, first, count, to);
        } else {
          layer.staging.ReadRows(layer.shape, side, head, first, count, to);
        }
      }
    };
    gather(Side::kKey, keys);
    gather(Side::kValue, values);
    if (!positions.empty() && impl_->finished) {
      ReadStoredPositions(layer.heads[head], positions.data());
    } else if (!positions.empty()) {
      const std::vector<TokenPos> staged = layer.staging.Positions(head);
      std::copy(staged.begin(), staged.end(), positions.begin());
    }
    return Status::Ok();
  });
}

}  // namespace kvsieve

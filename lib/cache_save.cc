// A cache as bytes, and back.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvsieve/cache.h"
#include "kvsieve/saved_state.h"
#include "kvsieve/str_cat.h"
#include "lib/cache_impl.h"
#include "lib/layer_save.h"
#include "lib/state_header.h"
#include "lib/state_stream.h"

namespace kvsieve {
namespace {

std::vector<std::string> StoreTexts(const LayerState& layer) {
  std::vector<std::string> texts;
  for (const LayerStore& store : layer.stores) texts.push_back(StoreText(store));
  return texts;
}

// Whether rows come back with the bits they had.
bool KeepsBits(const LayerState& layer, const LayerStore& store) {
  const auto sides = store.sides();
  return std::all_of(sides.begin(), sides.end(), [&](Side side) {
    return store.chain(side).Canonical() == ElementName(layer.shape.type(side));
  });
}

struct Losses {
  bool rounded = false;
  bool dropped = false;
};
Losses LossesOf(const std::vector<LayerState>& layers, bool finished) {
  Losses losses;
  for (const LayerState& layer : layers) {
    losses.rounded = losses.rounded || layer.zeroed > 0;
    for (int h = 0; h < layer.spec.kv_heads; ++h) {
      const std::int64_t rows = finished ? layer.heads[h].rows() : layer.staging.rows(h);
      losses.dropped = losses.dropped || rows < layer.tokens();
      for (std::size_t t = 0; finished && t < layer.stores.size(); ++t) {
        const bool encoded = layer.heads[h].tiers[t].rows() > 0;
        losses.rounded = losses.rounded || (encoded && !KeepsBits(layer, layer.stores[t]));
      }
    }
  }
  return losses;
}

std::string_view DecodeRowsName(DecodeRows rows) {
  return rows == DecodeRows::kExact ? "exact" : "stored";
}

// Also as another version wrote it, whose canonical form may name fewer options.
bool SameSpec(const std::string& saved, std::string_view canonical) {
  if (saved == canonical) return true;
  const Result<Pipeline> pipeline = Pipeline::Parse(saved);
  return pipeline.ok() && pipeline->Canonical() == canonical;
}

// An error names what was saved and what is here.
Status CheckFits(const StateHeader& header, const std::vector<LayerState>& layers,
                 std::string_view spec, DecodeRows decode_rows) {
  const auto differs = [](std::string_view field, const auto& saved, const auto& here) {
    return BadState(field, StrCat("saved with '", saved, "', this cache has '", here, "'"));
  };
  if (!SameSpec(header.spec, spec)) return differs("spec", header.spec, spec);
  if (header.decode_rows != decode_rows) {
    return differs("decode_rows", DecodeRowsName(header.decode_rows), DecodeRowsName(decode_rows));
  }
  if (header.layers.size() != layers.size()) {
    return BadState(
        "layers", StrCat("saved with ", header.layers.size(), ", this cache has ", layers.size()));
  }
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const SavedLayer& saved = header.layers[i];
    const std::string shape = ShapeText(layers[i].spec);
    if (ShapeText(saved.spec) != shape) return differs("shape", ShapeText(saved.spec), shape);
    const std::vector<std::string> stores = StoreTexts(layers[i]);
    if (saved.stores.size() != stores.size()) {
      return differs("tiers", saved.stores.size(), stores.size());
    }
    for (std::size_t t = 0; t < stores.size(); ++t) {
      if (saved.stores[t] != stores[t]) return differs("store", saved.stores[t], stores[t]);
    }
  }
  return Status::Ok();
}

constexpr std::size_t kShownBytes = 100;

// The beginning of a long text, up to a character of UTF-8.
std::string Shown(std::string_view text) {
  if (text.size() <= kShownBytes) return std::string(text);
  std::size_t shown = kShownBytes;
  while (shown > 0 && (static_cast<unsigned char>(text[shown]) & 0xC0) == 0x80) --shown;
  return StrCat(text.substr(0, shown), "...");
}

Status CheckIdentity(const StateHeader& header, std::optional<std::string_view> identity) {
  if (!identity.has_value() || *identity == header.identity) return Status::Ok();
  KVS_RETURN_IF_ERROR(CheckText("identity", *identity));
  const std::string_view saved = header.identity;
  const auto [same_end, unused] =
      std::mismatch(saved.begin(), saved.end(), identity->begin(), identity->end());
  const bool is_long = std::max(saved.size(), identity->size()) > kShownBytes;
  return BadState("identity",
                  StrCat("saved for '", Shown(saved), "', asked for '", Shown(*identity), "'",
                         is_long ? StrCat(": byte ", same_end - saved.begin(), " differs") : ""));
}

// A state has no place for rows that may still go.
Status CheckNoVerifyRows(const std::vector<LayerState>& layers) {
  for (const LayerState& layer : layers) {
    if (layer.verify.rows() == 0) continue;
    return Status(ErrorCode::kState,
                  StrCat("save: layer ", layer.spec.layer, " holds ", layer.verify.rows(),
                         " open verify rows: accept or roll back first"));
  }
  return Status::Ok();
}

// A finding in bytes that were damaged says that.
Result<LayerState> LoadSection(Allocator& allocator, const LayerState& like, bool finished,
                               int query_rows, StateReader& in) {
  Result<LayerState> layer = LoadLayer(allocator, like, finished, query_rows, in);
  const bool of_content = !layer.ok() && layer.error().code == ErrorCode::kInvalidArgument;
  if (!layer.ok() && !of_content) return layer;
  const std::int64_t unread = in.left();
  KVS_RETURN_IF_ERROR(in.EndSection());
  if (layer.ok() && unread > 0) return BadState("length", StrCat(unread, " bytes too many"));
  return layer;
}

// The layers behind `header`, for a cache whose layers are `like`.
Result<std::vector<LayerState>> LoadLayers(Allocator& allocator, const Pipeline& pipeline,
                                           const std::vector<LayerState>& like,
                                           const StateHeader& header, std::uint64_t checksum,
                                           StateReader& in) {
  std::vector<LayerState> layers;
  layers.reserve(like.size());
  for (std::size_t i = 0; i < like.size(); ++i) {
    in.StartSection(header.layers[i].bytes, SectionSeed(checksum, i));
    const int query_rows = pipeline.ObservedQueries(like[i].spec);
    Result<LayerState> layer = LoadSection(allocator, like[i], header.finished, query_rows, in);
    if (!layer.ok()) {
      return InState(StrCat("layer ", like[i].spec.layer), layer.TakeStatus());
    }
    layers.push_back(*std::move(layer));
  }
  return layers;
}

}  // namespace

Status Cache::Save(std::string_view identity, ByteSink& sink) const {
  return NoThrow([&]() -> Status {
    KVS_RETURN_IF_ERROR(CheckText("identity", identity));
    KVS_RETURN_IF_ERROR(CheckNoVerifyRows(impl_->layers));
    StateHeader header;
    header.spec = impl_->pipeline->Canonical();
    header.identity = identity;
    header.decode_rows = impl_->decode_rows;
    header.finished = impl_->finished;
    header.scratch_peak_bytes = impl_->scratch_peak_bytes;
    for (const LayerState& layer : impl_->layers) {
      StateWriter count;
      SaveLayer(layer, impl_->finished, count);
      KVS_RETURN_IF_ERROR(count.Finish());
      header.layers.push_back({layer.spec, StoreTexts(layer), count.bytes()});
    }
    const Losses losses = LossesOf(impl_->layers, impl_->finished);
    header.rows_rounded = losses.rounded;
    header.rows_dropped = losses.dropped;
    StateWriter out(sink);
    std::uint64_t checksum = 0;
    KVS_RETURN_IF_ERROR(WriteStateHeader(header, out, &checksum));
    for (std::size_t i = 0; i < impl_->layers.size(); ++i) {
      out.StartSection(SectionSeed(checksum, i));
      SaveLayer(impl_->layers[i], impl_->finished, out);
      out.EndSection();
    }
    return out.Finish();
  });
}

Status Cache::Impl::Restore(const StateHeader& header, std::uint64_t checksum, StateReader& in) {
  KVS_RETURN_IF_ERROR(CheckFits(header, layers, pipeline->Canonical(), decode_rows));
  KVS_ASSIGN_OR_RETURN(std::vector<LayerState> loaded,
                       LoadLayers(*allocator, *pipeline, layers, header, checksum, in));
  const Losses losses = LossesOf(loaded, header.finished);
  if (losses.rounded != header.rows_rounded || losses.dropped != header.rows_dropped) {
    return BadState("flags", "they do not say what was lost");
  }
  layers = std::move(loaded);
  finished = header.finished;
  scratch_peak_bytes = header.scratch_peak_bytes;
  return Status::Ok();
}

Status Cache::Load(ByteSource& source, std::optional<std::string_view> identity) {
  const auto load = [&]() -> Status {
    StateReader in(source);
    std::uint64_t checksum = 0;
    KVS_ASSIGN_OR_RETURN(const StateHeader header, ReadStateHeader(source, in, &checksum));
    KVS_RETURN_IF_ERROR(CheckIdentity(header, identity));
    return impl_->Restore(header, checksum, in);
  };
  return NoThrow([&] { return InState("saved state", load()); });
}

Result<Cache> Cache::FromState(ByteSource& source, std::optional<std::string_view> identity,
                               const CacheOptions& options) {
  const auto load = [&]() -> Result<Cache> {
    StateReader in(source);
    std::uint64_t checksum = 0;
    KVS_ASSIGN_OR_RETURN(const StateHeader header, ReadStateHeader(source, in, &checksum));
    KVS_RETURN_IF_ERROR(CheckIdentity(header, identity));
    Result<Pipeline> pipeline = Pipeline::Parse(header.spec);
    if (!pipeline.ok()) return InState("spec", pipeline.TakeStatus());
    std::vector<LayerSpec> layers;
    for (const SavedLayer& layer : header.layers) layers.push_back(layer.spec);
    KVS_ASSIGN_OR_RETURN(Cache cache, Create(std::make_shared<const Pipeline>(*std::move(pipeline)),
                                             std::move(layers), options));
    KVS_RETURN_IF_ERROR(cache.impl_->Restore(header, checksum, in));
    return cache;
  };
  return NoThrow([&]() -> Result<Cache> {
    Result<Cache> cache = load();
    if (!cache.ok()) return InState("saved state", cache.TakeStatus());
    return cache;
  });
}

}  // namespace kvsieve

#include "lib/layer_save.h"

#include <utility>
#include <vector>

namespace kvsieve {
namespace {

// Then the note and the tokens seen; then the queries; then staging or heads.
struct ProgressRecord {
  std::int64_t since_eviction;
  std::int64_t lifetime_tokens;
  std::int64_t zeroed;
  TokenPos next_position;
  TokenPos sinks_end;
  TokenPos exact_from;
  std::uint8_t typed;
  std::uint8_t key_type;
  std::uint8_t value_type;
  std::uint8_t evicted;
};

void SaveProgress(const LayerState& layer, StateWriter& out) {
  // One name per member: one more does not compile until it is saved, or not saved for a reason.
  const auto& [typed, seen, next_position, sinks_end, exact_from, since_eviction, lifetime_tokens,
               zeroed, external_scores, evicted, demoted_rows, note] =
      static_cast<const LayerProgress&>(layer);
  static_cast<void>(external_scores);  // the caller's memory
  const auto type = [typed = typed](ElementType of_side) {
    return static_cast<std::uint8_t>(typed ? of_side : ElementType::kF32);
  };
  out.Put(ProgressRecord{since_eviction, lifetime_tokens, zeroed, next_position, sinks_end,
                         exact_from, typed ? std::uint8_t{1} : std::uint8_t{0},
                         type(layer.shape.key_type), type(layer.shape.value_type),
                         evicted ? std::uint8_t{1} : std::uint8_t{0}});
  if (layer.demotes) out.Put(demoted_rows);
  out.Text(note);
  seen.Save(out);
}

Status CheckProgress(const ProgressRecord& record) {
  constexpr auto kLastType = static_cast<std::uint8_t>(ElementType::kBF16);
  if (record.typed > 1 || record.evicted > 1) return BadState("typed or evicted", "not 0 or 1");
  if (record.key_type > kLastType || record.value_type > kLastType ||
      (record.typed == 0 && (record.key_type != 0 || record.value_type != 0))) {
    return BadState("element types", "unknown");
  }
  if (record.since_eviction < 0 || record.lifetime_tokens < 0 || record.zeroed < 0) {
    return BadState("counts", "below 0");
  }
  if (record.next_position < 0) return BadState("next_position", "below 0");
  if (record.sinks_end < 0 || record.sinks_end > record.next_position) {
    return BadState("sinks_end", StrCat(record.sinks_end, " is not in [0, next_position ",
                                        record.next_position, "]"));
  }
  if (record.exact_from < 0 || record.exact_from > record.next_position) {
    return BadState("exact_from", StrCat(record.exact_from, " is not in [0, next_position ",
                                         record.next_position, "]"));
  }
  return Status::Ok();
}

Status LoadProgress(StateReader& in, LayerState& layer) {
  ProgressRecord record;
  KVS_RETURN_IF_ERROR(in.Get(&record));
  KVS_RETURN_IF_ERROR(CheckProgress(record));
  layer.since_eviction = record.since_eviction;
  layer.lifetime_tokens = record.lifetime_tokens;
  layer.zeroed = record.zeroed;
  layer.next_position = record.next_position;
  layer.sinks_end = record.sinks_end;
  layer.exact_from = record.exact_from;
  layer.typed = record.typed != 0;
  layer.evicted = record.evicted != 0;
  layer.shape.key_type = static_cast<ElementType>(record.key_type);
  layer.shape.value_type = static_cast<ElementType>(record.value_type);
  // V that lies in K is read in K's type.
  if (layer.shape.value_is_key_prefix && record.key_type != record.value_type) {
    return BadState("element types", "V lies in K and has another");
  }
  if (layer.demotes) KVS_RETURN_IF_ERROR(in.Get(&layer.demoted_rows));
  if (layer.demoted_rows < 0) return BadState("demoted_rows", "below 0");
  KVS_RETURN_IF_ERROR(in.Text("note", &layer.note));
  KVS_ASSIGN_OR_RETURN(layer.seen, SeenPositions::Load(in));
  if (layer.seen.TokensBefore(layer.next_position) != layer.tokens()) {
    return BadState("tokens seen", StrCat("not all before next_position ", layer.next_position));
  }
  if (layer.typed != (layer.tokens() > 0)) {
    return BadState("element types", StrCat(layer.typed ? "known" : "unknown", " after ",
                                            layer.tokens(), " tokens"));
  }
  if (layer.lifetime_tokens < layer.tokens()) {
    return BadState("lifetime_tokens", StrCat(layer.lifetime_tokens, " is less than the ",
                                              layer.tokens(), " tokens seen"));
  }
  return Status::Ok();
}

// Every row is a token that was seen, of one segment; sinks lie before the tiers, and these before
// the tail.
Status CheckHead(const LayerState& layer, const HeadStore& head) {
  std::vector<TokenPos> positions(static_cast<std::size_t>(head.rows()));
  StoredOrder(head).ReadPositions(positions.data());
  for (std::size_t r = 1; r < positions.size(); ++r) {
    if (positions[r] > positions[r - 1]) continue;
    return BadState("positions",
                    StrCat(positions[r], " of row ", r, " comes after ", positions[r - 1]));
  }
  if (!layer.seen.HasAll(positions)) return BadState("positions", "of tokens that were not seen");
  if (head.sinks.rows() == 0 || head.sinks.positions().last() < layer.sinks_end) {
    return Status::Ok();
  }
  return BadState("sinks", StrCat("end at position ", head.sinks.positions().last(), ", past ",
                                  layer.sinks_end));
}

Status LoadHeads(Allocator& allocator, StateReader& in, LayerState& layer) {
  for (int h = 0; h < layer.spec.kv_heads; ++h) {
    Result<HeadStore> head = HeadStore::Load(allocator, layer.shape, layer.stores, in);
    Status status = head.ok() ? CheckHead(layer, *head) : head.TakeStatus();
    if (!status.ok()) return InState(StrCat("head ", h), std::move(status));
    layer.heads.push_back(*std::move(head));
  }
  return Status::Ok();
}

Status LoadStaging(Allocator& allocator, StateReader& in, LayerState& layer) {
  KVS_ASSIGN_OR_RETURN(layer.staging,
                       Staging::Load(allocator, layer.shape, layer.spec.kv_heads, in));
  for (int h = 0; h < layer.spec.kv_heads; ++h) {
    if (!layer.seen.HasAll(layer.staging.Positions(h))) {
      return BadState(StrCat("head ", h), "positions: of tokens that were not seen");
    }
  }
  return Status::Ok();
}

}  // namespace

void SaveLayer(const LayerState& layer, bool finished, StateWriter& out) {
  SaveProgress(layer, out);
  layer.ring.Save(layer.spec, out);
  if (!finished) layer.staging.Save(layer.shape, layer.spec.kv_heads, out);
  for (const HeadStore& head : layer.heads) head.Save(layer.shape, out);
}

Result<LayerState> LoadLayer(Allocator& allocator, const LayerState& like, bool finished,
                             int query_rows, StateReader& in) {
  LayerState layer;
  layer.spec = like.spec;
  layer.stores = like.stores;
  layer.demotes = like.demotes;
  layer.shape = like.shape;
  KVS_RETURN_IF_ERROR(LoadProgress(in, layer));
  Result<QueryRing> ring = QueryRing::Load(allocator, layer.spec, query_rows, in);
  if (!ring.ok()) return InState("queries", ring.TakeStatus());
  layer.ring = *std::move(ring);
  KVS_RETURN_IF_ERROR(finished ? LoadHeads(allocator, in, layer)
                               : InState("prompt", LoadStaging(allocator, in, layer)));
  return layer;
}

}  // namespace kvsieve

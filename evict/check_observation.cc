#include "evict/check_observation.h"

#include <algorithm>

#include "kvsieve/str_cat.h"

namespace kvsieve::evict {
namespace {

Status CheckHead(const Observation& observation, int head, bool needs_values) {
  const HeadObservation& rows = observation.heads[head];
  const LayerSpec& layer = observation.layer;
  const auto bad = [&](const auto&... what) {
    return Status::Invalid(StrCat("layer ", layer.layer, " head ", head, ": ", what...));
  };
  const auto tokens = static_cast<std::int64_t>(rows.positions.size());
  if (rows.keys == nullptr) return bad("no keys");
  if (rows.keys->rows() != tokens || rows.keys->dim() != layer.key_dim) {
    return bad("keys are ", rows.keys->rows(), " x ", rows.keys->dim(), ", expected ", tokens,
               " x ", layer.key_dim);
  }
  if (needs_values && rows.values == nullptr) return bad("no values");
  if (needs_values && (rows.values->rows() != tokens || rows.values->dim() != layer.value_dim)) {
    return bad("values are ", rows.values->rows(), " x ", rows.values->dim(), ", expected ", tokens,
               " x ", layer.value_dim);
  }
  const bool shared = head > 0 && rows.positions.data() == observation.heads[0].positions.data();
  for (std::int64_t i = 0; !shared && i < tokens; ++i) {
    if (rows.positions[i] < 0 || (i > 0 && rows.positions[i] <= rows.positions[i - 1])) {
      return bad("position ", rows.positions[i], " is negative or not greater than the one before");
    }
  }
  return Status::Ok();
}

}  // namespace

Status CheckObservation(const Observation& observation, bool needs_values) {
  const LayerSpec& layer = observation.layer;
  KVS_RETURN_IF_ERROR(layer.Validate());
  if (observation.heads.size() != static_cast<std::size_t>(layer.kv_heads)) {
    return Status::Invalid(StrCat("layer ", layer.layer, ": ", observation.heads.size(),
                                  " heads observed, expected ", layer.kv_heads));
  }
  for (int head = 0; head < layer.kv_heads; ++head) {
    KVS_RETURN_IF_ERROR(CheckHead(observation, head, needs_values));
  }
  return Status::Ok();
}

Status CheckSamePositions(const Observation& first, const Observation& layer) {
  const std::span<const TokenPos> expected = first.heads[0].positions;
  for (int head = 0; head < layer.layer.kv_heads; ++head) {
    const std::span<const TokenPos> positions = layer.heads[head].positions;
    if (positions.data() == expected.data() && positions.size() == expected.size()) continue;
    if (!std::equal(positions.begin(), positions.end(), expected.begin(), expected.end())) {
      return Status::Invalid(StrCat("layer ", layer.layer.layer, " head ", head,
                                    ": its rows differ from layer ", first.layer.layer,
                                    " head 0; one set for both needs the same rows (option "
                                    "scope)"));
    }
  }
  return Status::Ok();
}

}  // namespace kvsieve::evict

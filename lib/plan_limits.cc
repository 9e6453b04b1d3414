#include "lib/plan_limits.h"

#include <limits>
#include <string_view>

#include "kvsieve/str_cat.h"

namespace kvsieve {
namespace {

Status CheckTiers(const Pipeline& pipeline) {
  const auto refused = [](std::string_view what) {
    return Status::Unsupported(StrCat("plan: cold tiers with ", what, " are not planned"));
  };
  if (pipeline.schedule().kind == Schedule::Kind::kPerChunk) return refused("schedule=per_chunk");
  if (pipeline.evictor()->byte_budget() != nullptr) return refused("a budget in bytes");
  return Status::Ok();
}

}  // namespace

Status CheckRequest(const Pipeline& pipeline, const PlanRequest& request) {
  constexpr std::int64_t kMost = std::numeric_limits<TokenPos>::max() - 1;
  for (const std::int64_t tokens :
       {request.chunk_tokens, request.prompt_tokens, request.decode_tokens,
        request.prompt_tokens + request.decode_tokens}) {
    if (tokens < 0 || tokens > kMost) {
      return Status::Invalid(StrCat("plan: ", tokens, " tokens is outside [0, ", kMost, "]"));
    }
  }
  if (pipeline.plans_tiers()) {
    if (request.decode_tokens == 0) return Status::Ok();
    return Status::Unsupported(
        StrCat("plan: the budget in bytes of waterfill and best does not count ",
               request.decode_tokens, " decode tokens; leave them out of the plan"));
  }
  if (pipeline.tiers() > 1) KVS_RETURN_IF_ERROR(CheckTiers(pipeline));
  if (pipeline.schedule().kind == Schedule::Kind::kEvery && request.decode_tokens > 0) {
    return Status::Unsupported(StrCat(
        "plan: which rows schedule=", pipeline.schedule().Canonical(), " moves among ",
        request.decode_tokens, " decode tokens depends on the data; leave them out of the plan"));
  }
  return Status::Ok();
}

Status CheckTiers(const Forecast& forecast) {
  for (const LayerForecast& layer : forecast.layers) {
    for (const HeadForecast& head : layer.heads) {
      if (head.rows.least == head.rows.most) continue;
      return Status::Unsupported(
          "plan: cold tiers of heads that keep as many rows as scores say are not planned");
    }
  }
  return Status::Ok();
}

}  // namespace kvsieve

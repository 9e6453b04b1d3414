// Rows of a draft: room for them, and what becomes of them.
#include <string_view>
#include <utility>
#include <vector>

#include "kvsieve/cache.h"
#include "kvsieve/str_cat.h"
#include "lib/cache_impl.h"

namespace kvsieve {
namespace {

// More than any draft, and no product with it overflows.
constexpr std::int64_t kMostSpeculativeRows = 65536;

// Of every layer the same, or an error that names two that differ.
Result<std::int64_t> OpenRows(const std::vector<LayerState>& layers) {
  const LayerState& first = layers.front();
  for (const LayerState& layer : layers) {
    if (layer.verify.rows() == first.verify.rows()) continue;
    return Status(ErrorCode::kState,
                  StrCat("layer ", first.spec.layer, " holds ", first.verify.rows(),
                         " verify rows, layer ", layer.spec.layer, " holds ", layer.verify.rows(),
                         ": append to every layer first, or trim them away"));
  }
  return first.verify.rows();
}

Status CheckCount(std::string_view call, std::int64_t n, std::int64_t open) {
  if (n >= 0 && n <= open) return Status::Ok();
  return Status::Invalid(
      StrCat(call, " ", n, " rows: must be in [0, ", open, "], the verify rows that are open"));
}

}  // namespace

Status Cache::ReserveSpeculative(std::int64_t n) {
  return NoThrow([&]() -> Status {
    if (n < 0 || n > kMostSpeculativeRows) {
      return Status::Invalid(
          StrCat("reserve_speculative ", n, " rows: must be in [0, ", kMostSpeculativeRows, "]"));
    }
    std::vector<VerifyRows> roomy;
    for (const LayerState& layer : impl_->layers) {
      const std::int64_t open = layer.verify.rows();
      if (n < open) {
        return WithLayer(
            layer, Status(ErrorCode::kState, StrCat("reserve_speculative ", n, " rows while ", open,
                                                    " verify rows are open")));
      }
      // Without rows their types are unknown: the first ones take the room.
      const std::int64_t room = layer.typed || open > 0 ? n : 0;
      KVS_ASSIGN_OR_RETURN(VerifyRows rows, layer.verify.WithRoom(*impl_->allocator, layer.shape,
                                                                  layer.spec.kv_heads, room));
      roomy.push_back(std::move(rows));
    }
    for (std::size_t i = 0; i < roomy.size(); ++i) impl_->layers[i].verify = std::move(roomy[i]);
    impl_->speculative = {n, true};
    return Status::Ok();
  });
}

bool Cache::CanRollback(std::int64_t n) const {
  const LayerState& first = impl_->layers.front();
  for (const LayerState& layer : impl_->layers) {
    if (layer.verify.rows() != first.verify.rows()) return false;
  }
  const std::int64_t open = first.verify.rows();
  const std::int64_t most = !impl_->finished ? 0 : open > 0 ? open : impl_->speculative.most;
  return n >= 0 && n <= most;
}

Status Cache::Accept(std::int64_t n) {
  return NoThrow([&]() -> Status {
    KVS_ASSIGN_OR_RETURN(const std::int64_t open, OpenRows(impl_->layers));
    KVS_RETURN_IF_ERROR(CheckCount("accept", n, open));
    return impl_->CloseVerify(n);
  });
}

Status Cache::Rollback(std::int64_t n) {
  return NoThrow([&]() -> Status {
    KVS_ASSIGN_OR_RETURN(const std::int64_t open, OpenRows(impl_->layers));
    KVS_RETURN_IF_ERROR(CheckCount("rollback", n, open));
    return impl_->CloseVerify(open - n);
  });
}

Status Cache::Impl::CloseVerify(std::int64_t accepted) {
  std::vector<DecodeAppend> appends;
  if (accepted > 0) appends.reserve(layers.size());
  for (std::size_t i = 0; accepted > 0 && i < layers.size(); ++i) {
    LayerState& layer = layers[i];
    const auto first = [&](Side side) { return layer.verify.First(layer.shape, side, accepted); };
    appends.push_back(DecodeInto(layer));
    KVS_RETURN_IF_ERROR(WithLayer(
        layer,
        appends.back().Prepare(first(Side::kKey), first(Side::kValue),
                               layer.verify.positions().first(static_cast<std::size_t>(accepted)),
                               pipeline->nonfinite())));
  }
  for (DecodeAppend& append : appends) append.Commit();
  for (LayerState& layer : layers) {
    layer.zeroed += layer.verify.ZeroedInFirst(accepted);
    layer.verify.Truncate(0);
  }
  return Status::Ok();
}

}  // namespace kvsieve

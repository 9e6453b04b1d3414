#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "bench/measure.h"
#include "bench/peers/contender.h"
#include "kvsieve/cache.h"

namespace kvsieve::bench {
namespace {

LayerSpec Layer() {
  LayerSpec layer;
  layer.query_heads = kQueryHeads;
  layer.kv_heads = kKvHeads;
  layer.key_dim = kDim;
  layer.value_dim = kDim;
  layer.scale = kScale;
  return layer;
}

void Check(const Status& status) {
  if (!status.ok()) Fail(status.message());
}

template <class T>
T Must(Result<T> result) {
  if (!result.ok()) Fail(result.message());
  return *std::move(result);
}

bool Has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// What quant/kernels.h says that integer kernels round: weight times scale to 2^-15 of the block's
// largest; the query to 16 bits, or for codes of up to 4 bits to one byte a dim with a scale for
// each group, where codebooks may get 64 steps instead of 127. turbo's levels (Lloyd and Max's for
// a normal distribution, relative to the row's root mean square) get 127 steps.
Rounding RoundingOf(std::string_view spec) {
  Rounding rounding;
  if (spec.ends_with("f16")) return rounding;
  const double step = 1 / std::sqrt(12.0);
  rounding.weight = 0x1p-15;
  rounding.query_step = step / 32639;
  if (Has(spec, "int4") || Has(spec, "int3") || Has(spec, "int2") || Has(spec, "q4_0")) {
    rounding.query_step = step / 127;
    rounding.query_block = Has(spec, "group=row") ? kDim : 32;
  }
  constexpr struct {
    std::string_view store;
    double largest_level;
  } kTurbo[] = {{"turbo4", 2.733}, {"turbo3", 2.152}, {"turbo2", 1.510}};
  for (const auto& [store, largest_level] : kTurbo) {
    if (!spec.ends_with(store)) continue;
    rounding.query_step = step / 64;
    rounding.code = largest_level * step / 127;
  }
  return rounding;
}

class KvsieveContender final : public Contender {
 public:
  KvsieveContender(std::string_view spec, const LayerData& data)
      : rounding_(RoundingOf(spec)), queries_(data.queries()), position_(data.rows()) {
    CacheOptions options;
    options.allocator = &allocator_;
    auto pipeline = std::make_shared<const Pipeline>(Must(Pipeline::Parse(spec)));
    cache_.emplace(Must(Cache::Create(std::move(pipeline), {Layer()}, options)));
    std::vector<TokenPos> positions(static_cast<std::size_t>(data.rows()));
    std::iota(positions.begin(), positions.end(), 0);
    const auto rows = [&](const F16* from) {
      return HeadsView::HeadMajor(from, kKvHeads, data.rows(), kDim);
    };
    Check(cache_->Append(0, Phase::kPrefill, rows(data.keys()), rows(data.values()), positions));
    Check(cache_->FinishPrefill());
  }

  void Step(float* out) override {
    Check(cache_->Attend(0, {&position_, 1},
                         HeadsView::HeadMajor(queries_.data(), kQueryHeads, 1, kDim), {}, scratch_,
                         out, nullptr));
  }
  std::uint64_t Read() const override { return allocator_.ReadAll(); }
  std::size_t bytes() const override { return allocator_.bytes(); }
  Rounding rounding() const override { return rounding_; }

  HeadRows Decode(int kv_head) const override {
    const auto floats = static_cast<std::size_t>(cache_->rows(0, kv_head) * kDim);
    HeadRows rows{std::vector<float>(floats), std::vector<float>(floats)};
    Check(cache_->Gather(0, kv_head, {}, rows.keys, rows.values));
    return rows;
  }

 private:
  RecordingAllocator allocator_;  // outlives the cache
  std::optional<Cache> cache_;
  AttendScratch scratch_;
  Rounding rounding_;
  std::vector<float> queries_;
  TokenPos position_;
};

class KvsieveEncoder final : public RowEncoder {
 public:
  KvsieveEncoder(std::string_view store, Side side)
      : chain_(BuildChain(store, side)),
        block_(chain_->codec().BlockBytes(kBlockRows)),
        scratch_(std::size_t{kBlockRows} * kDim * sizeof(float)),
        stats_(static_cast<std::size_t>(chain_->stats_floats()) + 1),
        rotates_(Has(store, "turbo")) {}

  void Encode(const float* rows, int count) override {
    const BlockRef block{reinterpret_cast<std::uint8_t*>(block_.data()), kBlockRows};
    if (!rotates_) return Check(chain_->codec().Encode(stats_.data(), rows, count, block, 0));
    // A chain turns its rows in place, as those that a cache reads into scratch.
    std::memcpy(scratch_.data(), rows, static_cast<std::size_t>(count) * kDim * sizeof(float));
    Check(
        chain_->Encode(stats_.data(), reinterpret_cast<float*>(scratch_.data()), count, block, 0));
  }

 private:
  static std::shared_ptr<const Chain> BuildChain(std::string_view store, Side side) {
    const auto pipeline = Must(Pipeline::Parse(store));
    auto chains = Must(BuildStore(pipeline.main_store(), Layer()));
    return side == Side::kKey ? std::move(chains.key) : std::move(chains.value);
  }

  std::shared_ptr<const Chain> chain_;
  HugeBuffer block_;
  HugeBuffer scratch_;
  std::vector<float> stats_;
  bool rotates_;
};

}  // namespace

std::unique_ptr<Contender> MakeKvsieve(std::string_view spec, const LayerData& data) {
  return std::make_unique<KvsieveContender>(spec, data);
}

std::unique_ptr<RowEncoder> MakeKvsieveEncoder(std::string_view store, Side side) {
  return std::make_unique<KvsieveEncoder>(store, side);
}

}  // namespace kvsieve::bench

#include "lib/planned_bytes.h"

#include <algorithm>
#include <cstdint>

#include "lib/byte_bounds.h"

namespace kvsieve {
namespace {

// A bitmap of positions that is shorter than a position has the room of one.
constexpr std::int64_t kPositionSpare = sizeof(TokenPos) - 1;

// What kept bytes consist of, and are split into.
constexpr std::int64_t ByteReport::*kKeptFields[] = {
    &ByteReport::payload_bytes, &ByteReport::scale_bytes, &ByteReport::metadata_bytes,
    &ByteReport::key_kept_bytes, &ByteReport::value_kept_bytes};

// The most that one KV head takes right after the prompt.
struct HeadMost {
  std::int64_t rows = 0;
  std::int64_t must_keep = 0;  // kept bytes that stay whatever the budget
  std::int64_t keep_all = 0;   // kept bytes of all rows, each in the largest tier
  std::int64_t spare = 0;      // resident bytes beside those kept
};

std::int64_t KeptOf(const LayerStore& store, std::int64_t rows) {
  return Tier::BytesOf(store, rows, {}).kept_bytes();
}

std::int64_t SpareOf(const LayerStore& store, std::int64_t rows) {
  const ByteReport report = Tier::BytesOf(store, rows, {});
  return report.resident_bytes() - report.kept_bytes();
}

// `rows` rows, each in any tier, statistics of all tiers included. Groups that are begun have all
// their scales.
std::int64_t MostInTiers(const HeadSetting& setting, std::int64_t rows) {
  std::int64_t stats = 0;
  std::int64_t of_rows = 0;
  for (const LayerStore& store : setting.stores) {
    stats += Tier::StatsBytes(store);
    of_rows = std::max(of_rows, KeptOf(store, rows) - Tier::StatsBytes(store));
    for (const Side side : store.sides()) {
      const Codec& codec = store.chain(side).codec();
      stats += (codec.group_rows() - 1) * codec.row_bytes().scales;
    }
  }
  return stats + of_rows;
}

HeadMost MostOf(const HeadSetting& setting, const LossEstimator& estimator) {
  HeadMost bound;
  const std::int64_t rows = FullRows(setting.layer, setting.prompt_tokens);
  const auto lists = static_cast<std::int64_t>(setting.stores.size()) + 2;  // sinks, tiers, tail
  const std::int64_t exact =
      std::min(rows, setting.exact_sinks + setting.tail + setting.group_rows() - 1);
  const std::int64_t forced =
      std::min(rows, std::max<std::int64_t>(setting.exact_sinks, estimator.sinks()) +
                         std::max<std::int64_t>(setting.tail, estimator.window()));
  const ByteReport of_exact = ExactRows::BytesOf(setting.shape, exact, {});
  const auto kept = [&](std::int64_t in_tiers) {
    const std::int64_t positions =
        PositionList::MostBytesFor(std::max(exact, in_tiers), setting.prompt_tokens).live;
    return of_exact.kept_bytes() + MostInTiers(setting, in_tiers) + lists * positions;
  };
  bound.rows = rows;
  bound.must_keep = kept(forced);
  bound.keep_all = kept(rows);
  // Whole blocks have padding alone; behind them each tier has an open one.
  bound.spare = of_exact.resident_bytes() - of_exact.kept_bytes() + lists * kPositionSpare;
  std::int64_t of_block = 0;
  for (const LayerStore& store : setting.stores) {
    std::int64_t open = 0;
    for (int r = 1; r <= kBlockRows; ++r) open = std::max(open, SpareOf(store, r));
    bound.spare += open;
    of_block = std::max(of_block, SpareOf(store, kBlockRows));
  }
  bound.spare += rows / kBlockRows * of_block;
  return bound;
}

// The budget's share of a layer, less a byte for each head, which rounding may take.
std::int64_t ShareOf(std::int64_t limit, const ByteReport& of_layer, std::int64_t all_full,
                     std::int64_t heads) {
  const double part = static_cast<double>(of_layer.full_bytes()) /
                      static_cast<double>(std::max<std::int64_t>(1, all_full));
  return static_cast<std::int64_t>(static_cast<double>(limit) * part) - heads;
}

}  // namespace

BytePlan BoundPlanned(const Evictor& evictor, std::span<const HeadSetting> settings,
                      std::span<const ByteReport> seen) {
  const LossEstimator& estimator = *evictor.loss_estimator();
  const bool shared = estimator.scope() == Scope::kModel;
  std::int64_t all_full = 0;
  for (const ByteReport& layer : seen) all_full += layer.full_bytes();
  const std::int64_t limit = evictor.byte_budget()->LimitOf(all_full);
  BytePlan plan;
  std::int64_t must_keep = 0;  // beyond their shares, where layers or heads have some
  std::int64_t keep_all = 0;
  std::int64_t spare = 0;
  for (std::size_t i = 0; i < settings.size(); ++i) {
    const LayerSpec& layer = settings[i].layer;
    const HeadMost head = MostOf(settings[i], estimator);
    const std::int64_t heads = layer.kv_heads;
    const std::int64_t share = shared ? 0 : ShareOf(limit, seen[i], all_full, heads);
    must_keep += std::max<std::int64_t>(0, heads * head.must_keep - share);
    keep_all += heads * head.keep_all;
    spare += heads * head.spare;
    ByteBounds bytes = Exactly(seen[i]);
    AddRows(settings[i].shape, heads * head.rows, bytes.most);
    for (const auto field : kKeptFields) bytes.most.*field = heads * head.keep_all;
    bytes.most.padding_bytes = bytes.most.reserved_bytes = heads * head.spare;
    plan.layers.push_back({layer.layer, bytes});
    plan.bytes = plan.bytes + bytes;
  }
  plan.kept.most = std::min(keep_all, shared ? std::max(limit, must_keep) : limit + must_keep);
  for (const auto field : kKeptFields) plan.bytes.most.*field = plan.kept.most;
  plan.resident.most = plan.kept.most + spare;
  return plan;
}

}  // namespace kvsieve

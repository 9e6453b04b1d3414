// What an engine does with kvsieve: hand in the prompt's keys, values and last queries, compress,
// then attend over what is left. Here the rows are random numbers; an engine has its own.
#include <cstdio>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "kvsieve/cache.h"

namespace {

constexpr int kTokens = 1024;
constexpr int kQueryHeads = 8;
constexpr int kKvHeads = 2;
constexpr int kDim = 64;

// [heads, rows, kDim]
std::vector<float> RandomRows(int heads, int rows) {
  static std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(heads) * rows * kDim);
  for (float& value : values) value = normal(generator);
  return values;
}

kvsieve::Status Run() {
  const auto keys = RandomRows(kKvHeads, kTokens);
  const auto values = RandomRows(kKvHeads, kTokens);
  const auto queries = RandomRows(kQueryHeads, kTokens);
  std::vector<kvsieve::TokenPos> positions(kTokens);
  std::iota(positions.begin(), positions.end(), 0);

  using kvsieve::HeadsView;
  KVS_ASSIGN_OR_RETURN(auto pipeline,
                       kvsieve::Pipeline::Parse("snapkv(budget=25%) | k=int8, v=int4"));
  const kvsieve::LayerSpec layer{.query_heads = kQueryHeads,
                                 .kv_heads = kKvHeads,
                                 .key_dim = kDim,
                                 .value_dim = kDim,
                                 .scale = 0.125F};
  KVS_ASSIGN_OR_RETURN(
      auto cache, kvsieve::Cache::Create(
                      std::make_shared<const kvsieve::Pipeline>(std::move(pipeline)), {layer}, {}));

  // The prompt, at once or in chunks; then evict and encode.
  KVS_RETURN_IF_ERROR(cache.Append(
      0, kvsieve::Phase::kPrefill, HeadsView::HeadMajor(keys.data(), kKvHeads, kTokens, kDim),
      HeadsView::HeadMajor(values.data(), kKvHeads, kTokens, kDim), positions));
  KVS_RETURN_IF_ERROR(cache.Observe(
      0, positions, HeadsView::HeadMajor(queries.data(), kQueryHeads, kTokens, kDim)));
  KVS_RETURN_IF_ERROR(cache.FinishPrefill());

  // Decode: the new token's own rows first, then every query head attends over all that is stored.
  std::vector<float> out(kQueryHeads * kDim);
  kvsieve::AttendScratch scratch;
  for (int step = 0; step < 3; ++step) {
    const kvsieve::TokenPos now = cache.next_position();
    const auto key = RandomRows(kKvHeads, 1);
    const auto value = RandomRows(kKvHeads, 1);
    const auto query = RandomRows(kQueryHeads, 1);
    KVS_RETURN_IF_ERROR(cache.Append(
        0, kvsieve::Phase::kDecode, HeadsView::HeadMajor(key.data(), kKvHeads, 1, kDim),
        HeadsView::HeadMajor(value.data(), kKvHeads, 1, kDim), {&now, 1}));
    KVS_RETURN_IF_ERROR(cache.Attend(0, {&now, 1},
                                     HeadsView::HeadMajor(query.data(), kQueryHeads, 1, kDim), {},
                                     scratch, out.data(), nullptr));
  }

  const kvsieve::ByteReport report = cache.Report();
  std::printf("%lld of %lld rows kept, %lld of %lld bytes\n",
              static_cast<long long>(report.rows_kept), static_cast<long long>(report.tokens_seen),
              static_cast<long long>(report.kept_bytes()),
              static_cast<long long>(report.full_bytes()));
  return kvsieve::Status::Ok();
}

}  // namespace

int main() {
  const kvsieve::Status status = Run();
  if (status.ok()) return 0;
  std::fprintf(stderr, "quickstart: %s\n", status.message().c_str());
  return 1;
}

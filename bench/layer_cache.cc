#include "bench/layer_cache.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <utility>

#include "bench/checked.h"

namespace kvsieve::bench {
namespace {

LayerSpec Layer(int kv_heads) {
  LayerSpec layer;
  layer.query_heads = kQueryHeads;
  layer.kv_heads = kv_heads;
  layer.key_dim = kDim;
  layer.value_dim = kDim;
  layer.scale = 1.0F / std::sqrt(static_cast<float>(kDim));
  return layer;
}

std::vector<F16> RandomRows(std::int64_t count, unsigned seed) {
  // A small table of normal numbers, walked with a stride: as random as timing needs, and fast.
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<F16> table(65'521);
  for (F16& x : table) x = ToF16(normal(generator));
  std::vector<F16> rows(static_cast<std::size_t>(count) * kDim);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = table[i * 7919 % table.size()];
  return rows;
}

std::vector<TokenPos> Positions(std::int64_t first, std::int64_t rows) {
  std::vector<TokenPos> positions(static_cast<std::size_t>(rows));
  std::iota(positions.begin(), positions.end(), static_cast<TokenPos>(first));
  return positions;
}

}  // namespace

void Fail(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::exit(1);
}

void Check(const Status& status) {
  if (!status.ok()) Fail(status.message());
}

Prompt::Prompt(std::int64_t rows, int heads)
    : kv_heads(heads),
      positions(Positions(0, rows)),
      keys(RandomRows(rows * heads, 1)),
      values(RandomRows(rows * heads, 2)) {}

Cache StagedCache(const std::string& spec, const Prompt& prompt, Allocator& allocator) {
  auto pipeline = Pipeline::Parse(spec);
  if (!pipeline.ok()) Fail(pipeline.message());
  CacheOptions options;
  options.allocator = &allocator;
  auto cache = Cache::Create(std::make_shared<const Pipeline>(*std::move(pipeline)),
                             {Layer(prompt.kv_heads)}, options);
  if (!cache.ok()) Fail(cache.message());
  const auto rows = [&](const std::vector<F16>& data) {
    return HeadsView::HeadMajor(data.data(), prompt.kv_heads, prompt.rows(), kDim);
  };
  Check(
      cache->Append(0, Phase::kPrefill, rows(prompt.keys), rows(prompt.values), prompt.positions));
  const std::int64_t window = std::min<std::int64_t>(64, prompt.rows());
  const std::vector<F16> queries = RandomRows(window * kQueryHeads, 3);
  Check(cache->Observe(0, std::span(prompt.positions).last(static_cast<std::size_t>(window)),
                       HeadsView::HeadMajor(queries.data(), kQueryHeads, window, kDim)));
  return *std::move(cache);
}

DecodeStep::DecodeStep(const Cache& cache, std::int64_t rows, int tokens)
    // With a wrong kernel they do not see the last rows.
    : cache_(cache), positions_(Positions(WrongKernelInjected() ? rows / 8 * 7 : rows, tokens)) {
  std::mt19937 generator(4);
  std::normal_distribution<float> normal;
  queries_.resize(static_cast<std::size_t>(tokens) * kQueryHeads * kDim);
  for (float& x : queries_) x = normal(generator);
  out_.resize(queries_.size());
  Run();
  for (int kv_head = 0; kv_head < cache.layer(0).kv_heads; ++kv_head) CheckKvHead(kv_head);
}

void DecodeStep::Run() {
  const HeadsView queries = HeadsView::HeadMajor(
      queries_.data(), kQueryHeads, static_cast<std::int64_t>(positions_.size()), kDim);
  Check(cache_.Attend(0, positions_, queries, {}, scratch_, out_.data(), nullptr));
}

// Against plain double-precision attention over the decoded rows.
void DecodeStep::CheckKvHead(int kv_head) const {
  const auto n = static_cast<std::size_t>(cache_.rows(0, kv_head));
  std::vector<float> keys(n * kDim);
  std::vector<float> values(n * kDim);
  Check(cache_.Gather(0, kv_head, {}, keys, values));
  // Of each query head all tokens, one after the other.
  const std::size_t queries = kQueryHeads / cache_.layer(0).kv_heads * positions_.size();
  for (std::size_t i = kv_head * queries; i < (kv_head + 1) * queries; ++i) {
    const float* q = queries_.data() + i * kDim;
    double sum = 0;
    double expected[kDim] = {};
    for (std::size_t r = 0; r < n; ++r) {
      double dot = 0;
      for (int d = 0; d < kDim; ++d) dot += static_cast<double>(q[d]) * keys[r * kDim + d];
      const double weight = std::exp(dot * cache_.layer(0).scale);
      sum += weight;
      for (int d = 0; d < kDim; ++d) expected[d] += weight * values[r * kDim + d];
    }
    double error = 0;
    double norm = 0;
    for (int d = 0; d < kDim; ++d) {
      error += std::pow(out_[i * kDim + d] - expected[d] / sum, 2);
      norm += std::pow(expected[d] / sum, 2);
    }
    // Codebook levels of 8 bits move an output by up to about 1 % of a random one's small norm;
    // a kernel that leaves out an eighth of the rows is off by sqrt(1 / 8).
    if (!(std::sqrt(error / norm) < 0.05)) Fail("attention is wrong: relative error above 5 %");
  }
}

}  // namespace kvsieve::bench

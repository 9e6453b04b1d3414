#include "tests/fuzz/life_model.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace kvsieve::fuzz {
namespace {

// splitmix64 (Steele, Lea, Flood 2014), one step.
std::uint64_t Mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

std::uint64_t BitsOf(std::span<const float> keys, std::span<const float> values) {
  std::uint64_t hash = 0;
  for (const std::span<const float> row : {keys, values}) {
    for (const float x : row) hash = Mix(hash ^ std::bit_cast<std::uint32_t>(x));
  }
  return hash;
}

double Norm(std::span<const float> row) {
  double square = 0;
  for (const float x : row) square += double{x} * x;
  return std::sqrt(square);
}

// The coarsest store here, one bit, is off by 0.6 of a row's length; rows that have nothing to do
// with each other are 1.4 apart.
void RequireNear(std::span<const float> decoded, std::span<const float> source) {
  double square = 0;
  for (std::size_t d = 0; d < source.size(); ++d) {
    square += (double{decoded[d]} - source[d]) * (double{decoded[d]} - source[d]);
  }
  KVS_REQUIRE(std::sqrt(square) < Norm(source));  // false for NaN
}

double LargestNorm(std::span<const float> rows, std::size_t dim) {
  double largest = 0;
  for (std::size_t at = 0; at < rows.size(); at += dim) {
    largest = std::max(largest, Norm(rows.subspan(at, dim)));
  }
  return largest;
}

bool SameBits(std::span<const float> a, std::span<const float> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float x, float y) {
    return std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y);
  });
}

// Drops what is at `end` and behind it.
template <class Rows, class PositionOf>
std::int64_t Cut(Rows& rows, TokenPos end, PositionOf position_of) {
  const auto from = std::find_if(rows.begin(), rows.end(),
                                 [&](const auto& row) { return position_of(row) >= end; });
  const std::int64_t gone = rows.end() - from;
  rows.erase(from, rows.end());
  return gone;
}

void AppendRow(int layer, RowKind kind, const Token& token, int head, int dim,
               std::vector<float>* rows) {
  std::uint64_t state =
      Mix((std::uint64_t{token.birth} << 32) ^ static_cast<std::uint64_t>(token.position));
  state = Mix(state ^ static_cast<std::uint64_t>(1000 * layer + 10 * head) ^
              (static_cast<std::uint64_t>(kind) << 40));
  for (int d = 0; d < dim; ++d) {
    if (d % 6 == 0) state = Mix(state);
    rows->push_back(static_cast<float>(static_cast<int>(state >> (10 * (d % 6)) & 1023U) - 512) /
                    256.0F);
  }
}

}  // namespace

// Stored rows of one head, decoded.
struct LayerModel::Gathered {
  Gathered(const Cache& cache, int layer, int head) {
    const LayerSpec& spec = cache.layer(layer);
    const std::int64_t n = cache.rows(layer, head);
    KVS_REQUIRE(n >= 0);
    const auto rows_count = static_cast<std::size_t>(n);
    rows.positions.resize(rows_count);
    rows.keys.resize(rows_count * static_cast<std::size_t>(spec.key_dim));
    rows.values.resize(rows_count * static_cast<std::size_t>(spec.value_dim));
    tiers.resize(rows_count);
    KVS_REQUIRE(cache.Gather(layer, head, rows.positions, rows.keys, rows.values).ok());
    KVS_REQUIRE(cache.RowTiers(layer, head, tiers).ok());
  }
  oracle::HeadRows rows;
  std::vector<std::int32_t> tiers;
};

std::vector<float> MakeRows(int layer, RowKind kind, std::span<const Token> tokens, int heads,
                            int dim) {
  std::vector<float> rows;
  rows.reserve(static_cast<std::size_t>(heads) * tokens.size() * static_cast<std::size_t>(dim));
  for (int head = 0; head < heads; ++head) {
    for (const Token& token : tokens) AppendRow(layer, kind, token, head, dim, &rows);
  }
  return rows;
}

LayerModel::LayerModel(const LayerSpec& spec, int index)
    : spec_(spec), index_(index), heads_(static_cast<std::size_t>(spec.kv_heads)) {}

void LayerModel::Append(std::span<const Token> tokens) {
  if (tokens.empty()) return;
  seen_.insert(seen_.end(), tokens.begin(), tokens.end());
  for (Head& head : heads_) {
    for (const Token& token : tokens) head.push_back({token, std::nullopt, 0});
  }
  next_ = tokens.back().position + 1;
  first_of_last_append_ = tokens.front().position;
  lifetime_ += static_cast<std::int64_t>(tokens.size());
  if (spec_.sliding_window > 0) drops_allowed_ = true;
}

void LayerModel::OpenRows(std::span<const Token> tokens) {
  open_.insert(open_.end(), tokens.begin(), tokens.end());
}

void LayerModel::Close(std::int64_t accepted) {
  const std::vector<Token> rows(open_.begin(), open_.begin() + accepted);
  open_.clear();
  Append(rows);
}

std::int64_t LayerModel::Trim(TokenPos end) {
  if (this->end() <= end) return 0;
  const auto of_token = [](const Token& token) { return token.position; };
  std::int64_t gone = Cut(open_, end, of_token);
  gone += Cut(seen_, end, of_token);
  for (Head& head : heads_) Cut(head, end, [](const Row& row) { return row.token.position; });
  next_ = std::min(next_, end);
  return gone;
}

std::int64_t LayerModel::kept_rows() const {
  std::int64_t rows = 0;
  for (const Head& head : heads_) rows += static_cast<std::int64_t>(head.size());
  return rows;
}

// Takes away what is not in `positions`, which must hold nothing else.
void LayerModel::AdoptDrops(Head& head, std::span<const TokenPos> positions, bool finished) const {
  Head left;
  auto row = head.begin();
  for (const TokenPos position : positions) {
    row = std::find_if(row, head.end(), [&](const Row& r) { return r.token.position == position; });
    KVS_REQUIRE(row != head.end());
    left.push_back(*row++);
  }
  if (spec_.sliding_window > 0 && finished && window_stays_) {
    // Everything that the query of the first new row, or a later one, sees.
    const std::int64_t oldest = std::int64_t{first_of_last_append_} + 1 - spec_.sliding_window;
    std::int64_t visible = 0;
    std::int64_t left_visible = 0;
    for (const Row& r : head) visible += r.token.position >= oldest;
    for (const Row& r : left) left_visible += r.token.position >= oldest;
    KVS_REQUIRE(visible == left_visible);
  }
  const bool dropped = left.size() < head.size();
  KVS_REQUIRE(!dropped || spec_.sliding_window > 0 || budget_ == 0 ||
              static_cast<std::int64_t>(left.size()) == budget_);
  head = std::move(left);
}

void LayerModel::VerifyRow(const Gathered& gathered, int head, std::size_t r, const Token& token,
                           Row* row) const {
  const auto key_dim = static_cast<std::size_t>(spec_.key_dim);
  const auto value_dim = static_cast<std::size_t>(spec_.value_dim);
  std::vector<float> key;
  std::vector<float> value;
  AppendRow(index_, RowKind::kKey, token, head, spec_.key_dim, &key);
  if (spec_.value_is_key_prefix) {
    value.assign(key.begin(), key.begin() + spec_.value_dim);
  } else {
    AppendRow(index_, RowKind::kValue, token, head, spec_.value_dim, &value);
  }
  const auto decoded_key = std::span(gathered.rows.keys).subspan(r * key_dim, key_dim);
  const auto decoded_value = std::span(gathered.rows.values).subspan(r * value_dim, value_dim);
  const std::int32_t tier = gathered.tiers[r];
  KVS_REQUIRE(gathered.rows.positions[r] == token.position);
  if (tier == Cache::kExactRow) {
    KVS_REQUIRE(SameBits(decoded_key, key) && SameBits(decoded_value, value));
  } else {
    RequireNear(decoded_key, key);
    RequireNear(decoded_value, value);
  }
  if (row == nullptr) {
    KVS_REQUIRE(tier == Cache::kExactRow);
    return;
  }
  // A row stays as it was encoded until it goes to a colder store.
  const std::uint64_t bits = BitsOf(decoded_key, decoded_value);
  KVS_REQUIRE(row->tier != tier || row->bits == bits);
  KVS_REQUIRE(!row->tier.has_value() || *row->tier <= tier);  // kExactRow is below all
  row->tier = tier;
  row->bits = bits;
}

void LayerModel::VerifyHead(const Cache& cache, int index, bool finished) {
  const Gathered gathered(cache, index_, index);
  Head& head = heads_[static_cast<std::size_t>(index)];
  const std::span<const TokenPos> positions = gathered.rows.positions;
  KVS_REQUIRE(positions.size() >= open_.size());
  const std::size_t stored = positions.size() - open_.size();
  if (drops_allowed_) AdoptDrops(head, positions.first(stored), finished);
  KVS_REQUIRE(head.size() == stored);
  for (std::size_t r = 0; r < stored; ++r) VerifyRow(gathered, index, r, head[r].token, &head[r]);
  for (std::size_t r = stored; r < positions.size(); ++r) {
    VerifyRow(gathered, index, r, open_[r - stored], nullptr);
  }
}

void LayerModel::Verify(const Cache& cache, bool finished) {
  for (int h = 0; h < spec_.kv_heads; ++h) VerifyHead(cache, h, finished);
  drops_allowed_ = false;
  window_stays_ = true;
  const ByteReport report = cache.ReportLayer(index_).bytes;
  const auto tokens = static_cast<std::int64_t>(seen_.size());
  KVS_REQUIRE(report.tokens_seen == tokens * spec_.kv_heads);
  KVS_REQUIRE(report.rows_kept == kept_rows());
  KVS_REQUIRE(report.lifetime_tokens == lifetime_ * spec_.kv_heads);
  const std::int64_t full_rows =
      spec_.sliding_window > 0 ? std::min<std::int64_t>(tokens, spec_.sliding_window) : tokens;
  const auto f16_bytes = [&](std::int64_t rows, int dim) { return rows * dim * 2; };
  const int value_dim = spec_.value_is_key_prefix ? 0 : spec_.value_dim;
  KVS_REQUIRE(report.key_full_bytes == f16_bytes(full_rows * spec_.kv_heads, spec_.key_dim));
  KVS_REQUIRE(report.value_full_bytes == f16_bytes(full_rows * spec_.kv_heads, value_dim));
  KVS_REQUIRE(report.f16_rows_bytes == f16_bytes(kept_rows(), spec_.key_dim + value_dim));
  KVS_REQUIRE(report.kept_bytes() == report.key_kept_bytes + report.value_kept_bytes);
}

// As ExpectWithinKernelBound (tests/lib/cache_fixture.h), with the query in bytes for all stores.
void LayerModel::RequireAttention(const LayerSpec& spec, std::span<const oracle::HeadRows> heads,
                                  std::span<const float> queries, const Attended& attended,
                                  const oracle::Attention& exact) const {
  const auto key_dim = static_cast<std::size_t>(spec.key_dim);
  const auto value_dim = static_cast<std::size_t>(spec.value_dim);
  double max_key = 0;
  double max_value = 0;
  double most_rows = 0;
  for (const oracle::HeadRows& rows : heads) {
    max_key = std::max(max_key, LargestNorm(rows.keys, key_dim));
    max_value = std::max(max_value, LargestNorm(rows.values, value_dim));
    most_rows = std::max(most_rows, static_cast<double>(rows.rows()));
  }
  for (std::size_t i = 0; i < exact.lse.size(); ++i) {
    const double unit = 6 * 0.29 / 64 * 5 / std::sqrt(spec.key_dim);
    const double logit =
        unit * Norm(queries.subspan(i * key_dim, key_dim)) * spec.scale * 2 * max_key;
    const double weights = 0x1p-13 * std::sqrt(most_rows) * exact.top[i];
    double square = 0;
    for (std::size_t d = i * value_dim; d < (i + 1) * value_dim; ++d) {
      square += (attended.out[d] - exact.out[d]) * (attended.out[d] - exact.out[d]);
    }
    const double spread = 2 * (logit + 1e-5) * std::sqrt(exact.top[i]);
    KVS_REQUIRE(std::sqrt(square) <= (spread + weights + 1e-5) * max_value);  // false for NaN
    if (std::isinf(exact.lse[i])) {
      KVS_REQUIRE(attended.lse[i] == -std::numeric_limits<float>::infinity());
    } else {
      KVS_REQUIRE(std::abs(attended.lse[i] - exact.lse[i]) <= logit + 2e-5);
    }
  }
}

void LayerModel::VerifyAttention(const Cache& cache, std::span<const TokenPos> positions,
                                 const AttendParams& params) const {
  std::vector<oracle::HeadRows> heads;
  for (int h = 0; h < spec_.kv_heads; ++h) heads.push_back(Gathered(cache, index_, h).rows);
  std::vector<Token> tokens;
  for (const TokenPos position : positions) tokens.push_back({position, 7});
  const auto n = static_cast<std::int64_t>(positions.size());
  const std::vector<float> queries =
      MakeRows(index_, RowKind::kQuery, tokens, spec_.query_heads, spec_.key_dim);
  const auto count = static_cast<std::size_t>(spec_.query_heads * n);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Attended attended{std::vector<float>(count * static_cast<std::size_t>(spec_.value_dim), nan),
                    std::vector<float>(count, nan)};
  AttendScratch scratch;
  KVS_REQUIRE(cache
                  .Attend(index_, positions,
                          HeadsView::HeadMajor(queries.data(), spec_.query_heads, n, spec_.key_dim),
                          params, scratch, attended.out.data(), attended.lse.data())
                  .ok());
  LayerSpec spec = spec_;
  spec.scale = params.scale.value_or(spec.scale);
  spec.softcap = params.softcap.value_or(spec.softcap);
  spec.sliding_window = params.sliding_window.value_or(spec.sliding_window);
  RequireAttention(spec, heads, queries, attended,
                   oracle::Attend(spec, heads, queries, positions, params.sink_logits));
}

void LayerModel::VerifyVisible(const Cache& cache, std::span<const TokenPos> positions) const {
  for (int h = 0; h < spec_.kv_heads; ++h) {
    const Gathered gathered(cache, index_, h);
    const std::span<const TokenPos> rows = gathered.rows.positions;
    std::vector<std::uint8_t> mask(positions.size() * rows.size(), 9);
    KVS_REQUIRE(cache.Visible(index_, h, positions, mask).ok());
    for (std::size_t i = 0; i < mask.size(); ++i) {
      const std::int64_t behind = std::int64_t{positions[i / rows.size()]} - rows[i % rows.size()];
      const bool in_window = spec_.sliding_window == 0 || behind < spec_.sliding_window;
      KVS_REQUIRE(mask[i] == (behind >= 0 && in_window ? 1 : 0));
    }
  }
}

Model::Model(std::span<const LayerSpec> specs, std::int64_t budget) {
  for (std::size_t i = 0; i < specs.size(); ++i) layers.emplace_back(specs[i], static_cast<int>(i));
  for (LayerModel& layer : layers) layer.SetBudget(budget);
}

bool Model::AnyOpen() const {
  return std::any_of(layers.begin(), layers.end(),
                     [](const LayerModel& layer) { return layer.open_rows() > 0; });
}

bool Model::SameOpen() const {
  return std::all_of(layers.begin(), layers.end(), [this](const LayerModel& layer) {
    return layer.open_rows() == layers.front().open_rows();
  });
}

void Model::Verify(const Cache& cache) {
  for (LayerModel& layer : layers) layer.Verify(cache, finished);
  KVS_REQUIRE(cache.next_position() == layers.front().end());
  KVS_REQUIRE(cache.oldest_exact_position() >= 0);
  const std::int64_t open = layers.front().open_rows();
  const std::int64_t most = !finished ? 0 : open > 0 ? open : speculative_rows;
  for (const std::int64_t n : {std::int64_t{-1}, std::int64_t{0}, most, most + 1}) {
    KVS_REQUIRE(cache.CanRollback(n) == (SameOpen() && n >= 0 && n <= most));
  }
}

}  // namespace kvsieve::fuzz

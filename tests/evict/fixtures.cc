#include "tests/evict/fixtures.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

namespace kvsieve::testing {
namespace {

// Splits at commas outside parentheses and brackets.
std::vector<std::string_view> SplitArgs(std::string_view text) {
  std::vector<std::string_view> parts;
  int depth = 0;
  std::size_t begin = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    const char c = i < text.size() ? text[i] : ',';
    depth += c == '(' || c == '[' ? 1 : c == ')' || c == ']' ? -1 : 0;
    if (c == ',' && depth == 0) {
      parts.push_back(text.substr(begin, i - begin));
      begin = i + 1;
    }
  }
  return parts;
}

SpecCall ParseAt(std::string_view text, int column) {
  SpecCall call;
  call.column = column;
  const std::size_t open = text.find('(');
  call.name = text.substr(0, open);
  if (open == std::string_view::npos || open + 2 >= text.size()) return call;
  const std::string_view inside = text.substr(open + 1, text.size() - open - 2);
  for (const std::string_view part : SplitArgs(inside)) {
    SpecArg arg;
    arg.key_column = column + static_cast<int>(part.data() - text.data());
    const std::size_t equals = part.find('=');
    const bool word = equals == std::string_view::npos || equals > part.find('(');
    if (!word) arg.key = part.substr(0, equals);
    const std::string_view value = word ? part : part.substr(equals + 1);
    arg.value_column = column + static_cast<int>(value.data() - text.data());
    if (value.find('(') != std::string_view::npos) arg.call = {ParseAt(value, arg.value_column)};
    arg.value = value.substr(0, value.find('('));
    call.args.push_back(std::move(arg));
  }
  return call;
}

}  // namespace

SpecCall ParseCall(std::string_view text) { return ParseAt(text, 1); }

std::shared_ptr<const Evictor> MustMake(std::string_view spec) {
  auto made = MakeEvictor(ParseCall(spec));
  EXPECT_TRUE(made.ok()) << spec << ": " << (made.ok() ? "" : made.message());
  return made.ok() ? *made : nullptr;
}

std::string Canonical(std::string_view spec) {
  const auto evictor = MustMake(spec);
  return evictor == nullptr ? "" : evictor->Canonical();
}

Error ErrorOf(std::string_view spec) {
  const auto made = MakeEvictor(ParseCall(spec));
  EXPECT_FALSE(made.ok()) << spec;
  return made.ok() ? Error{} : made.error();
}

TestSource::TestSource(const float* rows, std::int64_t count, int dim, const Storage& storage)
    : count_(count), dim_(dim), storage_(storage) {
  const std::size_t element = ElementBytes(storage.type);
  bytes_.assign(ByteOf(count), 0);
  for (std::int64_t r = 0; r < count; ++r) {
    for (int d = 0; d < dim; ++d) {
      const float value = rows[r * dim + d];
      const F16 f16 = ToF16(value);
      const BF16 bf16 = ToBF16(value);
      const void* from = storage.type == ElementType::kF32   ? static_cast<const void*>(&value)
                         : storage.type == ElementType::kF16 ? static_cast<const void*>(&f16)
                                                             : static_cast<const void*>(&bf16);
      std::memcpy(bytes_.data() + ByteOf(r) + d * element, from, element);
    }
  }
}

void TestSource::ReadRows(RowIndex first, int count, float* out) const {
  for (int i = 0; i < count; ++i) {
    ConvertToF32(bytes_.data() + ByteOf(first + i), storage_.type, dim_,
                 out + static_cast<std::int64_t>(i) * dim_);
  }
}

std::optional<RowSource::RowMajor> TestSource::TryView() const {
  if (!storage_.view) return std::nullopt;
  return RowMajor{bytes_.data() + ByteOf(0), storage_.type, stride()};
}

Observed::Observed(const oracle::Layer& layer, const Storage& storage) : layer_(layer) {
  window_positions.assign(layer_.positions.end() - layer_.window_rows, layer_.positions.end());
  const auto add = [&](const std::vector<float>& rows, int head, int dim) {
    sources_.push_back(std::make_unique<TestSource>(rows.data() + head * layer_.rows * dim,
                                                    layer_.rows, dim, storage));
    return sources_.back().get();
  };
  for (int h = 0; h < layer_.spec.kv_heads; ++h) {
    heads_.push_back({add(layer_.k, h, layer_.spec.key_dim),
                      add(layer_.v, h, layer_.spec.value_dim), layer_.positions});
  }
}

Observation Observed::observation() const {
  Observation observation;
  observation.layer = layer_.spec;
  observation.heads = heads_;
  observation.window_queries = layer_.q.data();
  observation.window_positions = window_positions;
  return observation;
}

oracle::Layer RandomLayer(const LayerShape& shape, std::uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<float> normal;
  oracle::Layer layer;
  layer.spec.query_heads = shape.query_heads;
  layer.spec.kv_heads = shape.kv_heads;
  layer.spec.key_dim = shape.key_dim;
  layer.spec.value_dim = shape.value_dim;
  layer.spec.scale = 1.0F / std::sqrt(static_cast<float>(shape.key_dim));
  layer.rows = shape.rows;
  layer.window_rows = static_cast<int>(std::min<std::int64_t>(shape.window_rows, shape.rows));
  const auto fill = [&](std::vector<float>* values, std::int64_t count) {
    values->resize(static_cast<std::size_t>(count));
    for (float& value : *values) value = normal(rng);
  };
  fill(&layer.k, shape.kv_heads * shape.rows * shape.key_dim);
  fill(&layer.v, shape.kv_heads * shape.rows * shape.value_dim);
  fill(&layer.q, static_cast<std::int64_t>(shape.query_heads) * layer.window_rows * shape.key_dim);
  layer.positions.resize(static_cast<std::size_t>(shape.rows));
  std::iota(layer.positions.begin(), layer.positions.end(), 0);
  for (int h = 0; h < shape.query_heads && shape.rows > 0; ++h) {
    for (int w = 0; w < layer.window_rows; ++w) {
      const auto row = static_cast<std::int64_t>(rng() % static_cast<std::uint64_t>(shape.rows));
      const int kv_head = h / layer.spec.group();
      for (int d = 0; d < shape.key_dim; ++d) {
        layer.q[(static_cast<std::int64_t>(h) * layer.window_rows + w) * shape.key_dim + d] +=
            0.5F * layer.k[(kv_head * shape.rows + row) * shape.key_dim + d];
      }
    }
  }
  return layer;
}

LayerDecision Decide(std::string_view spec, const Observation& observation) {
  const auto evictor = MustMake(spec);
  if (evictor == nullptr) return {};
  SerialParallel serial;
  auto decided = evictor->Decide({&observation, 1}, serial, nullptr);
  EXPECT_TRUE(decided.ok()) << spec << ": " << (decided.ok() ? "" : decided.message());
  return decided.ok() ? std::move(decided->front()) : LayerDecision{};
}

std::vector<TokenPos> Kept(const LayerDecision& decision, int head) {
  const auto positions = decision.keep.positions(head);
  return {positions.begin(), positions.end()};
}

}  // namespace kvsieve::testing

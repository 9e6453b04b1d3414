#include "quant_test_util.h"

#include <cstdlib>

namespace kvsieve::quant_test {
namespace {

SpecArg ParseArg(std::string_view text, int column) {
  SpecArg arg;
  const std::size_t equals = text.find('=');
  arg.key_column = column;
  arg.value_column = column;
  if (equals != std::string_view::npos) {
    arg.key = text.substr(0, equals);
    arg.value_column = column + static_cast<int>(equals) + 1;
    text.remove_prefix(equals + 1);
  }
  arg.value = text;
  return arg;
}

SpecCall ParseCall(std::string_view text, int column) {
  SpecCall call;
  call.column = column;
  const std::size_t open = text.find('(');
  call.name = text.substr(0, open);
  if (open == std::string_view::npos) return call;
  std::size_t at = open + 1;
  const std::size_t close = text.size() - 1;
  while (at < close) {
    const std::size_t comma = std::min(text.find(',', at), close);
    call.args.push_back(ParseArg(text.substr(at, comma - at), column + static_cast<int>(at)));
    at = comma + 1;
  }
  return call;
}

}  // namespace

std::vector<SpecCall> ParseChain(std::string_view text) {
  std::vector<SpecCall> calls;
  std::size_t at = 0;
  while (at <= text.size()) {
    const std::size_t plus = std::min(text.find('+', at), text.size());
    calls.push_back(ParseCall(text.substr(at, plus - at), static_cast<int>(at) + 1));
    at = plus + 1;
  }
  return calls;
}

std::shared_ptr<const Chain> MakeChainOrDie(std::string_view text, int dim, Side side) {
  auto chain = MakeChain(ParseChain(text), dim, side);
  if (!chain.ok()) {
    ADD_FAILURE() << text << ": " << chain.message();
    std::abort();
  }
  return *chain;
}

std::string MakeChainError(std::string_view text, int dim, Side side) {
  const auto chain = MakeChain(ParseChain(text), dim, side);
  return chain.ok() ? "" : chain.message();
}

Rows GaussianRows(std::int64_t rows, int dim, unsigned seed) {
  Rows result(rows, dim);
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  for (float& value : result.values()) value = normal(engine);
  return result;
}

Block::Block(const Codec& codec, int capacity_rows)
    : capacity_(capacity_rows),
      size_(codec.BlockBytes(capacity_rows)),
      memory_((size_ + 63) / 64, Line{}) {}

Rows Stored::Decode(std::int64_t rows) const {
  Rows decoded(rows, chain->dim());
  for (std::int64_t first = 0; first < rows; first += kBlockRows) {
    const auto count = static_cast<int>(std::min<std::int64_t>(kBlockRows, rows - first));
    chain->Decode(stats.data(), blocks[first / kBlockRows].ref(), 0, count, decoded.row(first));
  }
  return decoded;
}

Stored Store(std::shared_ptr<const Chain> chain, const Rows& rows) {
  Stored stored{chain, std::vector<float>(chain->stats_floats() + 1), {}};
  Status status = chain->Learn(rows, stored.stats.data());
  EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.message());
  Rows copy = rows;
  for (std::int64_t first = 0; first < rows.rows(); first += kBlockRows) {
    const auto count = static_cast<int>(std::min<std::int64_t>(kBlockRows, rows.rows() - first));
    stored.blocks.emplace_back(chain->codec(), kBlockRows);
    status =
        chain->Encode(stored.stats.data(), copy.row(first), count, stored.blocks.back().ref(), 0);
    EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.message());
  }
  return stored;
}

double NormalizedError(const Rows& rows, const Rows& decoded) {
  double sum = 0;
  std::int64_t counted = 0;
  for (std::int64_t r = 0; r < rows.rows(); ++r) {
    double error = 0;
    double energy = 0;
    for (int j = 0; j < rows.dim(); ++j) {
      const double x = rows.row(r)[j];
      const double e = x - decoded.row(r)[j];
      error += e * e;
      energy += x * x;
    }
    if (energy == 0) continue;
    sum += error / energy;
    ++counted;
  }
  return sum / static_cast<double>(counted);
}

}  // namespace kvsieve::quant_test

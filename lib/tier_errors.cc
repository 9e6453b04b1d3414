#include "lib/tier_errors.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "kvsieve/encode_rows.h"
#include "kvsieve/str_cat.h"
#include "kvsieve/typical_length.h"

namespace kvsieve {
namespace {

// More is no error but nonsense: a codec that was given rows it cannot hold.
constexpr double kMostError = 1e6;

// f32 [rows, dim], some rows of a source.
struct Sample {
  std::int64_t rows = 0;
  int dim = 0;
  std::vector<float> elements;

  HeadsView view() const { return HeadsView::HeadMajor(elements.data(), 1, rows, dim); }
};

// Without the rows that are far longer than the others: a sum of squares would tell of them alone.
void KeepTypical(Sample& sample) {
  std::vector<float> lengths;
  for (std::int64_t r = 0; r < sample.rows; ++r) {
    lengths.push_back(RowLength(sample.elements.data() + r * sample.dim, sample.dim));
  }
  const float longest = LongestTypical(lengths);
  std::int64_t typical = 0;
  for (std::int64_t r = 0; r < sample.rows; ++r) {
    if (lengths[static_cast<std::size_t>(r)] > longest) continue;
    std::copy_n(sample.elements.data() + r * sample.dim, sample.dim,
                sample.elements.data() + typical++ * sample.dim);
  }
  sample.rows = typical;
  sample.elements.resize(static_cast<std::size_t>(typical * sample.dim));
}

Sample TakeSample(const RowSource& source, RowIndex first, RowIndex end, int run) {
  Sample sample;
  sample.dim = source.dim();
  const std::int64_t all = end - first;
  const std::int64_t wanted = std::min<std::int64_t>(all, kBlockRows);
  sample.elements.resize(static_cast<std::size_t>(wanted * sample.dim));
  const std::int64_t runs = (wanted + run - 1) / run;
  for (std::int64_t i = 0; i < runs; ++i) {
    const auto count = static_cast<int>(std::min<std::int64_t>(run, wanted - sample.rows));
    const RowIndex begin = first + (all - count) * i / std::max<std::int64_t>(1, runs - 1);
    source.ReadRows(begin, count, sample.elements.data() + sample.rows * sample.dim);
    sample.rows += count;
  }
  KeepTypical(sample);
  return sample;
}

// V where it lies in K: the first elements of the same rows, which are those that were stored.
Sample PrefixOf(const Sample& keys, int dim) {
  Sample values{keys.rows, dim, {}};
  for (std::int64_t r = 0; r < keys.rows; ++r) {
    const auto row = keys.elements.begin() + r * keys.dim;
    values.elements.insert(values.elements.end(), row, row + dim);
  }
  return values;
}

// Sum over all rows of their distance from `centers`: one row, or one for each of the sample's.
// Summed dim by dim, which compilers vectorize.
template <class T>
double SquareAround(const Sample& sample, const T* centers, std::int64_t center_stride) {
  const auto dim = static_cast<std::size_t>(sample.dim);
  std::vector<double> squares(dim);
  for (std::int64_t r = 0; r < sample.rows; ++r) {
    const float* row = sample.elements.data() + r * sample.dim;
    const T* center = centers + r * center_stride;
    for (std::size_t d = 0; d < dim; ++d) {
      const double off = static_cast<double>(row[d]) - center[d];
      squares[d] += off * off;
    }
  }
  return std::accumulate(squares.begin(), squares.end(), 0.0);
}

std::vector<double> MeanOf(const Sample& sample) {
  std::vector<double> mean(static_cast<std::size_t>(sample.dim));
  for (std::int64_t r = 0; r < sample.rows; ++r) {
    const float* row = sample.elements.data() + r * sample.dim;
    for (std::size_t d = 0; d < mean.size(); ++d) {
      mean[d] += row[d] / static_cast<double>(sample.rows);
    }
  }
  return mean;
}

// Rows are numbered within the sample, and errors say so.
Result<std::int64_t> Store(const Chain& chain, const Sample& sample, std::span<float> stats,
                           std::span<std::uint8_t> bytes) {
  Result<std::int64_t> saturated = EncodeRowsTo(chain, sample.view(), stats, bytes);
  if (saturated.ok()) return saturated;
  const std::string_view side = SideName(chain.side());
  return Status(saturated.error().code,
                StrCat(side, ", of ", sample.rows, " sampled rows ", saturated.message()));
}

Result<std::vector<float>> StoreAndRead(const Chain& chain, const Sample& sample) {
  KVS_ASSIGN_OR_RETURN(const EncodedRowsSize size, EncodedSize(chain, sample.rows));
  std::vector<float> stats(static_cast<std::size_t>(size.stats_floats));
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(size.bytes));
  KVS_ASSIGN_OR_RETURN([[maybe_unused]] const std::int64_t saturated,
                       Store(chain, sample, stats, bytes));
  std::vector<float> stored(sample.elements.size());
  KVS_RETURN_IF_ERROR(DecodeRowsFrom(chain, sample.rows, stats, bytes, stored));
  return stored;
}

float ErrorOf(const Sample& sample, std::span<const float> stored, std::int64_t stored_dim,
              double square) {
  const double error = SquareAround(sample, stored.data(), stored_dim);
  return static_cast<float>(square > 0 ? std::min(error / square, kMostError) : 0);
}

}  // namespace

Result<TierErrors> MeasureErrors(const LayerStore& store, const HeadObservation& head,
                                 RowIndex first, RowIndex end) {
  TierErrors errors;
  if (first >= end) return errors;
  const Sample keys = TakeSample(*head.keys, first, end, store.group_rows());
  const Sample values = store.value != nullptr
                            ? TakeSample(*head.values, first, end, store.group_rows())
                            : PrefixOf(keys, head.values->dim());
  KVS_ASSIGN_OR_RETURN(std::vector<float> stored, StoreAndRead(*store.key, keys));
  errors.key = ErrorOf(keys, stored, keys.dim, SquareAround(keys, MeanOf(keys).data(), 0));
  if (store.value != nullptr) {
    KVS_ASSIGN_OR_RETURN(stored, StoreAndRead(*store.value, values));
  }
  const std::vector<double> origin(static_cast<std::size_t>(values.dim));
  const int stored_dim = store.value != nullptr ? values.dim : keys.dim;
  errors.value = ErrorOf(values, stored, stored_dim, SquareAround(values, origin.data(), 0));
  return errors;
}

}  // namespace kvsieve

#include "lib/eval/row_errors.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "kvsieve/float16.h"

namespace kvsieve::eval {
namespace {

struct ErrorSum {
  double errors = 0;  // of |x - x'|^2 / |x|^2
  std::int64_t rows = 0;

  ErrorSum& operator+=(const ErrorSum& other) {
    errors += other.errors;
    rows += other.rows;
    return *this;
  }
  std::optional<double> Mean() const {
    if (rows == 0) return std::nullopt;
    return errors / static_cast<double>(rows);
  }
};

struct SideSums {
  ErrorSum key;
  ErrorSum value;
  SideSums& operator+=(const SideSums& other) {
    key += other.key;
    value += other.value;
    return *this;
  }
  RowErrors Means() const { return {key.Mean(), value.Mean()}; }
};

// decoded: f32 [columns, dim], the rows at `columns` of the recorded ones.
ErrorSum SumErrors(const HeadsView& recorded, int head, std::span<const std::int64_t> columns,
                   const float* decoded) {
  ErrorSum sum;
  std::vector<float> row(static_cast<std::size_t>(recorded.dim));
  for (const std::int64_t column : columns) {
    ConvertToF32(recorded.row(head, column), recorded.type, recorded.dim, row.data());
    double error = 0;
    double square = 0;
    for (int d = 0; d < recorded.dim; ++d) {
      const double x = row[d];
      error += (x - decoded[d]) * (x - decoded[d]);
      square += x * x;
    }
    decoded += recorded.dim;
    if (square == 0) continue;
    sum.errors += error / square;
    ++sum.rows;
  }
  return sum;
}

Result<SideSums> MeasureHead(const Trace& trace, const Cache& cache, int layer_index, int head) {
  const TraceLayer& layer = trace.layers()[layer_index];
  const std::int64_t rows = cache.rows(layer_index, head);
  std::vector<TokenPos> positions(rows);
  std::vector<float> keys(rows * layer.spec.key_dim);
  std::vector<float> values(rows * layer.spec.value_dim);
  KVS_RETURN_IF_ERROR(cache.Gather(layer_index, head, positions, keys, values));
  std::vector<std::int64_t> columns;
  const auto recorded = trace.positions();
  for (const TokenPos position : positions) {
    columns.push_back(std::lower_bound(recorded.begin(), recorded.end(), position) -
                      recorded.begin());
  }
  SideSums sums;
  sums.key = SumErrors(layer.keys, head, columns, keys.data());
  if (layer.values.data != nullptr) {
    sums.value = SumErrors(layer.values, head, columns, values.data());
  }
  return sums;
}

}  // namespace

Status MeasureRowErrors(const Trace& trace, const Cache& cache, Parallel& parallel,
                        PipelineResult* result) {
  SideSums all;
  for (int i = 0; i < cache.layers(); ++i) {
    const int heads = cache.layer(i).kv_heads;
    std::vector<SideSums> of_head(static_cast<std::size_t>(heads));
    std::vector<Status> statuses(of_head.size());
    ParallelFor(parallel, heads, [&](std::int64_t head, int) {
      statuses[head] = NoThrow([&]() -> Status {
        KVS_ASSIGN_OR_RETURN(of_head[head], MeasureHead(trace, cache, i, static_cast<int>(head)));
        return Status::Ok();
      });
    });
    SideSums of_layer;
    for (int head = 0; head < heads; ++head) {
      KVS_RETURN_IF_ERROR(std::move(statuses[head]));
      of_layer += of_head[head];
    }
    result->layers[i].row_errors = of_layer.Means();
    all += of_layer;
  }
  result->row_errors = all.Means();
  return Status::Ok();
}

}  // namespace kvsieve::eval

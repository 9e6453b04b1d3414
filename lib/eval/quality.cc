#include "kvsieve/eval/quality.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <tuple>
#include <xtensor/xadapt.hpp>
#include <xtensor/xmath.hpp>
#include <xtensor/xtensor.hpp>

#include "lib/eval/top_columns.h"

namespace kvsieve::eval {
namespace {

using Vector = xt::xtensor<double, 1>;

// Probabilities are f32: below the smallest normal one they say nothing. The divergence is at most
// -log of this, 87.3.
constexpr double kSmallestProbability = std::numeric_limits<float>::min();

Vector ToDouble(std::span<const float> values) {
  const std::array<std::size_t, 1> shape = {values.size()};
  return xt::cast<double>(xt::adapt(values.data(), values.size(), xt::no_ownership(), shape));
}

double Norm(const Vector& values) { return std::sqrt(xt::sum(xt::square(values))()); }

double Cosine(const Vector& value, const Vector& reference) {
  const double value_norm = Norm(value);
  const double reference_norm = Norm(reference);
  if (!std::isfinite(value_norm)) return 0;
  if (value_norm == 0 || reference_norm == 0) return value_norm == reference_norm ? 1 : 0;
  return std::clamp(xt::sum(value * reference)() / (value_norm * reference_norm), -1.0, 1.0);
}

// Full probabilities of the rows that stayed.
Vector Gather(std::span<const float> probabilities, std::span<const std::int64_t> columns) {
  Vector kept = Vector::from_shape({columns.size()});
  std::transform(columns.begin(), columns.end(), kept.begin(), [&](std::int64_t column) {
    return static_cast<double>(probabilities[static_cast<std::size_t>(column)]);
  });
  return kept;
}

// KL(softmax(logits) || full): `full` is not normalised again, so dropping rows and changing
// nothing else gives -log of the mass kept.
double Divergence(std::span<const float> logits, const Vector& full) {
  const double worst = -std::log(kSmallestProbability);
  const Vector x = ToDouble(logits);
  double max = -std::numeric_limits<double>::infinity();
  for (const double logit : x) max = std::max(max, logit);
  if (!std::isfinite(max)) return worst;  // nothing visible stayed, or the logits are broken
  const Vector weights = xt::exp(x - max);
  const double total = xt::sum(weights)();
  if (!std::isfinite(total)) return worst;  // a NaN among the logits
  const Vector p = weights / total;
  const double kl =
      xt::sum(xt::where(p > 0, p * xt::log(p / xt::maximum(full, kSmallestProbability)), 0.0))();
  return std::isfinite(kl) ? std::clamp(kl, 0.0, worst) : worst;
}

double TopOverlap(std::span<const std::int32_t> full_top,
                  std::span<const std::int64_t> kept_columns, std::span<const float> logits) {
  constexpr float kHidden = -std::numeric_limits<float>::infinity();
  std::vector<float> comparable(logits.begin(), logits.end());
  for (float& logit : comparable) {
    if (std::isnan(logit)) logit = kHidden;
  }
  std::vector<std::int32_t> order;
  std::int64_t shared = 0;
  for (const std::int32_t i : SelectTop<float>(comparable, kTopColumns, order)) {
    const auto kept_index = static_cast<std::size_t>(i);
    if (comparable[kept_index] == kHidden) continue;
    shared += std::binary_search(full_top.begin(), full_top.end(), kept_columns[kept_index]);
  }
  return static_cast<double>(shared) / static_cast<double>(full_top.size());
}

// The smallest value that at least `share` of the sorted values do not exceed.
double NearestRank(const Vector& sorted, double share) {
  const double rank = std::ceil(share * static_cast<double>(sorted.size()));
  return sorted(static_cast<std::size_t>(std::max(rank, 1.0)) - 1);
}

}  // namespace

double RelativeError(std::span<const float> value, std::span<const float> reference) {
  const Vector exact = ToDouble(reference);
  const double error = Norm(ToDouble(value) - exact);
  if (!std::isfinite(error)) return kNonFiniteError;
  const double norm = Norm(exact);
  if (norm == 0) return error == 0 ? 0 : 1;
  return std::min(error / norm, kNonFiniteError);
}

void AccuracyMeter::Add(const ExactAttention& exact, int layer_index, int query_head,
                        std::int64_t query, std::span<const std::int64_t> kept_columns,
                        std::span<const float> logits, std::span<const float> output) {
  const std::span<const float> reference = exact.Output(layer_index, query_head, query);
  const auto top = exact.TopColumns(layer_index, query_head, query);
  Sample sample{layer_index,
                query_head,
                query,
                RelativeError(output, reference),
                Cosine(ToDouble(output), ToDouble(reference)),
                0,
                1,
                1};
  if (!top.empty()) {  // else no row is visible: there is nothing to lose
    const Vector full = Gather(exact.Probabilities(layer_index, query_head, query), kept_columns);
    sample.kl = Divergence(logits, full);
    sample.mass = std::min(xt::sum(full)(), 1.0);
    sample.top32 = TopOverlap(top, kept_columns, logits);
  }
  samples_.push_back(sample);
}

Accuracy AccuracyMeter::Summarize(std::vector<Sample> samples) {
  if (samples.empty()) return {};
  // A fixed order of the sums, whoever measured which query first.
  std::sort(samples.begin(), samples.end(), [](const Sample& a, const Sample& b) {
    return std::tie(a.layer_index, a.query_head, a.query) <
           std::tie(b.layer_index, b.query_head, b.query);
  });
  const auto column = [&](double Sample::*figure) {
    Vector values = Vector::from_shape({samples.size()});
    std::transform(samples.begin(), samples.end(), values.begin(),
                   [&](const Sample& sample) { return sample.*figure; });
    return values;
  };
  Accuracy accuracy;
  Vector errors = column(&Sample::rel_error);
  accuracy.output_rel_error.mean = xt::mean(errors)();
  std::sort(errors.begin(), errors.end());
  accuracy.output_rel_error.p50 = NearestRank(errors, 0.5);
  accuracy.output_rel_error.p99 = NearestRank(errors, 0.99);
  accuracy.output_rel_error.max = errors(errors.size() - 1);
  accuracy.output_cosine = xt::mean(column(&Sample::cosine))();
  accuracy.attention_kl = xt::mean(column(&Sample::kl))();
  accuracy.attention_mass_kept = xt::mean(column(&Sample::mass))();
  accuracy.top32_overlap = xt::mean(column(&Sample::top32))();
  return accuracy;
}

Accuracy AccuracyMeter::Summary() const { return Summarize(samples_); }

Accuracy AccuracyMeter::Summary(int layer_index) const {
  std::vector<Sample> of_layer;
  std::copy_if(samples_.begin(), samples_.end(), std::back_inserter(of_layer),
               [&](const Sample& sample) { return sample.layer_index == layer_index; });
  return Summarize(std::move(of_layer));
}

void AccuracyMeter::Merge(const AccuracyMeter& other) {
  samples_.insert(samples_.end(), other.samples_.begin(), other.samples_.end());
}

}  // namespace kvsieve::eval

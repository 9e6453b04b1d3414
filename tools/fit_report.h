// What `kvsieve fit` found, as a table or as JSON.
#ifndef KVSIEVE_TOOLS_FIT_REPORT_H_
#define KVSIEVE_TOOLS_FIT_REPORT_H_

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "kvsieve/eval/model_config.h"
#include "kvsieve/plan_bytes.h"

namespace kvsieve::tools {

enum class Verdict : std::uint8_t { kFits, kDepends, kDoesNot };

struct FitResult {
  std::string typed;
  std::string canonical;
  BytePlan plan;
  bool at_most = false;         // a plan by scores: nothing is known but the most
  std::optional<double> error;  // of a suggestion
  // With --mem only.
  std::optional<Verdict> verdict;
  std::int64_t longest_tokens = 0;  // kLongest: that many or more
};
inline constexpr std::int64_t kLongest = std::int64_t{1} << 24;

struct FitReport {
  std::string path;
  eval::ModelConfig model;
  std::int64_t context_tokens = 0;
  PlanRequest request;
  std::optional<std::int64_t> memory_bytes;
  bool suggested = false;
  std::vector<FitResult> results;
};

void PrintFit(std::FILE* out, const FitReport& report);
std::string FitJson(const FitReport& report);

}  // namespace kvsieve::tools

#endif  // KVSIEVE_TOOLS_FIT_REPORT_H_

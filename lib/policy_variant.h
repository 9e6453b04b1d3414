// What the settings of an eviction policy come to: the pipeline of a request, or why nothing goes.
#ifndef KVSIEVE_LIB_POLICY_VARIANT_H_
#define KVSIEVE_LIB_POLICY_VARIANT_H_

#include <cstdint>
#include <memory>
#include <string>

#include "kvsieve/eviction_policy.h"
#include "kvsieve/pipeline.h"
#include "kvsieve/result.h"
#include "lib/policy_settings.h"

namespace kvsieve::policy {

struct Variant {
  std::shared_ptr<const Pipeline> pipeline;  // null: nothing goes
  std::string note;                          // what is evicted, or why nothing is
  std::int64_t min_tokens = 0;
  std::string min_tokens_label;
  std::int64_t budget_rows = 0;  // shorter prompts lose nothing; 0: not known before the prompt is
  std::string budget_label;
};

// Errors name the setting that caused them.
Result<Variant> BuildVariant(const Settings& settings, const ServerLimits& limits);

// The pipeline of a prompt that loses nothing: `none | store`.
Result<Pipeline> PassThrough(const Settings& settings);

}  // namespace kvsieve::policy

#endif  // KVSIEVE_LIB_POLICY_VARIANT_H_

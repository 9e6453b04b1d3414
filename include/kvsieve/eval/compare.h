// Pipelines on one trace: bytes, accuracy and time of each, through the Cache that an engine uses.
//
//   auto comparer = Comparer::Create(trace, parallel, {});
//   for (const auto& pipeline : pipelines) results.push_back(*comparer->Run(pipeline));
//   MarkParetoFront(results);
#ifndef KVSIEVE_EVAL_COMPARE_H_
#define KVSIEVE_EVAL_COMPARE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvsieve/byte_report.h"
#include "kvsieve/cache.h"
#include "kvsieve/eval/external_scores.h"
#include "kvsieve/eval/quality.h"
#include "kvsieve/eval/trace.h"
#include "kvsieve/parallel.h"
#include "kvsieve/pipeline.h"
#include "kvsieve/result.h"

namespace kvsieve::eval {

enum class Measure : std::uint8_t {
  kAccuracy,      // bytes, time and accuracy
  kBytesAndTime,  // no accuracy
};

// How a recorded prompt goes into a cache.
struct PromptOptions {
  // Tokens appended at a time, as an engine does with a long prompt; 0: all at once.
  // schedule=per_chunk evicts after each chunk, others give the same result for any number.
  std::int64_t chunk_rows = 0;
  // For pipelines that rank by scores handed in, others ignore it; must outlive the call.
  const ExternalScores* external_scores = nullptr;
};

struct CompareOptions {
  DecodeRows decode_rows = DecodeRows::kExact;  // what becomes of the eval rows
  Measure measure = Measure::kAccuracy;
  PromptOptions prompt;  // its scores must outlive the Comparer
};

struct Timing {
  // Append, observe and finish the prefill, all layers: the best of 3 rounds, of 1 when the prompt
  // is longer than 4096 tokens.
  std::optional<double> compact_ms;
  // One query of every head over all rows, the last one's: the best of 10 rounds, after those of
  // the other queries, each layer's own. Null without eval queries.
  std::optional<double> attend_us_per_token;
};

// Mean over the rows kept, exact ones included, of |x - x'|^2 / |x|^2: x as recorded, x' decoded.
// Rows of zeros are left out; null without rows. What a codec did to a side, whatever queries ask.
struct RowErrors {
  std::optional<double> key;
  std::optional<double> value;
};

struct LayerResult {
  LayerReport report;  // right after finish_prefill
  RowErrors row_errors;
  std::optional<Accuracy> accuracy;
  Timing time;  // compact_ms is null: layers are compacted together
};

struct PipelineResult {
  std::string typed;      // the spec as given
  std::string canonical;  // every default written out
  ByteReport bytes;       // right after finish_prefill
  RowErrors row_errors;   // over the rows of all layers
  std::optional<Accuracy> accuracy;
  Timing time;
  bool pareto = false;  // no other pipeline is better in kept bytes and mean output error
  std::vector<LayerResult> layers;
};

// Everything that the reports print. Owns its values; the trace may be gone.
struct Comparison {
  std::string version;
  std::string target;  // instruction set of the kernels
  int threads = 1;
  DecodeRows decode_rows = DecodeRows::kExact;
  std::int64_t chunk_rows = 0;  // of the prompt; 0: it came at once
  std::string trace_name;
  std::int64_t tokens = 0;
  std::int64_t n_eval = 0;
  std::vector<LayerSpec> layers;
  std::optional<double> engine_rel_error;  // exact attention against the engine's own output
  std::vector<PipelineResult> pipelines;
};

// A cache that has seen the prompt of a trace and compressed it, and what that came to.
struct CompressedPrompt {
  Cache cache;
  PipelineResult result;  // without row errors, accuracy and attend times
};

// The options' allocator and parallel must outlive the cache.
Result<CompressedPrompt> CompressPrompt(const Trace& trace,
                                        std::shared_ptr<const Pipeline> pipeline,
                                        const CacheOptions& options,
                                        const PromptOptions& prompt = {});

// The setting of a comparison on this trace: no pipelines, version or engine_rel_error.
Comparison DescribeSetting(const Trace& trace, const Parallel& parallel);

// Runs pipelines over one trace.
class Comparer {
 public:
  // Computes exact attention, once for all pipelines. Borrows trace and parallel. Fails when there
  // is no memory for it.
  static Result<Comparer> Create(const Trace& trace, Parallel& parallel,
                                 const CompareOptions& options);

  // Compresses the prompt, then lets the eval tokens attend one by one, each after its own row was
  // appended to every layer (without recorded eval rows they see the prompt only). With rows that
  // are stored and schedule=every(n), eviction follows each token's attention. Figures but times
  // are the same for any number of workers.
  Result<PipelineResult> Run(std::shared_ptr<const Pipeline> pipeline) const;

  // Everything but the pipelines and the version.
  Comparison Describe() const;

 private:
  Comparer(const Trace& trace, Parallel& parallel, const CompareOptions& options,
           ExactAttention exact);

  const Trace* trace_;
  Parallel* parallel_;
  CompareOptions options_;
  ExactAttention exact_;
};

// Sets `pareto` where no other result has both kept bytes and mean output error at most as large
// and one of them smaller. Without accuracy only the bytes count.
void MarkParetoFront(std::span<PipelineResult> results);

// The kernel path of a layer in one word: "fused", or "k:fused v:portable" where K and V differ.
std::string PathName(const LayerReport& report);

// Ready-made sets of pipelines. Quick: one of each kind. Full: budgets times stores.
enum class Grid : std::uint8_t { kQuick, kFull };
std::vector<std::string> GridSpecs(Grid grid);

}  // namespace kvsieve::eval

#endif  // KVSIEVE_EVAL_COMPARE_H_

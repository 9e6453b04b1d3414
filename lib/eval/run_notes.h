// What did not run as asked: kernel paths other than fused, budgets that were not reached.
#ifndef KVSIEVE_LIB_EVAL_RUN_NOTES_H_
#define KVSIEVE_LIB_EVAL_RUN_NOTES_H_

#include <span>
#include <string>
#include <vector>

#include "kvsieve/eval/compare.h"

namespace kvsieve::eval {

// One line per kind, empty when all pipelines ran as asked. Pipelines are named by their number,
// from 1, and layers by the model's: "not on fused kernels: portable: 3, 7 (layers 0, 14)".
std::vector<std::string> RunNotes(std::span<const PipelineResult> pipelines);

// "layers 0, 7, 14, 21, 29", the model's numbers.
std::string LayersText(std::span<const LayerSpec> layers);

// What to think of when many query heads share a KV head whose keys have few bits; else empty.
// A key's error moves the logits of all of them, a value's error averages out over rows: at 7 query
// heads and 3-bit keys a model broke that 8-bit keys with 3-bit values left whole.
std::string KeyAdvice(const LayerSpec& layer, const Codec& key_codec);

// " in chunks of 64"; empty when the prompt came at once.
std::string ChunksText(const Comparison& comparison);

// What the figures are, for the foot of a table: one sentence a line.
std::span<const char* const> FigureLegend();

}  // namespace kvsieve::eval

#endif  // KVSIEVE_LIB_EVAL_RUN_NOTES_H_

// The codecs and transforms that a chain may name. Adding one: its own file, one line here, one in
// registry.cc.
#ifndef KVSIEVE_QUANT_REGISTRY_H_
#define KVSIEVE_QUANT_REGISTRY_H_

#include <memory>
#include <string>

#include "kvsieve/codec.h"
#include "kvsieve/spec_args.h"
#include "kvsieve/stage_info.h"

namespace kvsieve::quant {

// Outline checks the arguments and writes the canonical call, before dim is known; Make also
// checks them against dim (1..kMaxDim).
struct CodecEntry {
  StageInfo info;
  Result<std::string> (*outline)(const SpecCall& call);
  Result<std::shared_ptr<const Codec>> (*make)(const SpecCall& call, int dim, Side side);
  // The rotation that belongs to the codec and runs right before it; null for none.
  Result<std::shared_ptr<const Transform>> (*make_rotation)(const SpecCall& call, int dim);
  // Codec::group_rows of what Make will build; null for 1.
  Result<int> (*group_rows)(const SpecCall& call) = nullptr;
};

struct TransformEntry {
  StageInfo info;
  Result<std::string> (*outline)(const SpecCall& call);
  Result<std::shared_ptr<const Transform>> (*make)(const SpecCall& call, int dim);
  bool wants_exact_sinks;
  bool rotates;  // may not stand before a codec that brings its own rotation
};

// For stages without options: an error when there are some; the name as the canonical call.
Status CheckNoOptions(const SpecCall& call);
Result<std::string> OutlineName(const SpecCall& call);

extern const CodecEntry kF16Codec;
extern const CodecEntry kBF16Codec;
extern const CodecEntry kFp8Codec;
extern const CodecEntry kInt8Codec;
extern const CodecEntry kInt4Codec;
extern const CodecEntry kInt3Codec;
extern const CodecEntry kInt2Codec;
extern const CodecEntry kTurboCodec;
extern const CodecEntry kQ8_0Codec;
extern const CodecEntry kQ4_0Codec;
extern const CodecEntry kChannelCodec;

extern const TransformEntry kCenterTransform;
extern const TransformEntry kHadamardTransform;
extern const TransformEntry kChannelScaleTransform;

}  // namespace kvsieve::quant

#endif  // KVSIEVE_QUANT_REGISTRY_H_

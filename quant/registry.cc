#include "quant/registry.h"

#include <utility>
#include <vector>

#include "kvsieve/str_cat.h"
#include "quant/code_rows.h"

namespace kvsieve {
namespace quant {
namespace {

// -- one line per stage -------------------------------------------------------------------------

const CodecEntry* const kCodecs[] = {&kF16Codec,  &kBF16Codec, &kFp8Codec,    &kInt8Codec,
                                     &kInt4Codec, &kInt3Codec, &kInt2Codec,   &kTurboCodec,
                                     &kQ8_0Codec, &kQ4_0Codec, &kChannelCodec};
const TransformEntry* const kTransforms[] = {&kCenterTransform, &kHadamardTransform,
                                             &kChannelScaleTransform};

// -----------------------------------------------------------------------------------------------

template <class Entry, std::size_t kCount>
const Entry* Find(const Entry* const (&entries)[kCount], std::string_view name) {
  for (const Entry* entry : entries) {
    if (entry->info.name == name) return entry;
  }
  return nullptr;
}

template <class Entry, std::size_t kCount>
std::vector<StageInfo> Infos(const Entry* const (&entries)[kCount]) {
  std::vector<StageInfo> infos;
  for (const Entry* entry : entries) infos.push_back(entry->info);
  return infos;
}

Status UnknownName(const SpecCall& call) {
  if (call.name.starts_with("turbo")) {
    return SpecError(call.column, StrCat("unknown codec '", call.name,
                                         "' (there are turbo1, turbo2, turbo3, turbo4, turbo5)"));
  }
  std::vector<std::string_view> known;
  for (const CodecEntry* entry : kCodecs) known.push_back(entry->info.name);
  for (const TransformEntry* entry : kTransforms) known.push_back(entry->info.name);
  return SpecError(call.column, StrCat("unknown codec or transform '", call.name, "'",
                                       Suggest(call.name, known)));
}

// A chain whose names and order are right.
struct ResolvedChain {
  std::vector<std::pair<const TransformEntry*, const SpecCall*>> transforms;
  const CodecEntry* codec = nullptr;
  const SpecCall* codec_call = nullptr;
};

Status AddTransform(const SpecCall& call, ResolvedChain& chain) {
  const TransformEntry* entry = Find(kTransforms, call.name);
  if (entry == nullptr && Find(kCodecs, call.name) != nullptr) {
    return SpecError(call.column, StrCat(call.name, " is a codec and must end the chain"));
  }
  if (entry == nullptr) return UnknownName(call);
  for (const auto& [earlier, earlier_call] : chain.transforms) {
    if (earlier == entry) {
      return SpecError(call.column, StrCat(call.name, " stands twice in one chain"));
    }
  }
  chain.transforms.emplace_back(entry, &call);
  return Status::Ok();
}

Result<ResolvedChain> Resolve(std::span<const SpecCall> calls) {
  if (calls.empty()) return Status::Invalid("a chain needs a codec");
  ResolvedChain chain;
  for (const SpecCall& call : calls.first(calls.size() - 1)) {
    KVS_RETURN_IF_ERROR(AddTransform(call, chain));
  }
  chain.codec_call = &calls.back();
  chain.codec = Find(kCodecs, chain.codec_call->name);
  if (chain.codec == nullptr && Find(kTransforms, chain.codec_call->name) != nullptr) {
    return SpecError(
        chain.codec_call->column,
        StrCat(chain.codec_call->name, " is a transform; a codec must follow it, as in ",
               chain.codec_call->name, "+int8"));
  }
  if (chain.codec == nullptr) return UnknownName(*chain.codec_call);
  for (const auto& [entry, call] : chain.transforms) {
    if (entry->rotates && chain.codec->make_rotation != nullptr) {
      return SpecError(call->column,
                       StrCat(chain.codec->info.name, " already rotates; leave out ", call->name));
    }
  }
  return chain;
}

}  // namespace

Status CheckNoOptions(const SpecCall& call) {
  ArgReader args(call);
  return args.Finish();
}

Result<std::string> OutlineName(const SpecCall& call) {
  KVS_RETURN_IF_ERROR(CheckNoOptions(call));
  return call.name;
}

}  // namespace quant

Result<std::shared_ptr<const Chain>> MakeChain(std::span<const SpecCall> chain, int dim,
                                               Side side) {
  return NoThrow([&]() -> Result<std::shared_ptr<const Chain>> {
    KVS_ASSIGN_OR_RETURN(const quant::ResolvedChain resolved, quant::Resolve(chain));
    if (dim < 1 || dim > kMaxDim) {
      return Status::Invalid(StrCat("dim ", dim, " is outside [1, ", kMaxDim, "]"));
    }
    std::vector<std::shared_ptr<const Transform>> transforms;
    for (const auto& [entry, call] : resolved.transforms) {
      KVS_ASSIGN_OR_RETURN(auto transform, entry->make(*call, dim));
      transforms.push_back(std::move(transform));
    }
    KVS_ASSIGN_OR_RETURN(auto codec, resolved.codec->make(*resolved.codec_call, dim, side));
    if (resolved.codec->make_rotation != nullptr) {
      KVS_ASSIGN_OR_RETURN(auto rotation, resolved.codec->make_rotation(*resolved.codec_call, dim));
      transforms.push_back(std::move(rotation));
    }
    return std::shared_ptr<const Chain>(
        std::make_shared<Chain>(std::move(transforms), std::move(codec)));
  });
}

Result<ChainOutline> OutlineChain(std::span<const SpecCall> chain) {
  return NoThrow([&]() -> Result<ChainOutline> {
    KVS_ASSIGN_OR_RETURN(const quant::ResolvedChain resolved, quant::Resolve(chain));
    ChainOutline outline;
    for (const auto& [entry, call] : resolved.transforms) {
      KVS_ASSIGN_OR_RETURN(const std::string text, entry->outline(*call));
      outline.canonical += text + '+';
      outline.wants_exact_sinks = outline.wants_exact_sinks || entry->wants_exact_sinks;
    }
    KVS_ASSIGN_OR_RETURN(const std::string text, resolved.codec->outline(*resolved.codec_call));
    outline.canonical += text;
    if (resolved.codec->group_rows != nullptr) {
      KVS_ASSIGN_OR_RETURN(outline.group_rows, resolved.codec->group_rows(*resolved.codec_call));
    }
    // The attention sink's key is unlike all others and would set the scales of its whole group.
    outline.wants_exact_sinks = outline.wants_exact_sinks || outline.group_rows > 1;
    return outline;
  });
}

std::span<const StageInfo> CodecInfos() {
  static const std::vector<StageInfo> infos = quant::Infos(quant::kCodecs);
  return infos;
}

std::span<const StageInfo> TransformInfos() {
  static const std::vector<StageInfo> infos = quant::Infos(quant::kTransforms);
  return infos;
}

}  // namespace kvsieve

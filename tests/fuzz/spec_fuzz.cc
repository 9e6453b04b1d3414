// Any bytes as a spec: no crash, and what parses has a canonical form that parses to itself.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "kvsieve/pipeline.h"

namespace {

void Require(bool condition) {
  if (!condition) std::abort();  // libFuzzer keeps the input
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto pipeline = kvsieve::Pipeline::Parse(text);
  if (!pipeline.ok()) {
    Require(pipeline.message().starts_with("column "));
    Require(pipeline.message().find('\n') == std::string::npos);
    return 0;
  }
  const auto again = kvsieve::Pipeline::Parse(pipeline->Canonical());
  Require(again.ok() && again->Canonical() == pipeline->Canonical());
  for (const int layer_count : {1, 30}) {
    if (!pipeline->CheckLayers(layer_count).ok()) continue;
    for (int layer = 0; layer < layer_count; ++layer) pipeline->StoreFor(layer, layer_count, 0);
  }
  (void)kvsieve::Explain(*pipeline, 64, 48);
  return 0;
}

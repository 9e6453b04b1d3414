// Any bytes as a trace: no crash, no memory that the bytes do not account for, one line of error,
// and a trace that opens can be attended over, unless its logits are beyond f32.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "kvsieve/eval/quality.h"
#include "kvsieve/eval/trace.h"

namespace {

void Require(bool condition) {
  if (!condition) std::abort();  // libFuzzer keeps the input
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvsieve::eval;
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  const auto require_line = [](const std::string& message) {
    Require(message.starts_with("fuzz: "));
    Require(message.find('\n') == std::string::npos);
  };
  const auto trace = Trace::FromBytes({bytes, bytes + size}, "fuzz");
  if (!trace.ok()) {
    require_line(trace.message());
    return 0;
  }
  kvsieve::SerialParallel serial;
  const auto exact = ExactAttention::Compute(*trace, serial);
  if (!exact.ok()) {
    Require(exact.error().code == kvsieve::ErrorCode::kNonFinite);
    require_line(exact.message());
    return 0;
  }
  Require(std::isfinite(exact->engine_rel_error().value_or(0)));
  for (int layer = 0; layer < std::ssize(trace->layers()); ++layer) {
    double sum = 0;
    for (const float p : exact->Probabilities(layer, 0, 0)) sum += static_cast<double>(p);
    // Rows rounded to f32: far less than 1e-3 for the few that a fuzzed file can hold.
    Require(sum == 0 || std::abs(sum - 1) < 1e-3);
  }
  return 0;
}

// Links the evaluation library: a file that does not exist is an error, not a crash.
#include <cstdio>

#include "kvsieve/eval/trace.h"

int main() {
  const auto trace = kvsieve::eval::Trace::Open("no-such-trace.safetensors");
  if (trace.ok()) return 1;
  std::printf("%s\n", trace.message().c_str());
  return 0;
}

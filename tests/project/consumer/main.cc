// What an engine does first: read the version, ask for the instruction sets, make a value.
#include <cstdio>

#include "kvsieve/keep_set.h"
#include "kvsieve/targets.h"
#include "kvsieve/version.h"

int main() {
  const auto keep = kvsieve::KeepSet::Create({0, 2}, {3, 7}, {});
  if (!keep.ok() || kvsieve::SupportedTargets().empty()) return 1;
  if (kvsieve::kVersion != EXPECTED_VERSION) return 2;
  std::printf("kvsieve %s keeps %d rows\n", EXPECTED_VERSION, static_cast<int>(keep->rows()));
  return 0;
}

// What `kvsieve fit --suggest` chooses from.
#ifndef KVSIEVE_TOOLS_SUGGESTIONS_H_
#define KVSIEVE_TOOLS_SUGGESTIONS_H_

#include <optional>
#include <string>
#include <vector>

namespace kvsieve::tools {

struct Suggestion {
  std::string spec;
  // Mean output error on the bundled trace (docs/cli.md, fit); none: not measured.
  std::optional<double> error;
};

// Plain storage, recommended pipelines and stores, and storage presets, the least error first and
// what was not measured last.
std::vector<Suggestion> Suggestions();

}  // namespace kvsieve::tools

#endif  // KVSIEVE_TOOLS_SUGGESTIONS_H_

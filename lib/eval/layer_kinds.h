// Which layers of a model attend to all rows, which to a window of them, and which hold no K and V:
// the many ways in which a config.json says so.
#ifndef KVSIEVE_LIB_EVAL_LAYER_KINDS_H_
#define KVSIEVE_LIB_EVAL_LAYER_KINDS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "lib/eval/config_keys.h"

namespace kvsieve::eval {

struct LayerKind {
  enum class Rows : std::uint8_t { kAll, kWindow, kNone };
  Rows rows = Rows::kAll;
  std::int64_t window = 0;  // kWindow
};

// One per layer. Throws ConfigError. Adds to `notes` what is taken as something else.
std::vector<LayerKind> LayerKinds(const ConfigKeys& keys, std::int64_t layers,
                                  std::vector<std::string>& notes);

}  // namespace kvsieve::eval

#endif  // KVSIEVE_LIB_EVAL_LAYER_KINDS_H_

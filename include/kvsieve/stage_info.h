// What a registry says of one of its stages.
#ifndef KVSIEVE_STAGE_INFO_H_
#define KVSIEVE_STAGE_INFO_H_

#include <string_view>

namespace kvsieve {

// How a codec turns a row into bytes, one phrase each, so that nobody has to guess a default.
struct StorageRules {
  std::string_view format = {};       // "8-bit codes in [-127, 127]"
  std::string_view granularity = {};  // "one scale per row"
  std::string_view group_axis = {};   // "along the row, over its dimensions"
  std::string_view scale_rule = {};   // "largest magnitude / 127, stored as bf16 rounded up"
  std::string_view rounding = {};     // "half to even, against the stored scale"
};

struct StageInfo {
  std::string_view name;
  std::string_view summary;            // one sentence, for `kvsieve list`
  std::string_view formula;            // with its source, for `kvsieve explain`
  std::string_view options;            // keys, default first: "window=32 queries=mean|sum|max"
  std::string_view approximates = {};  // what is not exact about it; empty: nothing
  StorageRules storage = {};           // codecs only
};

}  // namespace kvsieve

#endif  // KVSIEVE_STAGE_INFO_H_

// What a registry says of one of its stages.
#ifndef KVSIEVE_STAGE_INFO_H_
#define KVSIEVE_STAGE_INFO_H_

#include <string_view>

namespace kvsieve {

struct StageInfo {
  std::string_view name;
  std::string_view summary;  // one sentence, for `kvsieve list`
  std::string_view formula;  // with its source, for `kvsieve explain`
  std::string_view options;  // keys, default first: "window=32 queries=mean|sum|max"
};

}  // namespace kvsieve

#endif  // KVSIEVE_STAGE_INFO_H_

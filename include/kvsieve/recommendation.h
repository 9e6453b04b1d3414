// Which pipeline to take when: from measurements on real models, docs/choosing.md, docs/storage.md.
#ifndef KVSIEVE_RECOMMENDATION_H_
#define KVSIEVE_RECOMMENDATION_H_

#include <span>
#include <string_view>

namespace kvsieve {

struct Recommendation {
  std::string_view when;  // what the prompt is, or becomes
  std::string_view spec;  // parses to a pipeline
  std::string_view why;   // one sentence
};

// A store for all rows, one codec a side.
struct StorageRecommendation {
  double bits;            // of one value, K and V together, scales included, at dim 128
  std::string_view spec;  // parses to a pipeline that evicts nothing
  std::string_view why;   // one sentence
};

// The views live forever.
std::span<const Recommendation> Recommendations();
std::span<const StorageRecommendation> StorageRecommendations();  // the largest first

}  // namespace kvsieve

#endif  // KVSIEVE_RECOMMENDATION_H_

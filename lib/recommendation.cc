#include "kvsieve/recommendation.h"

namespace kvsieve {
namespace {

// The figures behind each line are in docs/choosing.md.
constexpr Recommendation kRecommendations[] = {
    {"the prompt will be copied from, quoted, edited, or asked about later",
     "none | k=center+turbo4, v=turbo4 | exact_sinks=4",
     "4 bits cost less than dropping half of the rows does, and a dropped row cannot be copied"},
    {"it ends with what it is asked: a chat's last turn, a question about a document",
     "snapkv(budget=50%,pool=max:15) | k=center+turbo4, v=turbo4 | exact_sinks=4",
     "the window keeps what is asked in it, and a pool as wide as a fact keeps whole facts"},
    {"it is a short text that only goes on, in a quarter of the rows",
     "output_perturbation(budget=25%,pool=none)",
     "without a question single rows count, weighed by their values"},
    {"rows must go before anyone knows the question",
     "key_diff(budget=50%) | k=center+turbo4, v=turbo4 | exact_sinks=4",
     "what the last queries look at says nothing of a question still to come"},
};

}  // namespace

std::span<const Recommendation> Recommendations() { return kRecommendations; }

}  // namespace kvsieve

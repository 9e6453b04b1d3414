#include "kvsieve/recommendation.h"

namespace kvsieve {
namespace {

// The figures behind each line are in docs/choosing.md and docs/tiers.md, of the stores in
// docs/storage.md.
constexpr Recommendation kRecommendations[] = {
    {"a size is given: from 2.5 to 32 times smaller than f16", "best(8x)",
     "every row is stored as well as it is needed, and copies and late questions were taken into "
     "account (docs/tiers.md)"},
    {"the prompt will be copied from, quoted, edited, or asked about later, and no row may go",
     "none | k=center+turbo5, v=turbo3 | exact_sinks=4",
     "4 bits a value cost less than dropping half of the rows does, and a dropped row cannot be "
     "copied"},
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

constexpr StorageRecommendation kStorageRecommendations[] = {
    {8.125, "none | k=center+hadamard+int8, v=hadamard+int8 | exact_sinks=4",
     "a rotated row has no outlier that sets the scale of all"},
    {4.625, "none | k=center+turbo5, v=turbo4 | exact_sinks=4",
     "centring shortens keys, all but the attention sink's, which stays exact"},
    {4.125, "none | k=center+turbo5, v=turbo3 | exact_sinks=4",
     "keys decide which rows are read: about half the loss of 4 bits for both in copying"},
    {3.625, "none | k=center+turbo4, v=turbo3 | exact_sinks=4",
     "half the loss of 5-bit keys with 2-bit values on one model, about as much on the other"},
    {3.125, "none | k=center+turbo4, v=turbo2 | exact_sinks=4",
     "as good as 3 bits for both on one model, less than half the loss on the other"},
    {2.625, "none | k=center+turbo3, v=turbo2 | exact_sinks=4",
     "a third of the loss of 2-bit keys with 3-bit values"},
    {2.125, "none | k=center+turbo3, v=turbo1 | exact_sinks=4",
     "in copying 1-bit values lose less than 2-bit keys; half of the rows at 4 bits read better "
     "still"},
};

}  // namespace

std::span<const Recommendation> Recommendations() { return kRecommendations; }
std::span<const StorageRecommendation> StorageRecommendations() { return kStorageRecommendations; }

}  // namespace kvsieve

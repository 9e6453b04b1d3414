#include "lib/spec_layer_ranges.h"

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "kvsieve/str_cat.h"

namespace kvsieve {
namespace {

constexpr std::int64_t kMaxLayer = 65535;

// True when the ranges share a layer in every model that has both. Other ranges that count from
// different ends are left to Pipeline::CheckLayers, which knows the model. No two ranges begin with
// the same number then, so that their order in a canonical spec is one.
bool SurelyOverlap(const LayerRange& a, const LayerRange& b) {
  if (a.first == b.first || a.last == b.last) return true;
  const bool from_end = a.first < 0;
  for (const int bound : {a.last, b.first, b.last}) {
    if ((bound < 0) != from_end) return false;
  }
  return std::max(a.first, b.first) <= std::min(a.last, b.last);
}

Result<int> TakeLayerNumber(SpecCursor& cursor) {
  const int column = cursor.column();
  const std::string_view text = cursor.TakeInteger();
  if (text.empty()) return cursor.Unexpected("a layer number");
  const Result<std::int64_t> number = ParseInt(text);
  if (!number.ok() || *number < -kMaxLayer || *number > kMaxLayer) {
    return SpecError(
        column, StrCat("layer number ", text, " is outside [-", kMaxLayer, ", ", kMaxLayer, "]"));
  }
  return static_cast<int>(*number);
}

}  // namespace

Result<LayerRange> TakeLayerRange(SpecCursor& cursor, std::vector<LayerRange>& taken) {
  const int column = cursor.column();
  LayerRange range;
  KVS_ASSIGN_OR_RETURN(range.first, TakeLayerNumber(cursor));
  if (!cursor.Accept("..")) {
    return cursor.Unexpected(
        StrCat("'..' in a layer range, for example ", range.first, "..", range.first));
  }
  KVS_ASSIGN_OR_RETURN(range.last, TakeLayerNumber(cursor));
  if ((range.first < 0) == (range.last < 0) && range.first > range.last) {
    return SpecError(column,
                     StrCat("layer range ", range.first, "..", range.last, " runs backwards"));
  }
  for (const LayerRange& other : taken) {
    if (!SurelyOverlap(range, other)) continue;
    return SpecError(column, StrCat("layer range ", range.first, "..", range.last, " overlaps ",
                                    other.first, "..", other.last));
  }
  taken.push_back(range);
  return range;
}

}  // namespace kvsieve

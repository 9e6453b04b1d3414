#include "kvsieve/types.h"

#include <cmath>

#include "kvsieve/str_cat.h"

namespace kvsieve {

std::string_view ElementName(ElementType type) {
  switch (type) {
    case ElementType::kF32:
      return "f32";
    case ElementType::kF16:
      return "f16";
    case ElementType::kBF16:
      return "bf16";
  }
  return "?";
}

Status LayerSpec::Validate() const {
  constexpr int kMaxHeads = 4096;
  const auto bad = [this](const auto&... what) {
    return Status::Invalid(StrCat("layer ", layer, ": ", what...));
  };
  if (query_heads < 1 || query_heads > kMaxHeads || kv_heads < 1 || kv_heads > kMaxHeads) {
    return bad("head counts must be in [1, ", kMaxHeads, "], got ", query_heads,
               " query heads and ", kv_heads, " KV heads");
  }
  if (query_heads % kv_heads != 0) {
    return bad(query_heads, " query heads are not a multiple of ", kv_heads, " KV heads");
  }
  if (key_dim < 1 || key_dim > kMaxDim || value_dim < 1 || value_dim > kMaxDim) {
    return bad("dims must be in [1, ", kMaxDim, "], got key_dim ", key_dim, " and value_dim ",
               value_dim);
  }
  if (!std::isfinite(scale) || scale <= 0) {
    return bad("scale must be finite and greater than 0, got ", scale);
  }
  if (!std::isfinite(softcap) || softcap < 0) {
    return bad("softcap must be finite and at least 0 (0 = none), got ", softcap);
  }
  if (sliding_window < 0) {
    return bad("sliding_window must be at least 0 (0 = all rows), got ", sliding_window);
  }
  if (value_is_key_prefix && value_dim > key_dim) {
    return bad("value_dim ", value_dim, " is larger than the key_dim ", key_dim,
               " it is a prefix of (value_is_key_prefix)");
  }
  return Status::Ok();
}

}  // namespace kvsieve

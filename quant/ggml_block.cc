#include "quant/ggml_block.h"

#include <cmath>

#include "kvsieve/float16.h"
#include "kvsieve/str_cat.h"
#include "quant/row_math.h"

namespace kvsieve::quant {

float GgmlInverse(float scale) {
  if (scale == 0.0F) return 0.0F;
  const float inverse = 1.0F / scale;
  return std::isfinite(inverse) ? inverse : 0.0F;
}

Status CheckGgmlDim(const SpecCall& call, int dim, std::string_view other_codec) {
  if (dim % kGgmlBlock == 0) return Status::Ok();
  return SpecError(call.column,
                   StrCat(call.name, " stores blocks of ", kGgmlBlock, " elements, which dim ", dim,
                          " is no multiple of; use ", other_codec, " there"));
}

Status CheckGgmlRow(const float* row, int dim, std::int64_t row_index, std::string_view codec,
                    float divisor) {
  KVS_RETURN_IF_ERROR(CheckFinite(row, dim, row_index, codec));
  const auto fits = [divisor](float x) {
    return std::isfinite(ToFloat(ToF16(std::fabs(x) / divisor)));
  };
  if (fits(AbsMax(row, dim))) return Status::Ok();
  int j = 0;
  while (fits(row[j])) ++j;
  return Status::Invalid(StrCat("row ", row_index, ", element ", j, " is ", row[j], "; ", codec,
                                " holds at most ", kF16Max * divisor,
                                ", its scales are f16 (int8 and turbo hold more)"));
}

Status CheckGgmlRows(const float* rows, int count, int dim, std::int64_t first,
                     std::string_view codec, float divisor) {
  if (AbsMax(rows, count * dim) <= kF16Max * divisor) return Status::Ok();
  for (int r = 0; r < count; ++r) {
    KVS_RETURN_IF_ERROR(
        CheckGgmlRow(rows + std::ptrdiff_t{r} * dim, dim, first + r, codec, divisor));
  }
  return Status::Ok();
}

}  // namespace kvsieve::quant

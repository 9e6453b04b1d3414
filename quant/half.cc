// f16 and bf16: rows as they are, in two bytes an element, nearest even. No scales. f16 refuses
// values beyond its largest number; bf16 those that a rotation back could take past f32.
#include <cmath>

#include "kvsieve/float16.h"
#include "kvsieve/str_cat.h"
#include "quant/block_codec.h"
#include "quant/code_rows.h"
#include "quant/half_rows.h"
#include "quant/registry.h"
#include "quant/row_math.h"

namespace kvsieve::quant {
namespace {

struct F16Format {
  static constexpr std::string_view kName = "f16";
  static constexpr HalfType kType = HalfType::kF16;
  static constexpr float kMax = kF16Max;
  static constexpr std::string_view kWider = " (bf16, int8 and turbo hold more)";
  static void ToRow(const std::uint16_t* codes, int dim, float* row) { F16ToRow(codes, dim, row); }
};

struct BF16Format {
  static constexpr std::string_view kName = "bf16";
  static constexpr HalfType kType = HalfType::kBF16;
  static constexpr float kMax = kMaxScaled;
  static constexpr std::string_view kWider = "";
  static void ToRow(const std::uint16_t* codes, int dim, float* row) {
    for (int j = 0; j < dim; ++j) row[j] = ToFloat(BF16{codes[j]});
  }
};

template <class Format>
class HalfCodec final : public BlockCodec {
 public:
  HalfCodec(int dim, Side side) : BlockCodec({CodeLayout::kHalf, side, dim, 16, 0, false}) {}

  std::string Canonical() const override { return std::string(Format::kName); }
  KernelPath path() const override { return KernelPath::kFused; }

  Status Learn(const RowSource& rows, float*) const override {
    return ForRowsBeyond(Format::kMax, rows,
                         [&](RowIndex r, const float* row) { return CheckRange(row, r); });
  }

  Status Encode(const float*, const float* rows, int count, BlockRef block,
                int first_row) const override {
    Status status;
    ForEachTile<kPanelRows>(first_row, count, [&](int first, int tile_rows) {
      if (!status.ok()) return;
      const float* tile = rows + std::ptrdiff_t{first} * dim();
      PrefetchRows(tile + std::ptrdiff_t{tile_rows} * dim(), kPanelRows * dim());
      status = CheckRows(tile, tile_rows, first);
      if (!status.ok()) return WipeRows(block, first_row, first);
      StoreHalfRows(Format::kType, layout(), tile, tile_rows, block, first_row + first);
    });
    return status;
  }

  void Decode(const float*, ConstBlockRef block, int first_row, int count,
              float* rows) const override {
    std::uint16_t codes[kMaxDim];
    for (int r = 0; r < count; ++r, rows += dim()) {
      LoadHalves(layout(), block, first_row + r, codes);
      Format::ToRow(codes, dim(), rows);
    }
  }

  std::size_t QueryBytes() const override { return HalfQueryBytes(dim()); }
  void PrepareQueries(const float* q, int heads, void* prepared) const override {
    PrepareHalfQueries(q, heads, dim(), prepared);
  }
  void Score(const float*, const void* prepared, int heads, ConstBlockRef block, int rows,
             float* logits, Prefetch ahead) const override {
    ScoreHalf(View(block, rows, ahead), prepared, heads, logits);
  }
  void Accumulate(const float*, const float* weights, int heads, ConstBlockRef block, int rows,
                  float* acc, Prefetch ahead) const override {
    AccumulateHalf(View(block, rows, ahead), weights, heads, acc);
  }

 private:
  Status CheckRows(const float* rows, int count, int first) const {
    if (AbsMax(rows, count * dim()) <= Format::kMax) return Status::Ok();
    for (int r = 0; r < count; ++r) {
      KVS_RETURN_IF_ERROR(CheckRange(rows + std::ptrdiff_t{r} * dim(), first + r));
    }
    return Status::Ok();
  }
  Status CheckRange(const float* row, std::int64_t row_index) const {
    KVS_RETURN_IF_ERROR(CheckFinite(row, dim(), row_index, Format::kName));
    if (AbsMax(row, dim()) <= Format::kMax) return Status::Ok();
    int j = 0;
    while (std::fabs(row[j]) <= Format::kMax) ++j;
    return Status::Invalid(StrCat("row ", row_index, ", element ", j, " is ", row[j], "; ",
                                  Format::kName, " holds at most ", Format::kMax, Format::kWider));
  }
  KernelBlock View(ConstBlockRef block, int rows, Prefetch ahead) const {
    KernelBlock view = MakeKernelBlock(block, rows, ahead);
    view.half_type = Format::kType;
    return view;
  }
};

template <class Format>
Result<std::shared_ptr<const Codec>> Make(const SpecCall& call, int dim, Side side) {
  KVS_RETURN_IF_ERROR(CheckNoOptions(call));
  return std::shared_ptr<const Codec>(std::make_shared<HalfCodec<Format>>(dim, side));
}

}  // namespace

extern const CodecEntry kF16Codec = {{"f16",
                                      "IEEE half precision, the baseline.",
                                      "nearest even; values beyond 65504 are an error",
                                      "",
                                      "elements keep 11 significant bits",
                                      {"IEEE binary16 elements", "none: every element stands alone",
                                       "none", "no scale", "half to even"}},
                                     OutlineName,
                                     Make<F16Format>,
                                     /*make_rotation=*/nullptr};

extern const CodecEntry kBF16Codec = {
    {"bf16",
     "bfloat16: the exponents of f32, 8 significant bits.",
     "nearest even",
     "",
     "elements keep 8 significant bits",
     {"bfloat16 elements", "none: every element stands alone", "none", "no scale", "half to even"}},
    OutlineName,
    Make<BF16Format>,
    /*make_rotation=*/nullptr};

}  // namespace kvsieve::quant

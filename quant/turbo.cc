// turbo: the MSE coder of TurboQuant (arXiv 2504.19874) on rows that MakeChain has rotated.
//
//   code  = cell of x_j / |x| in the Lloyd-Max codebook c of the unit-sphere coordinate law
//   scale = |x| / |c(codes)|: the decoded row has the row's own length ("matched" norm)
//   x'_j  = scale * c[code_j]
//
// The scale is f16, nearest even; bf16 for a head in which some scale would pass 65504, decided by
// Learn. A row whose scale rounds to zero has all codes 0 and decodes to zeros.
#include <cmath>

#include "kvsieve/float16.h"
#include "kvsieve/str_cat.h"
#include "quant/block_codec.h"
#include "quant/code_rows.h"
#include "quant/hadamard.h"
#include "quant/lloyd_max.h"
#include "quant/registry.h"
#include "quant/row_math.h"
#include "quant/turbo_codes.h"

namespace kvsieve::quant {
namespace {

constexpr int kDefaultBits = 4;
constexpr int kSmallestBlock = 16;  // smaller Hadamard blocks do not look like the sphere's law
// Codebooks keep |c| above 1/2, so a scale passes 65504 only where the norm passes this.
constexpr double kNormToCheck = kF16Max / 2;

struct TurboOptions {
  int bits = kDefaultBits;
  std::uint64_t seed = 0;

  std::string Canonical() const {
    return StrCat("turbo(bits=", bits, ",seed=", seed, ",norm=matched)");
  }
};

Result<TurboOptions> Parse(const SpecCall& call) {
  constexpr std::string_view kNorms[] = {"matched"};
  ArgReader args(call);
  TurboOptions options;
  int norm = 0;
  args.Int("bits", &options.bits, 1, kMaxTurboBits);
  args.UInt64("seed", &options.seed);
  args.Choice("norm", kNorms, &norm);
  KVS_RETURN_IF_ERROR(args.Finish());
  return options;
}

BlockLayout LayoutOf(int bits, int dim, Side side) {
  const CodeLayout codes = bits == 4 ? CodeLayout::kNibble : CodeLayout::kBitPlanes;
  return {codes, side, dim, bits, 1, false};
}

// Share of the coordinates that lie in cell `code`, in the normal limit of their law: how much
// each level matters.
double CellWeight(const LloydMaxCodebook& book, int dim, int code) {
  constexpr double kRootHalf = 0.70710678118654752;
  const auto below = [&](int t) {
    if (t < 0) return 0.0;
    if (t >= book.levels - 1) return 1.0;
    return 0.5 * std::erfc(-kRootHalf * book.thresholds[t] * std::sqrt(static_cast<double>(dim)));
  };
  return below(code) - below(code - 1);
}

// The centroids on a grid of 8 bits whose outermost level is `top`, with the scale that keeps
// <centroid, level> = <centroid, centroid>: rounding must not stretch logits, for that would shift
// weight between these rows and exact ones. *error: the weighted squared rounding error.
Codebook RoundLevels(const LloydMaxCodebook& book, int dim, int top, double* error) {
  Codebook levels{};
  const double step = static_cast<double>(book.centroids[book.levels - 1]) / top;
  double square = 0;
  double product = 0;
  for (int i = 0; i < book.levels; ++i) {
    const double centroid = book.centroids[i];
    levels.level[i] = static_cast<std::int8_t>(std::lrint(centroid / step));
    square += CellWeight(book, dim, i) * centroid * centroid;
    product += CellWeight(book, dim, i) * centroid * levels.level[i];
  }
  levels.level_scale = static_cast<float>(square / product);
  *error = 0;
  for (int i = 0; i < book.levels; ++i) {
    const double off = book.centroids[i] - double{levels.level_scale} * levels.level[i];
    *error += CellWeight(book, dim, i) * off * off;
  }
  return levels;
}

// The best of the fine grids, for the fused kernels. Decoding uses the exact centroids.
Codebook ToLevels(const LloydMaxCodebook& book, int dim) {
  constexpr int kCoarsestTop = 96;
  constexpr int kFinestTop = 127;
  double least = 0;
  Codebook best = RoundLevels(book, dim, kFinestTop, &least);
  for (int top = kCoarsestTop; top < kFinestTop; ++top) {
    double error = 0;
    const Codebook levels = RoundLevels(book, dim, top, &error);
    if (error >= least) continue;
    least = error;
    best = levels;
  }
  return best;
}

class TurboCodec final : public BlockCodec {
 public:
  TurboCodec(int dim, Side side, const TurboOptions& options)
      : BlockCodec(LayoutOf(options.bits, dim, side)),
        options_(options),
        book_(SolveLloydMax(options.bits, dim)),
        levels_(ToLevels(book_, dim)) {}

  std::string Canonical() const override { return options_.Canonical(); }
  KernelPath path() const override { return KernelPath::kFused; }
  int stats_floats() const override { return 1; }  // 1 when scales are bf16, 0 when f16

  Status Learn(const RowSource& rows, float* stats) const override {
    stats[0] = 0.0F;
    if (!MayBeLong(rows.LargestMagnitude())) return Status::Ok();
    bool wide = false;
    Status status = ForEachRow(rows, [&](RowIndex r, const float* row) {
      KVS_RETURN_IF_ERROR(CheckScaled(row, dim(), r, "turbo"));
      const double scale = LargeScale(row);
      wide = wide || scale > kF16Max;
      return Status::Ok();  // bf16 holds any: kMaxScaled is far below its end
    });
    if (!status.ok()) return status;
    stats[0] = wide ? 1.0F : 0.0F;
    return Status::Ok();
  }

  Status Encode(const float* stats, const float* rows, int count, BlockRef block,
                int first_row) const override {
    return EncodeTiles(rows, count, block, first_row,
                       [&](int first, const float* tile, int tile_rows, const TilePlanes& to) {
                         KVS_RETURN_IF_ERROR(CheckTile(stats, tile, tile_rows, first));
                         double scales[kTileRows];
                         EncodeTurbo(tile, tile_rows, dim(), book_, *to.codes, scales);
                         for (int r = 0; r < tile_rows; ++r) {
                           const auto scale = static_cast<float>(scales[r]);
                           to.scales[r] =
                               wide_scales(stats) ? ToBF16(scale).bits : ToF16(scale).bits;
                           std::uint8_t* codes = to.codes->row(r);
                           if (to.scales[r] == 0) std::fill(codes, codes + dim(), std::uint8_t{0});
                         }
                         return Status::Ok();
                       });
  }

  void Decode(const float* stats, ConstBlockRef block, int first_row, int count,
              float* rows) const override {
    CodeRow codes;
    for (int r = 0; r < count; ++r, rows += dim()) {
      LoadCodes(layout(), block, first_row + r, codes);
      const float scale = ScaleOf(stats, ScalePlane(layout(), block)[first_row + r]);
      for (int j = 0; j < dim(); ++j) rows[j] = scale * book_.centroids[codes.codes[j]];
    }
  }

  std::size_t QueryBytes() const override { return IntQueryBytes(dim(), dim()); }
  void PrepareQueries(const float* q, int heads, void* prepared) const override {
    const auto prepare = layout().bits == 5 ? PrepareFineCodebookQueries : PrepareCodebookQueries;
    prepare(q, heads, dim(), dim(), prepared);
  }
  void Score(const float* stats, const void* prepared, int heads, ConstBlockRef block, int rows,
             float* logits, Prefetch ahead) const override {
    const auto score = nibbles() ? ScoreNibble : ScorePlanes;
    score(View(stats, block, rows, ahead), prepared, heads, logits);
  }
  void Accumulate(const float* stats, const float* weights, int heads, ConstBlockRef block,
                  int rows, float* acc, Prefetch ahead) const override {
    const auto accumulate = nibbles() ? AccumulateNibble : AccumulatePlanes;
    accumulate(View(stats, block, rows, ahead), weights, heads, acc);
  }

 private:
  static bool wide_scales(const float* stats) { return stats[0] != 0.0F; }
  static float ScaleOf(const float* stats, std::uint16_t bits) {
    return wide_scales(stats) ? ToFloat(BF16{bits}) : ToFloat(F16{bits});
  }
  bool nibbles() const { return layout().codes == CodeLayout::kNibble; }

  static Status TooLong(std::int64_t row_index, double scale) {
    return Status::Invalid(StrCat("row ", row_index, " needs the norm scale ",
                                  static_cast<float>(scale), "; turbo stores at most ", kF16Max,
                                  " for this head"));
  }

  KernelBlock View(const float* stats, ConstBlockRef block, int rows, Prefetch ahead) const {
    KernelBlock view = MakeKernelBlock(block, rows, ahead);
    view.half_type = wide_scales(stats) ? HalfType::kBF16 : HalfType::kF16;
    view.codebook = &levels_;
    return view;
  }

  Status CheckTile(const float* stats, const float* rows, int count, int first) const {
    const float largest = AbsMax(rows, count * dim());
    KVS_RETURN_IF_ERROR(CheckScaledRows(largest, rows, count, dim(), first, "turbo"));
    if (wide_scales(stats) || !MayBeLong(largest)) return Status::Ok();
    for (int r = 0; r < count; ++r) {
      const double scale = LargeScale(rows + std::ptrdiff_t{r} * dim());
      if (scale > kF16Max) return TooLong(first + r, scale);
    }
    return Status::Ok();
  }

  // Whether the scale of a row with elements up to `largest` may pass what f16 holds.
  bool MayBeLong(float largest) const {
    return largest * std::sqrt(static_cast<double>(dim())) > kNormToCheck;
  }

  // The row's scale where it may pass what f16 holds, else 0: most rows need no second coding.
  double LargeScale(const float* row) const {
    if (!MayBeLong(AbsMax(row, dim()))) return 0.0;
    CodeTile codes(dim());
    double scale;
    EncodeTurbo(row, 1, dim(), book_, codes, &scale);
    return scale;
  }

  TurboOptions options_;
  LloydMaxCodebook book_;
  Codebook levels_;
};

Result<std::string> Outline(const SpecCall& call) {
  KVS_ASSIGN_OR_RETURN(const TurboOptions options, Parse(call));
  return options.Canonical();
}

Result<std::shared_ptr<const Codec>> Make(const SpecCall& call, int dim, Side side) {
  KVS_ASSIGN_OR_RETURN(const TurboOptions options, Parse(call));
  if (HadamardBlock(dim) < kSmallestBlock) {
    return SpecError(call.column, StrCat("turbo needs Hadamard blocks of at least ", kSmallestBlock,
                                         ", but the largest power of two that divides dim ", dim,
                                         " is ", HadamardBlock(dim), "; use int8 or int4 there"));
  }
  return std::shared_ptr<const Codec>(std::make_shared<TurboCodec>(dim, side, options));
}

Result<std::shared_ptr<const Transform>> MakeRotation(const SpecCall& call, int dim) {
  KVS_ASSIGN_OR_RETURN(const TurboOptions options, Parse(call));
  return MakeHadamard(dim, options.seed, /*canonical=*/"");
}

}  // namespace

extern const CodecEntry kTurboCodec = {
    {"turbo",
     "Random rotation, then the Lloyd-Max codebook of the sphere (TurboQuant, MSE form).",
     "code = Lloyd-Max cell of (H D x)_j / |x|, density ~ (1 - x^2)^((d-3)/2); scale = |x| / |c|, "
     "f16 nearest even; x' = D H (scale * c[code]) (arXiv 2504.19874)",
     "bits=4|1|2|3|5 seed=0 norm=matched",
     "directions snap to the codebook; the length of the row is kept up to the rounding of its "
     "scale",
     {"`bits`-bit codes into a Lloyd-Max codebook", "one scale per row", "along the rotated row",
      "row norm / norm of its codes' levels, stored as f16 (bf16 where f16 overflows)",
      "code: the nearest level; scale: half to even"}},
    Outline,
    Make,
    MakeRotation};

}  // namespace kvsieve::quant

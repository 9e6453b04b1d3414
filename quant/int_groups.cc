// int4, int3, int2: groups of dims with a scale (and a zero point) each.
//
//   asym  n     = 2^bits - 1
//         zero  = f16 rounded toward -inf of min(x), saturating at +-65504
//         scale = bf16 rounded up of (max(x) - zero) / n
//         code  = round-half-even((x - zero) / scale) in 0..n;  x' = zero + code * scale
//   sym   n     = 2^(bits-1) - 1
//         scale = bf16 rounded up of max|x| / n
//         code  = round-half-even(x / scale) in -n..n, stored plus n + 1;  x' = code * scale
//
// Both against the stored values, so |x - x'| <= scale / 2 (asym: where the zero point did not
// saturate).
#include <algorithm>

#include "kvsieve/float16.h"
#include "kvsieve/str_cat.h"
#include "quant/block_codec.h"
#include "quant/code_rows.h"
#include "quant/portable.h"
#include "quant/registry.h"
#include "quant/row_math.h"

namespace kvsieve::quant {
namespace {

constexpr int kOctet = 8;  // keys pack 8 dims into 4 bytes, so a group is whole octets
constexpr int kLargestDefaultGroup = 32;

// As written; the default group depends on dim.
struct GroupOptions {
  enum class Group { kDefault, kRow, kDims };
  Group group = Group::kDefault;
  int group_dims = 0;  // kDims
  int group_column = 1;
  int bits = 4;
  bool symmetric = false;

  // "int4(group=32,asym)"; a default group is left out.
  std::string Canonical() const {
    std::string text = StrCat("int", bits, "(");
    if (group == Group::kRow) text += "group=row,";
    if (group == Group::kDims) text += StrCat("group=", group_dims, ",");
    return text + (symmetric ? "sym)" : "asym)");
  }
};

// Largest divisor of dim that is whole octets and at most `limit`; 0 when there is none.
int LargestGroup(int dim, int limit) {
  for (int group = limit / kOctet * kOctet; group > 0; group -= kOctet) {
    if (dim % group == 0) return group;
  }
  return 0;
}

Result<GroupOptions> Parse(const SpecCall& call) {
  ArgReader args(call);
  GroupOptions options;
  options.bits = call.name.back() - '0';
  if (const SpecArg* group = args.Raw("group"); group != nullptr) {
    options.group_column = group->value_column;
    const Result<std::int64_t> dims = ParseInt(group->value);
    if (group->value == "row" && group->call.empty()) {
      options.group = GroupOptions::Group::kRow;
    } else if (!dims.ok() || !group->call.empty() || *dims < kOctet || *dims > kMaxDim) {
      args.Fail(group->value_column,
                StrCat("option group: '", group->value, "' is neither row nor a multiple of ",
                       kOctet, " from ", kOctet, " to ", kMaxDim));
    } else {
      options.group = GroupOptions::Group::kDims;
      options.group_dims = static_cast<int>(*dims);
    }
  }
  options.symmetric = args.Word("sym");
  if (args.Word("asym") && options.symmetric) {
    args.Fail(call.column, StrCat(call.name, " is either sym or asym, not both"));
  }
  KVS_RETURN_IF_ERROR(args.Finish());
  return options;
}

// The group for rows of `dim`, or an error that suggests one. `options` is completed.
Result<int> ResolveGroup(GroupOptions& options, int dim) {
  using Group = GroupOptions::Group;
  if (options.group == Group::kDefault) {
    options.group_dims = LargestGroup(dim, kLargestDefaultGroup);
    options.group = options.group_dims > 0 ? Group::kDims : Group::kRow;
  }
  if (options.group == Group::kRow) return dim;
  const int group = options.group_dims;
  if (group == dim) return dim;
  if (dim % group == 0 && group % kOctet == 0) return group;
  const int divisor = LargestGroup(dim, std::min(group, dim));
  const std::string use = divisor > 0 ? StrCat("use group=", divisor) : "use group=row";
  const std::string_view why =
      dim % group != 0 ? " does not divide dim " : " is not a multiple of 8, dim ";
  return SpecError(options.group_column,
                   StrCat("int", options.bits, " group ", group, why, dim, "; ", use));
}

CodeLayout LayoutOf(int bits) { return bits == 4 ? CodeLayout::kNibble : CodeLayout::kBitPlanes; }

class GroupCodec final : public BlockCodec {
 public:
  GroupCodec(int dim, Side side, int group, const GroupOptions& options)
      : BlockCodec(
            {LayoutOf(options.bits), side, dim, options.bits, dim / group, !options.symmetric}),
        group_(group),
        symmetric_(options.symmetric),
        limit_((1 << (symmetric_ ? options.bits - 1 : options.bits)) - 1),
        sym_bias_(1 << (options.bits - 1)),
        name_(StrCat("int", options.bits)),
        canonical_(options.Canonical()) {
    const int bias = symmetric_ ? sym_bias_ : 0;
    for (int code = 0; code < 16; ++code) {
      levels_.level[code] = static_cast<std::int8_t>(code - bias);
    }
  }

  std::string Canonical() const override { return canonical_; }
  KernelPath path() const override { return fused() ? KernelPath::kFused : KernelPath::kPortable; }

  Status Learn(const RowSource& rows, float*) const override {
    return ForRowsBeyond(kMaxScaled, rows, [&](RowIndex r, const float* row) {
      return CheckScaled(row, dim(), r, name_);
    });
  }

  Status Encode(const float*, const float* rows, int count, BlockRef block,
                int first_row) const override {
    return EncodeTiles(rows, count, block, first_row,
                       [&](int first, const float* tile, int tile_rows, const TilePlanes& to) {
                         const GroupedRows grouped{tile, tile_rows, dim(), group_};
                         const float largest = symmetric_
                                                   ? EncodeSym(grouped, {limit_, sym_bias_}, to)
                                                   : EncodeAsym(grouped, limit_, to);
                         return CheckScaledRows(largest, tile, tile_rows, dim(), first, name_);
                       });
  }

  void Decode(const float*, ConstBlockRef block, int first_row, int count,
              float* rows) const override {
    CodeRow codes;
    for (int r = 0; r < count; ++r, rows += dim()) {
      LoadCodes(layout(), block, first_row + r, codes);
      for (int g = 0; g < layout().groups; ++g) {
        const int at = g * block.capacity_rows + first_row + r;
        const float scale = ToFloat(BF16{ScalePlane(layout(), block)[at]});
        const float zero = symmetric_ ? 0.0F : ToFloat(F16{ZeroPlane(layout(), block)[at]});
        const int bias = symmetric_ ? sym_bias_ : 0;
        for (int j = g * group_; j < (g + 1) * group_; ++j) {
          rows[j] = static_cast<float>(codes.codes[j] - bias) * scale + zero;
        }
      }
    }
  }

  std::int64_t CountSaturated(const float* rows, int count) const override {
    if (symmetric_) return 0;
    const float* end = rows + std::ptrdiff_t{count} * dim();
    return std::count_if(rows, end, [](float x) { return x < -kF16Max; });
  }

  std::size_t QueryBytes() const override {
    return fused() ? IntQueryBytes(dim(), group_) : PortableQueryBytes(dim());
  }
  void PrepareQueries(const float* q, int heads, void* prepared) const override {
    if (fused()) return PrepareNibbleQueries(q, heads, dim(), group_, prepared);
    PreparePortableQueries(q, heads, dim(), prepared);
  }
  void Score(const float* stats, const void* prepared, int heads, ConstBlockRef block, int rows,
             float* logits, Prefetch ahead) const override {
    if (nibbles()) return ScoreNibble(View(block, rows, ahead), prepared, heads, logits);
    if (fused()) return ScorePlanes(View(block, rows, ahead), prepared, heads, logits);
    ScoreDecoded(*this, stats, prepared, heads, block, rows, logits);
  }
  void Accumulate(const float* stats, const float* weights, int heads, ConstBlockRef block,
                  int rows, float* acc, Prefetch ahead) const override {
    if (nibbles()) return AccumulateNibble(View(block, rows, ahead), weights, heads, acc);
    if (fused()) return AccumulatePlanes(View(block, rows, ahead), weights, heads, acc);
    AccumulateDecoded(*this, stats, weights, heads, block, rows, acc);
  }

 private:
  bool nibbles() const { return layout().codes == CodeLayout::kNibble; }
  // Keys in bit planes: a group must be whole units of dims, or the row.
  bool fused() const {
    if (nibbles() || side() == Side::kValue || group_ == dim()) return true;
    return group_ % UnitCodes(layout().bits) == 0;
  }

  KernelBlock View(ConstBlockRef block, int rows, Prefetch ahead) const {
    KernelBlock view = MakeKernelBlock(block, rows, ahead);
    if (symmetric_ || !nibbles()) view.codebook = &levels_;
    return view;
  }

  int group_;
  bool symmetric_;
  int limit_;                     // the largest code, before the bias
  int sym_bias_;                  // of a code as stored
  Codebook levels_ = {{}, 1.0F};  // of the fused kernels
  std::string name_;
  std::string canonical_;
};

Result<std::string> Outline(const SpecCall& call) {
  KVS_ASSIGN_OR_RETURN(const GroupOptions options, Parse(call));
  return options.Canonical();
}

Result<std::shared_ptr<const Codec>> Make(const SpecCall& call, int dim, Side side) {
  KVS_ASSIGN_OR_RETURN(GroupOptions options, Parse(call));
  KVS_ASSIGN_OR_RETURN(const int group, ResolveGroup(options, dim));
  return std::shared_ptr<const Codec>(std::make_shared<GroupCodec>(dim, side, group, options));
}

constexpr StageInfo Info(std::string_view name, std::string_view summary, std::string_view formula,
                         StorageRules storage) {
  return {name,
          summary,
          formula,
          "group=32|row asym|sym",
          "each element is off by at most half a scale (asym: unless the zero point saturates)",
          storage};
}
constexpr StorageRules Rules(std::string_view format, std::string_view scale_rule) {
  return {format, "one scale per group, and with asym one zero point",
          "along the row: `group` neighbouring dimensions", scale_rule,
          "half to even, against the stored scale and zero point"};
}

}  // namespace

extern const CodecEntry kInt4Codec = {
    Info("int4", "4-bit integers in groups of dims; a zero point unless sym.",
         "asym: zero = f16 rounded down of min, scale = bf16 rounded up of (max - zero) / 15, code "
         "= round-half-even((x - zero) / scale); sym: scale = bf16 rounded up of max|x| / 7, codes "
         "-7..7",
         Rules("4-bit codes: 0..15 with asym, -7..7 with sym",
               "asym: (max - zero point) / 15 with the zero point f16 rounded down; sym: max|x| / "
               "7; both bf16 rounded up")),
    Outline, Make, /*make_rotation=*/nullptr};

extern const CodecEntry kInt3Codec = {
    Info("int3", "3-bit integers in groups of dims; a zero point unless sym.",
         "as int4, with (max - zero) / 7 and codes 0..7; sym: max|x| / 3, codes -3..3",
         Rules("3-bit codes: 0..7 with asym, -3..3 with sym",
               "asym: (max - zero point) / 7 with the zero point f16 rounded down; sym: max|x| / "
               "3; both bf16 rounded up")),
    Outline, Make, /*make_rotation=*/nullptr};

extern const CodecEntry kInt2Codec = {
    Info("int2", "2-bit integers in groups of dims; a zero point unless sym.",
         "as int4, with (max - zero) / 3 and codes 0..3; sym: max|x|, codes -1..1",
         Rules("2-bit codes: 0..3 with asym, -1..1 with sym",
               "asym: (max - zero point) / 3 with the zero point f16 rounded down; sym: max|x|; "
               "both bf16 rounded up")),
    Outline, Make, /*make_rotation=*/nullptr};

}  // namespace kvsieve::quant

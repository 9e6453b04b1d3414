// channel: groups of rows, in which each channel (dim) has a scale and a zero point of its own
// (KIVI,
// arXiv:2402.02750: outliers of keys stay in their channels).
//
//   over the rows of a group, per channel:
//     zero  = f16 rounded toward -inf of min(x), saturating at +-65504
//     scale = bf16 rounded up of (max(x) - zero) / (2^bits - 1)
//     code  = round-half-even((x - zero) / scale) in 0..2^bits - 1;  x' = zero + code * scale
//
// A block:
//
//   codes        bit planes, as in quant/layout.h
//   scales       [group of rows][dim] of 2 bytes, on a new 64-byte line
//   zero points  [group of rows][dim] of 2 bytes
#include <algorithm>
#include <cstring>

#include "kvsieve/float16.h"
#include "kvsieve/str_cat.h"
#include "quant/code_rows.h"
#include "quant/kernels.h"
#include "quant/registry.h"
#include "quant/row_math.h"

namespace kvsieve::quant {
namespace {

constexpr std::string_view kGroups[] = {"16", "32", "64"};  // divide a block

// A code stands for itself.
constexpr Codebook kCodes = {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, 1.0F};

struct ChannelOptions {
  int bits = 2;
  int group_rows = 32;

  std::string Canonical() const {
    return StrCat("channel(bits=", bits, ",group=", group_rows, ")");
  }
  // A row's share of a group's scales is whole bytes, and so are its codes.
  int dim_multiple() const { return std::max(8, group_rows / 4); }
};

Result<ChannelOptions> Parse(const SpecCall& call) {
  ArgReader args(call);
  ChannelOptions options;
  int group = 1;
  args.Int("bits", &options.bits, 2, 4);
  args.Choice("group", kGroups, &group);
  KVS_RETURN_IF_ERROR(args.Finish());
  options.group_rows = 16 << group;
  return options;
}

struct ChannelRange {
  F16 zero;
  BF16 scale;
};

ChannelRange RangeOf(const float* column, int count, float limit) {
  const MinMax range = FindMinMax(column, count);
  // -0 and +0 compare equal, so which of them is the minimum depends on the order: store +0.
  const F16 zero = range.min == 0.0F ? F16{0} : ToF16RoundDown(range.min);
  const float base = ToFloat(zero);
  const float span = range.max > base ? range.max - base : 0.0F;
  return {zero, ToBF16RoundUp(span / limit)};
}

// Half to even, for 0 <= steps <= limit; below (and NaN, of scale 0) is 0.
std::uint8_t RoundToCode(float steps, float limit) {
  constexpr float kRounder = 0x1.8p23F;  // the sum has no bits for a fraction
  steps = steps > 0.0F ? steps : 0.0F;
  steps = steps < limit ? steps : limit;
  return static_cast<std::uint8_t>((steps + kRounder) - kRounder);
}

class ChannelCodec final : public Codec {
 public:
  ChannelCodec(int dim, Side side, const ChannelOptions& options)
      : codes_{CodeLayout::kBitPlanes, side, dim, options.bits, 0, false}, options_(options) {}

  std::string Canonical() const override { return options_.Canonical(); }
  int dim() const override { return codes_.dim; }
  Side side() const override { return codes_.side; }
  KernelPath path() const override { return KernelPath::kFused; }
  int group_rows() const override { return options_.group_rows; }

  RowBytes row_bytes() const override {
    return {codes_.code_row_bytes(), std::int64_t{dim()} * 4 / group_rows()};
  }
  std::size_t BlockBytes(int capacity_rows) const override {
    KVS_DCHECK(capacity_rows % group_rows() == 0);
    return RoundUp(codes_.scales_at(capacity_rows) + 2 * PlaneElements(capacity_rows) * 2, 64);
  }

  Status Learn(const RowSource& rows, float*) const override {
    return ForRowsBeyond(kMaxScaled, rows, [&](RowIndex r, const float* row) {
      return CheckScaled(row, dim(), r, "channel");
    });
  }

  Status Encode(const float*, const float* rows, int count, BlockRef block,
                int first_row) const override {
    KVS_DCHECK(first_row % group_rows() == 0);
    for (int r = 0; r < count; ++r) {
      KVS_RETURN_IF_ERROR(CheckScaled(rows + std::ptrdiff_t{r} * dim(), dim(), r, "channel"));
    }
    for (int first = 0; first < count; first += group_rows()) {
      EncodeGroup(rows + std::ptrdiff_t{first} * dim(), std::min(group_rows(), count - first),
                  block, first_row + first);
    }
    return Status::Ok();
  }

  void Decode(const float*, ConstBlockRef block, int first_row, int count,
              float* rows) const override {
    CodeRow codes;
    Group group;
    int loaded = -1;
    for (int r = first_row; r < first_row + count; ++r, rows += dim()) {
      if (r / group_rows() != loaded) {
        loaded = r / group_rows();
        LoadGroup(block, loaded, group);
      }
      LoadCodes(codes_, block, r, codes);
      for (int c = 0; c < dim(); ++c) {
        rows[c] = static_cast<float>(codes.codes[c]) * group.scales[c] + group.zeros[c];
      }
    }
  }

  void MoveRow(ConstBlockRef from, int from_row, BlockRef to, int to_row) const override {
    CodeRow row;
    LoadCodes(codes_, from, from_row, row);
    StoreCodes(codes_, to, to_row, row);
    const std::size_t bytes = static_cast<std::size_t>(dim()) * 2;
    const int source = from_row / group_rows();
    const int target = to_row / group_rows();
    std::memcpy(Scales(to, target), Scales(from, source), bytes);
    std::memcpy(Zeros(to, target), Zeros(from, source), bytes);
  }

  std::size_t QueryBytes() const override { return ChannelQueryBytes(dim()); }
  void PrepareQueries(const float* q, int heads, void* prepared) const override {
    PrepareChannelQueries(q, heads, dim(), prepared);
  }
  void Score(const float*, const void* prepared, int heads, ConstBlockRef block, int rows,
             float* logits, Prefetch ahead) const override {
    ScoreChannel(View(block, rows, ahead), prepared, heads, logits);
  }
  void Accumulate(const float*, const float* weights, int heads, ConstBlockRef block, int rows,
                  float* acc, Prefetch ahead) const override {
    AccumulateChannel(View(block, rows, ahead), weights, heads, acc);
  }

 private:
  // What one group of rows decodes with, [dim].
  struct Group {
    float scales[kMaxDim];
    float zeros[kMaxDim];
  };

  KernelBlock View(ConstBlockRef block, int rows, Prefetch ahead) const {
    KernelBlock view;
    view.codes = block.data;
    view.scales = Scales(block, 0);
    view.zeros = Zeros(block, 0);
    view.half_type = HalfType::kBF16;
    view.capacity_rows = block.capacity_rows;
    view.rows = rows;
    view.dim = view.group = dim();
    view.bits = options_.bits;
    view.group_rows = group_rows();
    view.codebook = &kCodes;
    view.ahead = ahead.data;
    view.ahead_bytes = BlockBytes(block.capacity_rows);
    return view;
  }

  float limit() const { return static_cast<float>((1 << options_.bits) - 1); }

  // 2-byte elements of the scale plane, and of the zero-point plane.
  std::size_t PlaneElements(int capacity_rows) const {
    return static_cast<std::size_t>(capacity_rows / group_rows()) * static_cast<std::size_t>(dim());
  }
  std::uint16_t* Scales(BlockRef block, int group) const {
    return ScalePlane(codes_, block) + std::ptrdiff_t{group} * dim();
  }
  const std::uint16_t* Scales(ConstBlockRef block, int group) const {
    return ScalePlane(codes_, block) + std::ptrdiff_t{group} * dim();
  }
  std::uint16_t* Zeros(BlockRef block, int group) const {
    return Scales(block, group) + PlaneElements(block.capacity_rows);
  }
  const std::uint16_t* Zeros(ConstBlockRef block, int group) const {
    return Scales(block, group) + PlaneElements(block.capacity_rows);
  }

  void EncodeGroup(const float* rows, int count, BlockRef block, int first_row) const {
    const int index = first_row / group_rows();
    for (int c = 0; c < dim(); ++c) {
      float column[kBlockRows];
      for (int r = 0; r < count; ++r) column[r] = rows[std::ptrdiff_t{r} * dim() + c];
      const ChannelRange range = RangeOf(column, count, limit());
      Scales(block, index)[c] = range.scale.bits;
      Zeros(block, index)[c] = range.zero.bits;
    }
    Group group;
    LoadGroup(block, index, group);
    CodeRow codes;
    for (int r = 0; r < count; ++r, rows += dim()) {
      for (int c = 0; c < dim(); ++c) {
        codes.codes[c] = RoundToCode((rows[c] - group.zeros[c]) / group.scales[c], limit());
      }
      StoreCodes(codes_, block, first_row + r, codes);
    }
  }

  void LoadGroup(ConstBlockRef block, int index, Group& group) const {
    const std::uint16_t* scales = Scales(block, index);
    const std::uint16_t* zeros = Zeros(block, index);
    for (int c = 0; c < dim(); ++c) {
      group.scales[c] = ToFloat(BF16{scales[c]});
      group.zeros[c] = ToFloat(F16{zeros[c]});
    }
  }

  BlockLayout codes_;  // of the code plane alone
  ChannelOptions options_;
};

Result<std::string> Outline(const SpecCall& call) {
  KVS_ASSIGN_OR_RETURN(const ChannelOptions options, Parse(call));
  return options.Canonical();
}

Result<int> GroupRows(const SpecCall& call) {
  KVS_ASSIGN_OR_RETURN(const ChannelOptions options, Parse(call));
  return options.group_rows;
}

Result<std::shared_ptr<const Codec>> Make(const SpecCall& call, int dim, Side side) {
  KVS_ASSIGN_OR_RETURN(const ChannelOptions options, Parse(call));
  if (dim % options.dim_multiple() != 0) {
    return SpecError(
        call.column,
        StrCat("channel with group=", options.group_rows, " needs a dim that is a multiple of ",
               options.dim_multiple(), ", got ", dim, "; use int", options.bits, "(group=row)"));
  }
  return std::shared_ptr<const Codec>(std::make_shared<ChannelCodec>(dim, side, options));
}

}  // namespace

extern const CodecEntry kChannelCodec = {
    {"channel",
     "Integers with a scale and a zero point per channel, over groups of rows (KIVI's keys).",
     "per channel of `group` rows: zero = f16 rounded down of min, scale = bf16 rounded up of (max "
     "- zero) / (2^bits - 1), code = round-half-even((x - zero) / scale) (KIVI, arXiv:2402.02750)",
     "bits=2|3|4 group=32|16|64",
     "each element is off by at most half a scale (unless the zero point saturates); rows that do "
     "not fill a group stay exact, as does the tail",
     {"2, 3 or 4-bit codes, 0..2^bits - 1", "one scale and one zero point per channel and group",
      "along the tokens: `group` rows that follow each other among those stored",
      "(max - zero point) / (2^bits - 1) with the zero point f16 rounded down; bf16 rounded up",
      "half to even, against the stored scale and zero point"}},
    Outline,
    Make,
    /*make_rotation=*/nullptr,
    GroupRows};

}  // namespace kvsieve::quant

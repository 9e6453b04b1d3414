#include "block_fixture.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "kvsieve/float16.h"
#include "kvsieve/str_cat.h"

namespace kvsieve::quant {
namespace {

struct Codes {
  CodeLayout layout;
  int bits;
};
Codes CodesOf(const Shape& shape) {
  switch (shape.format) {
    case Format::kHalf:
      return {CodeLayout::kHalf, 16};
    case Format::kFp8:
      return {CodeLayout::kPairs, 8};
    case Format::kInt8:
      return {CodeLayout::kInt8, 8};
    case Format::kNibble:
    case Format::kCodebook:
      return {CodeLayout::kNibble, 4};
    case Format::kPlanes:
    case Format::kChannel:
      return {CodeLayout::kBitPlanes, shape.bits};
  }
  std::abort();
}

BlockLayout LayoutOf(const Shape& shape) {
  const Codes codes = CodesOf(shape);
  BlockLayout layout;
  layout.codes = codes.layout;
  layout.bits = codes.bits;
  layout.side = shape.side;
  layout.dim = shape.dim;
  const bool scaled = shape.format != Format::kHalf && shape.format != Format::kFp8;
  if (!scaled || shape.format == Format::kChannel) return layout;
  layout.groups = shape.dim / shape.group;
  layout.zeros = shape.zeros;
  return layout;
}

// The Lloyd-Max levels of 16 cells for a Gaussian, rounded to 8 bits; then 16 more levels.
constexpr Codebook kCodebook = {
    {-127, -96,  -75, -59, -45, -32, -18, -6,  6,  18, 32, 45, 59, 75, 96,  127,
     -123, -109, -88, -67, -51, -38, -25, -12, 12, 25, 38, 51, 67, 88, 109, 127},
    2.7326F / 127.0F};

float Uniform(std::mt19937& random, float low, float high) {
  return std::uniform_real_distribution<float>(low, high)(random);
}

bool IsFloat(Format format) { return format == Format::kHalf || format == Format::kFp8; }

// e4m3, by its definition: 2^(e - 7) * (1 + m / 8), without the 1 and with e = 1 where e = 0.
double Fp8ToDouble(unsigned code) {
  const int exponent = static_cast<int>(code >> 3 & 15U);
  const double mantissa = (code & 7U) / 8.0 + (exponent > 0 ? 1.0 : 0.0);
  const double magnitude = std::ldexp(mantissa, std::max(exponent, 1) - 7);
  return (code & 0x80U) != 0 ? -magnitude : magnitude;
}

}  // namespace

GuardedMemory::GuardedMemory(std::size_t bytes) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t data_bytes = RoundUp(bytes, page);
  map_bytes_ = data_bytes + page;
  void* map = mmap(nullptr, map_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) std::abort();
  map_ = static_cast<std::uint8_t*>(map);
  if (mprotect(map_ + data_bytes, page, PROT_NONE) != 0) std::abort();
  data_ = map_ + data_bytes - bytes;
}

GuardedMemory::~GuardedMemory() { munmap(map_, map_bytes_); }

std::string FormatName(Format format) {
  constexpr const char* kNames[] = {"half",     "fp8",    "int8",   "nibble",
                                    "codebook", "planes", "channel"};
  return kNames[static_cast<int>(format)];
}

std::string Shape::Describe() const {
  return StrCat(FormatName(format), ' ', bits, " bits", side == Side::kKey ? " key" : " value",
                " dim ", dim, " group ", group, " rows of a group ", group_rows,
                zeros ? " asym" : " sym", half_type == HalfType::kF16 ? " f16" : " bf16",
                " capacity ", capacity_rows, " rows ", rows);
}

TestBlock::TestBlock(const Shape& shape, std::mt19937& random)
    : shape_(shape),
      layout_(LayoutOf(shape)),
      codebook_(kCodebook),
      memory_(shape.format == Format::kChannel
                  ? RoundUp(layout_.scales_at(shape.capacity_rows) +
                                static_cast<std::size_t>(shape.capacity_rows / shape.group_rows *
                                                         shape.dim * 4),
                            64)
                  : layout_.block_bytes(shape.capacity_rows)) {
  std::uint8_t* data = memory_.as<>();
  kernel_.codes = data;
  kernel_.capacity_rows = shape.capacity_rows;
  kernel_.rows = shape.rows;
  kernel_.dim = shape.dim;
  kernel_.bits = layout_.bits;
  kernel_.group = shape.group;
  kernel_.half_type = shape.half_type;
  FillCodes(random);
  if (IsFloat(shape.format)) return;
  kernel_.scales =
      reinterpret_cast<const std::uint16_t*>(data + layout_.scales_at(shape.capacity_rows));
  if (shape.zeros) kernel_.zeros = kernel_.scales + PlaneElements();
  if (shape.format >= Format::kCodebook) kernel_.codebook = &codebook_;
  if (shape.format == Format::kChannel) {
    codebook_ = {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, 1.0F};
    kernel_.group_rows = shape.group_rows;
  }
  FillScales(random);
}

// All rows of the block, so that those from `rows` on are stale.
void TestBlock::FillCodes(std::mt19937& random) {
  std::uint8_t* codes = memory_.as<>();
  for (int r = 0; r < shape_.capacity_rows; ++r) {
    for (int d = 0; d < shape_.dim; ++d) {
      const bool high = (random() & 1U) != 0;
      if (shape_.format == Format::kHalf) {
        const float value = Uniform(random, -2.0F, 2.0F);
        const std::uint16_t bits =
            shape_.half_type == HalfType::kF16 ? ToF16(value).bits : ToBF16(value).bits;
        const std::size_t at = HalfAt(shape_.side, shape_.dim, r, d).byte;
        codes[at] = static_cast<std::uint8_t>(bits);
        codes[at + 1] = static_cast<std::uint8_t>(bits >> 8);
      } else if (shape_.format == Format::kFp8) {
        // Any but NaN, 0x7F and 0xFF.
        const auto code = static_cast<std::uint8_t>((high ? 0x80U : 0U) | random() % 0x7F);
        codes[PairAt(shape_.side, shape_.dim, r, d).byte] = code;
      } else if (shape_.format == Format::kInt8) {
        const int any = static_cast<int>(random() % 255) - 127;
        const int code = shape_.extreme ? (high ? 127 : -127) : any;
        codes[Int8At(shape_.side, shape_.dim, r, d).byte] = static_cast<std::uint8_t>(code);
      } else {
        const unsigned last = (1U << layout_.bits) - 1;
        SetCode(r, d, shape_.extreme ? (high ? last : 0U) : random() & last);
      }
    }
  }
}

// Into memory that is zero.
void TestBlock::SetCode(int row, int d, unsigned code) {
  std::uint8_t* codes = memory_.as<>();
  if (layout_.codes == CodeLayout::kNibble) {
    const CodeAt at = NibbleAt(shape_.side, shape_.dim, row, d);
    codes[at.byte] = static_cast<std::uint8_t>(codes[at.byte] | (code << at.shift));
    return;
  }
  for (const int width : {4, 2, 1}) {
    if ((layout_.bits & width) == 0) continue;
    const CodeAt at = PlaneAt(layout_, width, row, d);
    const unsigned part = code >> PartShift(layout_.bits, width) & ((1U << width) - 1);
    codes[at.byte] = static_cast<std::uint8_t>(codes[at.byte] | part << at.shift);
  }
}

unsigned TestBlock::CodeOf(int row, int d) const {
  const std::uint8_t* codes = memory_.as<>();
  if (layout_.codes == CodeLayout::kNibble) {
    const CodeAt at = NibbleAt(shape_.side, shape_.dim, row, d);
    return codes[at.byte] >> at.shift & 15U;
  }
  unsigned code = 0;
  for (const int width : {4, 2, 1}) {
    if ((layout_.bits & width) == 0) continue;
    const CodeAt at = PlaneAt(layout_, width, row, d);
    code |= (codes[at.byte] >> at.shift & ((1U << width) - 1)) << PartShift(layout_.bits, width);
  }
  return code;
}

void TestBlock::FillScales(std::mt19937& random) {
  auto* scales =
      reinterpret_cast<std::uint16_t*>(memory_.as<>() + layout_.scales_at(shape_.capacity_rows));
  auto* zeros = scales + PlaneElements();
  for (int i = 0; i < PlaneElements(); ++i) {
    const float scale = Uniform(random, 0.0F, shape_.scale);
    scales[i] = shape_.half_type == HalfType::kF16 ? ToF16(scale).bits : ToBF16RoundUp(scale).bits;
    if (!shape_.zeros) continue;
    const float zero = Uniform(random, -12.0F, 4.0F) * shape_.scale;
    zeros[i] = ToF16(std::clamp(zero, -6e4F, 6e4F)).bits;
  }
}

int TestBlock::PlaneElements() const {
  if (shape_.format != Format::kChannel) return layout_.groups * shape_.capacity_rows;
  return shape_.capacity_rows / shape_.group_rows * shape_.dim;
}

int TestBlock::ScaleAt(int row, int d) const {
  if (shape_.format == Format::kChannel) return row / shape_.group_rows * shape_.dim + d;
  return d / shape_.group * shape_.capacity_rows + row;
}

double TestBlock::Code(int row, int d) const {
  const std::uint8_t* codes = memory_.as<>();
  if (shape_.format == Format::kHalf) {
    const std::size_t at = HalfAt(shape_.side, shape_.dim, row, d).byte;
    const auto bits = static_cast<std::uint16_t>(codes[at] | codes[at + 1] << 8);
    return shape_.half_type == HalfType::kF16 ? ToFloat(F16{bits}) : ToFloat(BF16{bits});
  }
  if (shape_.format == Format::kFp8) {
    return Fp8ToDouble(codes[PairAt(shape_.side, shape_.dim, row, d).byte]);
  }
  if (shape_.format == Format::kInt8) {
    return static_cast<std::int8_t>(codes[Int8At(shape_.side, shape_.dim, row, d).byte]);
  }
  const unsigned code = CodeOf(row, d);
  return shape_.format == Format::kNibble ? static_cast<double>(code) : codebook_.level[code];
}

double TestBlock::Scale(int row, int d) const {
  if (IsFloat(shape_.format)) return 1.0;
  const std::uint16_t bits = kernel_.scales[ScaleAt(row, d)];
  const float scale = shape_.half_type == HalfType::kF16 ? ToFloat(F16{bits}) : ToFloat(BF16{bits});
  return kernel_.codebook != nullptr ? static_cast<double>(scale) * codebook_.level_scale : scale;
}

double TestBlock::Zero(int row, int d) const {
  if (kernel_.zeros == nullptr) return 0.0;
  return ToFloat(F16{kernel_.zeros[ScaleAt(row, d)]});
}

}  // namespace kvsieve::quant

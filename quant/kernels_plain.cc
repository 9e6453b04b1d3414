#include "quant/kernels_plain.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "kvsieve/float16.h"
#include "quant/kernels_query.h"
#include "quant/layout.h"

namespace kvsieve::quant {
namespace {

float HalfToFloat(HalfType type, std::uint16_t bits) {
  return type == HalfType::kF16 ? ToFloat(F16{bits}) : ToFloat(BF16{bits});
}

float ScaleOf(const KernelBlock& b, int group_index, int row) {
  const float scale = HalfToFloat(b.half_type, b.scales[group_index * b.capacity_rows + row]);
  return b.codebook == nullptr ? scale : scale * b.codebook->level_scale;
}

float ZeroOf(const KernelBlock& b, int group_index, int row) {
  if (b.zeros == nullptr) return 0.0F;
  return ToFloat(F16{b.zeros[group_index * b.capacity_rows + row]});
}

struct HalfCodes {
  static float At(const KernelBlock& b, Side side, int row, int d) {
    std::uint16_t bits;
    std::memcpy(&bits, b.codes + HalfAt(side, b.dim, row, d).byte, 2);
    return HalfToFloat(b.half_type, bits);
  }
};
struct Fp8Codes {
  // As in kernels_half-inl.h.
  static float At(const KernelBlock& b, Side side, int row, int d) {
    const unsigned code = b.codes[PairAt(side, b.dim, row, d).byte];
    return ToFloat(F16{static_cast<std::uint16_t>((code & 0x80U) << 8 | (code & 0x7FU) << 7)}) *
           256.0F;
  }
};
struct Int8Codes {
  static std::int32_t At(const KernelBlock& b, Side side, int row, int d) {
    return static_cast<std::int8_t>(b.codes[Int8At(side, b.dim, row, d).byte]);
  }
};
struct NibbleCodes {
  static std::int32_t At(const KernelBlock& b, Side side, int row, int d) {
    const CodeAt at = NibbleAt(side, b.dim, row, d);
    const int code = b.codes[at.byte] >> at.shift & 15;
    return b.codebook == nullptr ? code : b.codebook->level[code];
  }
};

struct PlaneCodes {
  static std::int32_t At(const KernelBlock& b, Side side, int row, int d) {
    const BlockLayout layout{CodeLayout::kBitPlanes, side, b.dim, b.bits, 1, false};
    int code = 0;
    for (const int width : {4, 2, 1}) {
      if ((b.bits & width) == 0) continue;
      const CodeAt at = PlaneAt(layout, width, row, d);
      code |= (b.codes[at.byte] >> at.shift & ((1 << width) - 1)) << PartShift(b.bits, width);
    }
    return b.codebook->level[code];
  }
};

// The rounded query of head h, dim d (kPairs or kByte).
std::int32_t RoundedQuery(const IntQuery& query, int h, int d) {
  if (query.head->form == QueryForm::kByte) {
    return reinterpret_cast<const std::int8_t*>(query.quads)[(d / 4 * kHeadTile + h) * 4 + d % 4];
  }
  const auto* pairs = reinterpret_cast<const std::int16_t*>(query.quads);
  constexpr int kSlot[4] = {0, 2, 1, 3};
  return pairs[(d / 4 * kHeadTile + h) * 4 + kSlot[d % 4]];
}

template <class Codes>
void Score(const KernelBlock& b, const void* prepared, int heads, float* logits) {
  const IntQuery query(prepared);
  for (int row = 0; row < b.rows; ++row) {
    float total[kHeadTile] = {};
    for (int g = 0; g < b.dim / b.group; ++g) {
      std::int32_t sum[kHeadTile] = {};
      for (int d = g * b.group; d < (g + 1) * b.group; ++d) {
        const std::int32_t code = Codes::At(b, Side::kKey, row, d);
        for (int h = 0; h < heads; ++h) sum[h] += code * RoundedQuery(query, h, d);
      }
      const float scale = ScaleOf(b, g, row);
      const float zero = ZeroOf(b, g, row);
      for (int h = 0; h < heads; ++h) {
        const auto query_sum = static_cast<float>(query.group_sums[g * kHeadTile + h]);
        const float part = scale * static_cast<float>(sum[h]) + zero * query_sum;
        total[h] += part * query.scales[g * kHeadTile + h];
      }
    }
    for (int h = 0; h < heads; ++h) logits[h * kBlockRows + row] = total[h];
  }
}

template <class Codes>
void ScoreFloats(const KernelBlock& b, const void* prepared, int heads, float* logits) {
  const auto* q = static_cast<const float*>(prepared);
  for (int h = 0; h < heads; ++h) std::fill_n(logits + h * kBlockRows, b.rows, 0.0F);
  for (int row = 0; row < b.rows; ++row) {
    for (int d = 0; d < b.dim; ++d) {
      const float key = Codes::At(b, Side::kKey, row, d);
      for (int h = 0; h < heads; ++h) logits[h * kBlockRows + row] += key * q[d * kHeadTile + h];
    }
  }
}

template <class Codes>
void AccumulateFloats(const KernelBlock& b, const float* weights, int heads, float* acc) {
  const int stride = AccumulatorStride(b.dim);
  for (int row = 0; row < b.rows; ++row) {
    for (int d = 0; d < b.dim; ++d) {
      const float value = Codes::At(b, Side::kValue, row, d);
      for (int h = 0; h < heads; ++h) acc[h * stride + d] += weights[h * kBlockRows + row] * value;
    }
  }
}

template <class Codes>
void Accumulate(const KernelBlock& b, const float* weights, int heads, float* acc) {
  const int stride = AccumulatorStride(b.dim);
  for (int row = 0; row < b.rows; ++row) {
    for (int d = 0; d < b.dim; ++d) {
      const float value =
          ScaleOf(b, d / b.group, row) * static_cast<float>(Codes::At(b, Side::kValue, row, d)) +
          ZeroOf(b, d / b.group, row);
      for (int h = 0; h < heads; ++h) acc[h * stride + d] += weights[h * kBlockRows + row] * value;
    }
  }
}

}  // namespace

void PlainScoreHalf(const KernelBlock& block, const void* prepared, int heads, float* logits) {
  ScoreFloats<HalfCodes>(block, prepared, heads, logits);
}

void PlainScoreFp8(const KernelBlock& block, const void* prepared, int heads, float* logits) {
  ScoreFloats<Fp8Codes>(block, prepared, heads, logits);
}

void PlainScoreInt8(const KernelBlock& block, const void* prepared, int heads, float* logits) {
  Score<Int8Codes>(block, prepared, heads, logits);
}

void PlainScoreNibble(const KernelBlock& block, const void* prepared, int heads, float* logits) {
  Score<NibbleCodes>(block, prepared, heads, logits);
}

void PlainScorePlanes(const KernelBlock& block, const void* prepared, int heads, float* logits) {
  Score<PlaneCodes>(block, prepared, heads, logits);
}

void PlainAccumulateHalf(const KernelBlock& block, const float* weights, int heads, float* acc) {
  AccumulateFloats<HalfCodes>(block, weights, heads, acc);
}

void PlainAccumulateFp8(const KernelBlock& block, const float* weights, int heads, float* acc) {
  AccumulateFloats<Fp8Codes>(block, weights, heads, acc);
}

void PlainAccumulateInt8(const KernelBlock& block, const float* weights, int heads, float* acc) {
  Accumulate<Int8Codes>(block, weights, heads, acc);
}

void PlainAccumulateNibble(const KernelBlock& block, const float* weights, int heads, float* acc) {
  Accumulate<NibbleCodes>(block, weights, heads, acc);
}

void PlainAccumulatePlanes(const KernelBlock& block, const float* weights, int heads, float* acc) {
  Accumulate<PlaneCodes>(block, weights, heads, acc);
}

}  // namespace kvsieve::quant

#include "quant/kernels_plain.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "kvsieve/float16.h"
#include "quant/code_rows.h"
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
// True codes of one row, [dim].
void LoadRow(CodeLayout codes, Side side, const KernelBlock& b, int row, std::int32_t* out) {
  CodeRow stored;
  const BlockLayout layout{codes, side, b.dim, b.bits, 1, false};
  LoadCodes(layout, {b.codes, b.capacity_rows}, row, stored);
  for (int d = 0; d < b.dim; ++d) {
    const std::uint8_t code = stored.codes[d];
    out[d] = codes == CodeLayout::kInt8 ? static_cast<std::int8_t>(code)
             : b.codebook == nullptr    ? code
                                        : b.codebook->level[code];
  }
}

// `channel`: one row, decoded.
void LoadChannelRow(Side side, const KernelBlock& b, int row, float* out) {
  std::int32_t codes[kMaxDim];
  LoadRow(CodeLayout::kBitPlanes, side, b, row, codes);
  const int plane = row / b.group_rows * b.dim;
  for (int d = 0; d < b.dim; ++d) {
    const float scale = HalfToFloat(b.half_type, b.scales[plane + d]);
    out[d] = ToFloat(F16{b.zeros[plane + d]}) + scale * static_cast<float>(codes[d]);
  }
}

void AddRow(const float* row, int dim, const float* weights, int heads, float* acc) {
  const int stride = AccumulatorStride(dim);
  for (int h = 0; h < heads; ++h) {
    const float weight = weights[h * kBlockRows];
    for (int d = 0; d < dim; ++d) acc[h * stride + d] += weight * row[d];
  }
}

// The rounded query of head h, dim d (kPairs or kByte).
std::int16_t RoundedQuery(const IntQuery& query, int h, int d) {
  if (query.head->form == QueryForm::kByte) {
    return reinterpret_cast<const std::int8_t*>(query.quads)[(d / 4 * kHeadTile + h) * 4 + d % 4];
  }
  const auto* pairs = reinterpret_cast<const std::int16_t*>(query.quads);
  constexpr int kSlot[4] = {0, 2, 1, 3};
  return pairs[(d / 4 * kHeadTile + h) * 4 + kSlot[d % 4]];
}

void Score(CodeLayout layout, const KernelBlock& b, const void* prepared, int heads,
           float* logits) {
  const IntQuery query(prepared);
  std::int16_t q[kHeadTile][kMaxDim];
  for (int h = 0; h < heads; ++h) {
    for (int d = 0; d < b.dim; ++d) q[h][d] = RoundedQuery(query, h, d);
  }
  std::int32_t codes[kMaxDim];
  for (int row = 0; row < b.rows; ++row) {
    LoadRow(layout, Side::kKey, b, row, codes);
    for (int h = 0; h < heads; ++h) {
      float total = 0.0F;
      for (int g = 0; g < b.dim / b.group; ++g) {
        std::int32_t sum = 0;
        for (int d = g * b.group; d < (g + 1) * b.group; ++d) sum += codes[d] * q[h][d];
        const auto query_sum = static_cast<float>(query.group_sums[g * kHeadTile + h]);
        const float part =
            ScaleOf(b, g, row) * static_cast<float>(sum) + ZeroOf(b, g, row) * query_sum;
        total += part * query.scales[g * kHeadTile + h];
      }
      logits[h * kBlockRows + row] = total;
    }
  }
}

void Accumulate(CodeLayout layout, const KernelBlock& b, const float* weights, int heads,
                float* acc) {
  std::int32_t codes[kMaxDim];
  float values[kMaxDim];
  for (int row = 0; row < b.rows; ++row) {
    LoadRow(layout, Side::kValue, b, row, codes);
    for (int g = 0; g < b.dim / b.group; ++g) {
      const float scale = ScaleOf(b, g, row);
      const float zero = ZeroOf(b, g, row);
      for (int d = g * b.group; d < (g + 1) * b.group; ++d) {
        values[d] = scale * static_cast<float>(codes[d]) + zero;
      }
    }
    AddRow(values, b.dim, weights + row, heads, acc);
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

}  // namespace

void PlainScoreHalf(const KernelBlock& block, const void* prepared, int heads, float* logits) {
  ScoreFloats<HalfCodes>(block, prepared, heads, logits);
}

void PlainScoreFp8(const KernelBlock& block, const void* prepared, int heads, float* logits) {
  ScoreFloats<Fp8Codes>(block, prepared, heads, logits);
}

void PlainScoreInt8(const KernelBlock& block, const void* prepared, int heads, float* logits) {
  Score(CodeLayout::kInt8, block, prepared, heads, logits);
}

void PlainScoreNibble(const KernelBlock& block, const void* prepared, int heads, float* logits) {
  Score(CodeLayout::kNibble, block, prepared, heads, logits);
}

void PlainScorePlanes(const KernelBlock& block, const void* prepared, int heads, float* logits) {
  Score(CodeLayout::kBitPlanes, block, prepared, heads, logits);
}

void PlainScoreChannel(const KernelBlock& b, const void* prepared, int heads, float* logits) {
  const auto* q = static_cast<const float*>(prepared);
  float key[kMaxDim];
  for (int row = 0; row < b.rows; ++row) {
    LoadChannelRow(Side::kKey, b, row, key);
    for (int h = 0; h < heads; ++h) {
      const float* query = q + h * ChannelQueryStride(b.dim);
      float sum = 0.0F;
      for (int d = 0; d < b.dim; ++d) sum += key[d] * query[d];
      logits[h * kBlockRows + row] = sum;
    }
  }
}

void PlainAccumulateHalf(const KernelBlock& block, const float* weights, int heads, float* acc) {
  AccumulateFloats<HalfCodes>(block, weights, heads, acc);
}

void PlainAccumulateFp8(const KernelBlock& block, const float* weights, int heads, float* acc) {
  AccumulateFloats<Fp8Codes>(block, weights, heads, acc);
}

void PlainAccumulateInt8(const KernelBlock& block, const float* weights, int heads, float* acc) {
  Accumulate(CodeLayout::kInt8, block, weights, heads, acc);
}

void PlainAccumulateNibble(const KernelBlock& block, const float* weights, int heads, float* acc) {
  Accumulate(CodeLayout::kNibble, block, weights, heads, acc);
}

void PlainAccumulatePlanes(const KernelBlock& block, const float* weights, int heads, float* acc) {
  Accumulate(CodeLayout::kBitPlanes, block, weights, heads, acc);
}

void PlainAccumulateChannel(const KernelBlock& b, const float* weights, int heads, float* acc) {
  float value[kMaxDim];
  for (int row = 0; row < b.rows; ++row) {
    LoadChannelRow(Side::kValue, b, row, value);
    AddRow(value, b.dim, weights + row, heads, acc);
  }
}

}  // namespace kvsieve::quant

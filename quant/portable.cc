#include "quant/portable.h"

#include <algorithm>
#include <cstring>

#include "kvsieve/targets.h"
#include "quant/code_rows.h"

namespace kvsieve::quant {
namespace {

const PortableKernels& ActiveKernels() {
#if defined(__x86_64__) || defined(_M_X64)
  const std::string_view target = ActiveTarget();
  if (target == "AVX3_VNNI" || target == "AVX3") return kPortableAvx512;
  if (target == "AVX2") return kPortableAvx2;
#endif
  return kPortableBaseline;
}

// Decoded rows that one step holds on the stack: 16 KiB, half of a usual L1 data cache.
constexpr int kTileFloats = kMaxDim;
int TileRows(int dim) { return std::min(kBlockRows, kTileFloats / dim); }

}  // namespace

void PortableScore(const PortableRows& rows, const float* q, int heads, float* logits) {
  KVS_DCHECK(heads >= 1 && heads <= kHeadTile && rows.count <= kBlockRows);
  ActiveKernels().score(rows, q, heads, logits);
}

void PortableAccumulate(const PortableRows& rows, const float* weights, int heads, float* acc) {
  KVS_DCHECK(heads >= 1 && heads <= kHeadTile && rows.count <= kBlockRows);
  ActiveKernels().accumulate(rows, weights, heads, acc);
}

std::size_t PortableQueryBytes(int dim) {
  return static_cast<std::size_t>(kHeadTile) * static_cast<std::size_t>(AccumulatorStride(dim)) *
         sizeof(float);
}

void PreparePortableQueries(const float* q, int heads, int dim, void* prepared) {
  std::memcpy(prepared, q,
              static_cast<std::size_t>(heads) * static_cast<std::size_t>(dim) * sizeof(float));
}

void ScoreDecoded(const Codec& codec, const float* stats, const void* prepared, int heads,
                  ConstBlockRef block, int rows, float* logits) {
  alignas(64) float decoded[kTileFloats];
  const auto* q = static_cast<const float*>(prepared);
  const int tile = TileRows(codec.dim());
  for (int first = 0; first < rows; first += tile) {
    const int count = std::min(tile, rows - first);
    codec.Decode(stats, block, first, count, decoded);
    PortableScore({decoded, count, codec.dim(), codec.dim()}, q, heads, logits + first);
  }
}

void AccumulateDecoded(const Codec& codec, const float* stats, const float* weights, int heads,
                       ConstBlockRef block, int rows, float* acc) {
  alignas(64) float decoded[kTileFloats];
  const int tile = TileRows(codec.dim());
  for (int first = 0; first < rows; first += tile) {
    const int count = std::min(tile, rows - first);
    codec.Decode(stats, block, first, count, decoded);
    PortableAccumulate({decoded, count, codec.dim(), codec.dim()}, weights + first, heads, acc);
  }
}

}  // namespace kvsieve::quant

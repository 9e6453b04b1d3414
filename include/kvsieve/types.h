// The words that every stage shares: positions and rows, element types, strided views, the shape
// of a layer, and where rows can be read from.
#ifndef KVSIEVE_TYPES_H_
#define KVSIEVE_TYPES_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

#include "kvsieve/result.h"

namespace kvsieve {

// Ordinal of a token in its sequence. Never addresses storage; RoPE is the engine's business.
using TokenPos = std::int32_t;

// Slot of a row in a store. Never used for masks or RoPE.
using RowIndex = std::int64_t;

// Rows of one head are stored, scored and attended in blocks of this many; a block is allocated
// in panels.
inline constexpr int kBlockRows = 64;
inline constexpr int kPanelRows = 16;

// Most elements of a row.
inline constexpr int kMaxDim = 4096;

// IEEE binary16 and bfloat16 bit patterns. Conversions: kvsieve/float16.h.
struct F16 {
  std::uint16_t bits;
};
struct BF16 {
  std::uint16_t bits;
};

enum class ElementType : std::uint8_t { kF32, kF16, kBF16 };

constexpr std::size_t ElementBytes(ElementType type) { return type == ElementType::kF32 ? 4 : 2; }
std::string_view ElementName(ElementType type);  // "f32", "f16", "bf16"

template <class T>
constexpr ElementType ElementTypeOf();
template <>
constexpr ElementType ElementTypeOf<float>() {
  return ElementType::kF32;
}
template <>
constexpr ElementType ElementTypeOf<F16>() {
  return ElementType::kF16;
}
template <>
constexpr ElementType ElementTypeOf<BF16>() {
  return ElementType::kBF16;
}

// Strided, non-owning rows of one head: [rows, dim], elements of a row contiguous. The stride is
// in elements.
template <class T>
struct RowsView {
  const T* data = nullptr;
  std::int64_t rows = 0;
  int dim = 0;
  std::int64_t row_stride = 0;

  const T* row(std::int64_t r) const { return data + r * row_stride; }
};

// Strided, non-owning rows of all heads of a layer: [heads, rows, dim] in any order of the first
// two, elements of a row contiguous. [T,H,D] has head_stride D and row_stride H*D; [H,T,D] has
// head_stride T*D and row_stride D. Strides are in elements.
struct HeadsView {
  const void* data = nullptr;
  ElementType type = ElementType::kF32;
  int heads = 0;
  std::int64_t rows = 0;
  int dim = 0;
  std::int64_t head_stride = 0;
  std::int64_t row_stride = 0;

  template <class T>
  static HeadsView HeadMajor(const T* data, int heads, std::int64_t rows, int dim) {
    return {data, ElementTypeOf<T>(), heads, rows, dim, rows * dim, dim};
  }
  template <class T>
  static HeadsView TokenMajor(const T* data, int heads, std::int64_t rows, int dim) {
    return {data, ElementTypeOf<T>(), heads, rows, dim, dim, std::int64_t{heads} * dim};
  }

  const void* row(int head, std::int64_t r) const {
    return static_cast<const std::byte*>(data) +
           (head * head_stride + r * row_stride) * static_cast<std::int64_t>(ElementBytes(type));
  }
  // Rows [first, first + count) of every head.
  HeadsView Slice(std::int64_t first, std::int64_t count) const {
    HeadsView view = *this;
    if (count > 0) view.data = row(0, first);
    view.rows = count;
    return view;
  }
};

// Shape of one attention layer. One model may mix shapes.
struct LayerSpec {
  int layer = 0;  // the model's own number of this layer
  int query_heads = 0;
  int kv_heads = 0;
  int key_dim = 0;
  int value_dim = 0;
  float scale = 0.0F;                // multiplies q.k
  float softcap = 0.0F;              // logits become softcap * tanh(logit / softcap); 0 = none
  int sliding_window = 0;            // rows a query sees, itself included; 0 = all
  bool value_is_key_prefix = false;  // MLA: V is the first value_dim elements of K

  int group() const { return query_heads / kv_heads; }  // query heads that share a KV head

  // Positive counts, query_heads % kv_heads == 0, dims <= 4096, scale finite and > 0.
  Status Validate() const;
};

// Rows of one head, wherever they lie (staging, encoded blocks, tail, a mapped file), read in
// the original basis. The only thing that evict sees of K and V.
class RowSource {
 public:
  virtual ~RowSource() = default;
  virtual std::int64_t rows() const = 0;
  virtual int dim() const = 0;

  // Writes rows [first, first + count) as f32 [count, dim]. Precondition: 0 <= count <=
  // kBlockRows, first + count <= rows().
  virtual void ReadRows(RowIndex first, int count, float* out) const = 0;

  // All rows in place, while they are still row-major; type says what `data` points to.
  struct RowMajor {
    const void* data;
    ElementType type;
    std::int64_t row_stride;  // elements
  };
  virtual std::optional<RowMajor> TryView() const { return std::nullopt; }

  // No element is larger in magnitude; Inf when that is not known without reading them.
  virtual float LargestMagnitude() const { return std::numeric_limits<float>::infinity(); }
};

}  // namespace kvsieve

#endif  // KVSIEVE_TYPES_H_

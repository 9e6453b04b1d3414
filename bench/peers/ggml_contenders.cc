// ggml's CPU backend behind the interface of a contender: flash_attn_ext of one token, without a
// mask (its engine passes one, which costs it a little more).
#include <ggml-cpu.h>
#include <ggml.h>

#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "bench/peers/contender.h"
#include "bench/pure_read.h"
#include "kvsieve/float16.h"

namespace kvsieve::bench {
namespace {

ggml_type TypeOf(GgmlType type) {
  switch (type) {
    case GgmlType::kF16:
      return GGML_TYPE_F16;
    case GgmlType::kQ8:
      return GGML_TYPE_Q8_0;
    case GgmlType::kQ4:
      return GGML_TYPE_Q4_0;
  }
  return GGML_TYPE_F16;
}

// Rows [kKvHeads, rows] of one side, encoded, in either layout.
class Rows {
 public:
  Rows(ggml_type type, GgmlLayout layout, const F16* from, std::int64_t rows)
      : type_(type),
        row_bytes_(ggml_row_size(type, kDim)),
        row_stride_(layout == GgmlLayout::kHeadMajor ? row_bytes_ : row_bytes_ * kKvHeads),
        head_stride_(layout == GgmlLayout::kHeadMajor ? row_bytes_ * static_cast<std::size_t>(rows)
                                                      : row_bytes_),
        rows_(rows),
        buffer_(row_bytes_ * static_cast<std::size_t>(rows) * kKvHeads) {
    const auto encode = ggml_get_type_traits_cpu(type)->from_float;
    std::array<float, kDim> row;
    for (int head = 0; head < kKvHeads; ++head) {
      for (std::int64_t r = 0; r < rows; ++r) {
        ConvertToF32(from + (head * rows + r) * kDim, ElementType::kF16, kDim, row.data());
        encode(row.data(), At(head, r), kDim);
      }
    }
  }

  // Shape [kDim, rows, kKvHeads] in ggml's order, without a copy.
  ggml_tensor* Tensor(ggml_context* context) {
    ggml_tensor* tensor = ggml_new_tensor_3d(context, type_, kDim, rows_, kKvHeads);
    tensor->nb[1] = row_stride_;
    tensor->nb[2] = head_stride_;
    tensor->nb[3] = buffer_.bytes();
    tensor->data = buffer_.data();
    return tensor;
  }

  std::vector<float> Decode(int head) const {
    std::vector<float> decoded(static_cast<std::size_t>(rows_ * kDim));
    const auto decode = ggml_get_type_traits(type_)->to_float;
    for (std::int64_t r = 0; r < rows_; ++r) decode(At(head, r), decoded.data() + r * kDim, kDim);
    return decoded;
  }

  const HugeBuffer& buffer() const { return buffer_; }

 private:
  std::size_t Offset(int head, std::int64_t row) const {
    return static_cast<std::size_t>(head) * head_stride_ +
           static_cast<std::size_t>(row) * row_stride_;
  }
  std::byte* At(int head, std::int64_t row) { return buffer_.data() + Offset(head, row); }
  const std::byte* At(int head, std::int64_t row) const {
    return buffer_.data() + Offset(head, row);
  }

  ggml_type type_;
  std::size_t row_bytes_;
  std::size_t row_stride_;
  std::size_t head_stride_;
  std::int64_t rows_;
  HugeBuffer buffer_;
};

struct FreeContext {
  void operator()(ggml_context* context) const { ggml_free(context); }
};

class GgmlContender final : public Contender {
 public:
  GgmlContender(GgmlType type, GgmlLayout layout, const LayerData& data)
      : type_(type),
        context_(
            ggml_init({.mem_size = std::size_t{1} << 20, .mem_buffer = nullptr, .no_alloc = true})),
        queries_(data.queries()),
        out_(kQueryHeads * kDim),
        keys_(TypeOf(type), layout, data.keys(), data.rows()),
        values_(TypeOf(type), layout, data.values(), data.rows()) {
    ggml_tensor* q = ggml_new_tensor_3d(context_.get(), GGML_TYPE_F32, kDim, 1, kQueryHeads);
    q->data = queries_.data();
    ggml_tensor* attention =
        ggml_flash_attn_ext(context_.get(), q, keys_.Tensor(context_.get()),
                            values_.Tensor(context_.get()), nullptr, kScale, 0.0F, 0.0F);
    attention->data = out_.data();  // [kDim, kQueryHeads, 1] in ggml's order
    graph_ = ggml_new_graph(context_.get());
    ggml_build_forward_expand(graph_, attention);
    plan_ = ggml_graph_plan(graph_, 1, nullptr);
    work_.resize(plan_.work_size);
    plan_.work_data = work_.data();
  }

  void Step(float* out) override {
    if (ggml_graph_compute(graph_, &plan_) != GGML_STATUS_SUCCESS) Fail("ggml cannot compute");
    std::memcpy(out, out_.data(), out_.size() * sizeof(float));
  }
  std::uint64_t Read() const override {
    return PureRead(keys_.buffer().data(), keys_.buffer().bytes()) +
           PureRead(values_.buffer().data(), values_.buffer().bytes());
  }
  std::size_t bytes() const override { return keys_.buffer().bytes() + values_.buffer().bytes(); }
  HeadRows Decode(int kv_head) const override {
    return {keys_.Decode(kv_head), values_.Decode(kv_head)};
  }

  // Queries become f16, and weighted f16 values are summed in f16; or queries become q8_0: blocks
  // of 32, 127 steps, an f16 scale.
  Rounding rounding() const override {
    Rounding rounding;
    rounding.query_relative = 0x1p-11 / std::sqrt(3.0);
    rounding.f16_sums = type_ == GgmlType::kF16;
    if (type_ != GgmlType::kF16) {
      rounding.query_step = 1 / (127 * std::sqrt(12.0));
      rounding.query_block = 32;
    }
    return rounding;
  }

 private:
  GgmlType type_;
  std::unique_ptr<ggml_context, FreeContext> context_;
  std::vector<float> queries_;
  std::vector<float> out_;
  Rows keys_;
  Rows values_;
  ggml_cgraph* graph_ = nullptr;
  ggml_cplan plan_{};
  std::vector<std::uint8_t> work_;
};

class GgmlEncoder final : public RowEncoder {
 public:
  explicit GgmlEncoder(GgmlType type)
      : encode_(ggml_get_type_traits_cpu(TypeOf(type))->from_float),
        row_bytes_(ggml_row_size(TypeOf(type), kDim)),
        block_(row_bytes_ * kBlockRows) {}
  void Encode(const float* rows, int count) override {
    for (int r = 0; r < count; ++r) {
      encode_(rows + r * kDim, block_.data() + static_cast<std::size_t>(r) * row_bytes_, kDim);
    }
  }

 private:
  ggml_from_float_t encode_;
  std::size_t row_bytes_;
  HugeBuffer block_;
};

}  // namespace

std::unique_ptr<Contender> MakeGgml(GgmlType type, GgmlLayout layout, const LayerData& data) {
  ggml_cpu_init();  // its tables; no work the second time
  return std::make_unique<GgmlContender>(type, layout, data);
}

std::unique_ptr<RowEncoder> MakeGgmlEncoder(GgmlType type) {
  ggml_cpu_init();
  return std::make_unique<GgmlEncoder>(type);
}

}  // namespace kvsieve::bench

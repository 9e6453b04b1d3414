#include "lib/softmax.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/softmax.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kvsieve/simd/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvsieve {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

constexpr float kMinusInf = -__builtin_inff();

// cap * tanh(y), y = x / cap, through exp(-2|y|) so that only exp of non-positive numbers is
// needed. That cancels for small y; there tanh(y) / y = 1 - y^2/3 + 2y^4/15 - 17y^6/315, off by
// less than 62/2835 0.2^8 = 6e-8, and a cap that is far away leaves x as it is.
HWY_INLINE V SoftCap(D d, V x, V cap, V inverse_cap) {
  const V y = hn::Mul(x, inverse_cap);
  const V square = hn::Mul(y, y);
  V near = hn::MulAdd(square, hn::Set(d, -17.0F / 315.0F), hn::Set(d, 2.0F / 15.0F));
  near = hn::MulAdd(square, near, hn::Set(d, -1.0F / 3.0F));
  near = hn::Mul(x, hn::MulAdd(square, near, hn::Set(d, 1.0F)));
  const V e = ExpNonPositive(d, hn::Mul(hn::Abs(y), hn::Set(d, -2.0F)));
  const V one = hn::Set(d, 1.0F);
  const V magnitude = hn::Div(hn::Sub(one, e), hn::Add(one, e));
  const V far = hn::Mul(cap, hn::CopySignToAbs(magnitude, x));
  return hn::IfThenElse(hn::Lt(square, hn::Set(d, 0.2F * 0.2F)), near, far);
}

// Adds the bias, caps, and blanks rows from `rows` on; returns the maximum.
HWY_INLINE float PrepareLogits(float* logits, float bias, int rows, float softcap) {
  const D d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const V blank = hn::Set(d, kMinusInf);
  const V cap = hn::Set(d, softcap);
  const V inverse_cap = hn::Set(d, softcap > 0 ? 1.0F / softcap : 0.0F);
  V max = blank;
  for (int r = 0; r < kBlockRows; r += lanes) {
    V x = blank;
    if (r < rows) {
      x = hn::Add(hn::Load(d, logits + r), hn::Set(d, bias));
      // A row that is not visible is -inf and must stay so.
      if (softcap > 0) x = hn::IfThenElse(hn::Eq(x, blank), x, SoftCap(d, x, cap, inverse_cap));
      if (rows - r < lanes) {
        x = hn::IfThenElse(hn::FirstN(d, static_cast<std::size_t>(rows - r)), x, blank);
      }
    }
    hn::Store(x, d, logits + r);
    max = hn::Max(max, x);
  }
  return hn::GetLane(hn::MaxOfLanes(d, max));
}

// logits become exp(logit - max); returns their sum.
HWY_INLINE float Exponentiate(float* logits, float max) {
  const D d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const V shift = hn::Set(d, max);
  V sum = hn::Zero(d);
  for (int r = 0; r < kBlockRows; r += lanes) {
    const V w = ExpNonPositive(d, hn::Sub(hn::Load(d, logits + r), shift));
    hn::Store(w, d, logits + r);
    sum = hn::Add(sum, w);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

HWY_INLINE void Scale(float* values, int count, float factor) {
  const hn::CappedTag<float, 16> d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  for (int i = 0; i < count; i += lanes) {
    hn::Store(hn::Mul(hn::Load(d, values + i), hn::Set(d, factor)), d, values + i);
  }
}

void UpdateHead(float* logits, float bias, int rows, float softcap, const SoftmaxState& state,
                int head) {
  const D d;
  const float block_max = PrepareLogits(logits, bias, rows, softcap);
  float& max = state.max[head];
  if (block_max > max) {
    const float alpha = hn::GetLane(ExpNonPositive(d, hn::Set(d, max - block_max)));
    state.sum[head] *= alpha;
    Scale(state.acc + head * state.acc_stride, state.acc_stride, alpha);
    max = block_max;
  }
  // Nothing visible so far: any finite shift makes all weights 0.
  state.sum[head] += Exponentiate(logits, max == kMinusInf ? 0.0F : max);
}

void UpdateAll(float* logits, const float* bias, int rows, std::uint64_t visible, float softcap,
               const SoftmaxState& state) {
  const std::uint64_t all = rows == kBlockRows ? ~std::uint64_t{0} : (std::uint64_t{1} << rows) - 1;
  for (int head = 0; head < state.heads; ++head) {
    float* row_logits = logits + head * kBlockRows;
    if ((visible & all) != all) {
      for (int r = 0; r < rows; ++r) {
        if ((visible >> r & 1) == 0) row_logits[r] = kMinusInf;
      }
    }
    UpdateHead(row_logits, bias[head], rows, softcap, state, head);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace kvsieve
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvsieve {

HWY_EXPORT(UpdateAll);

void UpdateSoftmax(float* logits, const float* bias, int rows, std::uint64_t visible, float softcap,
                   const SoftmaxState& state) {
  HWY_DYNAMIC_DISPATCH(UpdateAll)(logits, bias, rows, visible, softcap, state);
}

}  // namespace kvsieve
#endif  // HWY_ONCE

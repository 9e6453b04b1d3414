#include "evict/smoothing.h"

#include <algorithm>
#include <deque>
#include <string_view>

#include "kvsieve/str_cat.h"

namespace kvsieve::evict {
namespace {

constexpr std::string_view kPadNames[] = {"exclude", "zero"};

// Calls body(first, last, shift) for each shift of the window: rows [first, last) have a neighbour
// at row + shift. Row-wise inner loops over whole spans are what compilers vectorize.
template <class Body>
void ForEachShift(int width, std::int64_t rows, Body&& body) {
  const std::int64_t reach = std::min<std::int64_t>(width / 2, rows);
  for (std::int64_t shift = -reach; shift <= reach; ++shift) {
    body(std::max<std::int64_t>(0, -shift), std::min(rows, rows - shift), shift);
  }
}

void SmoothMax(const Pool& pool, std::span<const float> raw, std::span<float> smoothed) {
  const auto rows = static_cast<std::int64_t>(raw.size());
  std::copy(raw.begin(), raw.end(), smoothed.begin());
  ForEachShift(pool.width, rows, [&](std::int64_t first, std::int64_t last, std::int64_t shift) {
    for (std::int64_t i = first; i < last; ++i) {
      const float neighbour = raw[i + shift];
      smoothed[i] = neighbour > smoothed[i] ? neighbour : smoothed[i];
    }
  });
  if (pool.pad == PoolPad::kExclude) return;
  for (std::int64_t i = 0; i < rows; ++i) {
    const bool at_edge = i < pool.width / 2 || i >= rows - pool.width / 2;
    if (at_edge && smoothed[i] < 0) smoothed[i] = 0;
  }
}

void SmoothAverage(const Pool& pool, std::span<const float> raw, std::span<float> smoothed) {
  const auto rows = static_cast<std::int64_t>(raw.size());
  std::fill(smoothed.begin(), smoothed.end(), 0.0F);
  ForEachShift(pool.width, rows, [&](std::int64_t first, std::int64_t last, std::int64_t shift) {
    for (std::int64_t i = first; i < last; ++i) smoothed[i] += raw[i + shift];
  });
  const std::int64_t reach = pool.width / 2;
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t inside = std::min(i, reach) + 1 + std::min(rows - 1 - i, reach);
    const std::int64_t count = pool.pad == PoolPad::kZero ? pool.width : inside;
    smoothed[i] /= static_cast<float>(count);
  }
}

}  // namespace

std::string Pool::Canonical() const {
  if (kind == PoolKind::kNone) return "pool=none";
  return StrCat("pool=", kind == PoolKind::kMax ? "max:" : "avg:", width,
                ",pool_pad=", kPadNames[static_cast<int>(pad)]);
}

void ReadPool(ArgReader& args, Pool* pool) {
  if (const SpecArg* arg = args.Raw("pool")) {
    const std::string_view text = arg->value;
    const bool by_max = text.starts_with("max:");
    if (!arg->call.empty() || (!by_max && !text.starts_with("avg:") && text != "none")) {
      args.Fail(arg->value_column,
                StrCat("option pool: '", text, "' is none of max:7, avg:5, none"));
      return;
    }
    pool->kind = text == "none" ? PoolKind::kNone : by_max ? PoolKind::kMax : PoolKind::kAverage;
    if (pool->kind != PoolKind::kNone) {
      const Result<std::int64_t> width = ParseInt(text.substr(4));
      if (!width.ok() || *width < 1 || *width > kMaxPoolWidth || *width % 2 == 0) {
        args.Fail(arg->value_column, StrCat("option pool: '", text.substr(4),
                                            "' is not an odd number in [1, ", kMaxPoolWidth, "]"));
        return;
      }
      pool->width = static_cast<int>(*width);
    }
  }
  const SpecArg* pad = args.Raw("pool_pad");
  if (pad != nullptr && pool->kind == PoolKind::kNone) {
    return args.Fail(pad->key_column, "option pool_pad means nothing with pool=none");
  }
  int index = static_cast<int>(pool->pad);
  args.Choice("pool_pad", kPadNames, &index);
  pool->pad = static_cast<PoolPad>(index);
}

void Smooth(const Pool& pool, std::span<const float> raw, std::span<float> smoothed) {
  switch (pool.kind) {
    case PoolKind::kNone:
      std::copy(raw.begin(), raw.end(), smoothed.begin());
      return;
    case PoolKind::kMax:
      return SmoothMax(pool, raw, smoothed);
    case PoolKind::kAverage:
      return SmoothAverage(pool, raw, smoothed);
  }
}

// Rows that one behind them passes will never be the largest again, so that the others, oldest
// first, fall in value. Each row comes and goes once.
void TrailingMax(std::span<const float> values, std::int64_t reach, std::span<float> out) {
  std::deque<std::int64_t> falling;
  for (std::int64_t i = 0; i < std::ssize(values); ++i) {
    if (!falling.empty() && falling.front() < i - reach) falling.pop_front();
    out[i] = falling.empty() ? 0.0F : values[falling.front()];
    while (!falling.empty() && values[falling.back()] <= values[i]) falling.pop_back();
    falling.push_back(i);
  }
}

}  // namespace kvsieve::evict

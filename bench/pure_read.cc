#include "bench/pure_read.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/pure_read.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kvsieve::bench {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

std::uint64_t ReadWords(const std::uint8_t* data, std::size_t bytes) {
  const hn::ScalableTag<std::uint64_t> d;
  const std::size_t step = hn::Lanes(d) * 8;
  auto a = hn::Zero(d), b = hn::Zero(d), c = hn::Zero(d), e = hn::Zero(d);
  for (std::size_t at = 0; at < bytes; at += 4 * step) {
    a = hn::Add(a, hn::LoadU(d, reinterpret_cast<const std::uint64_t*>(data + at)));
    b = hn::Add(b, hn::LoadU(d, reinterpret_cast<const std::uint64_t*>(data + at + step)));
    c = hn::Add(c, hn::LoadU(d, reinterpret_cast<const std::uint64_t*>(data + at + 2 * step)));
    e = hn::Add(e, hn::LoadU(d, reinterpret_cast<const std::uint64_t*>(data + at + 3 * step)));
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(a, b), hn::Add(c, e))));
}

}  // namespace HWY_NAMESPACE
}  // namespace kvsieve::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvsieve::bench {

HWY_EXPORT(ReadWords);

std::uint64_t PureRead(const void* data, std::size_t bytes) {
  return HWY_DYNAMIC_DISPATCH(ReadWords)(static_cast<const std::uint8_t*>(data), bytes / 256 * 256);
}

}  // namespace kvsieve::bench
#endif  // HWY_ONCE

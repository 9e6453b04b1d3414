#include "kvsieve/float16.h"

#include <cstring>

namespace kvsieve {
namespace {

template <class T>
void Convert(const void* from, std::int64_t count, float* to) {
  const T* source = static_cast<const T*>(from);
  for (std::int64_t i = 0; i < count; ++i) to[i] = ToFloat(source[i]);
}

}  // namespace

void ConvertToF32(const void* from, ElementType type, std::int64_t count, float* to) {
  switch (type) {
    case ElementType::kF32:
      std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
      return;
    case ElementType::kF16:
      return Convert<F16>(from, count, to);
    case ElementType::kBF16:
      return Convert<BF16>(from, count, to);
  }
}

}  // namespace kvsieve

// Compiled with -mavx2 -mfma; called only when ActiveTarget() says that the CPU has them.
#include "quant/portable-inl.h"

namespace kvsieve::quant {

extern const PortableKernels kPortableAvx2 = {ScoreOn<xsimd::fma3<xsimd::avx2>>,
                                              AccumulateOn<xsimd::fma3<xsimd::avx2>>};

}  // namespace kvsieve::quant

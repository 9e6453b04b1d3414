// Compiled with -mavx512f and its usual companions; called only when ActiveTarget() says that the
// CPU has them.
#include "quant/portable-inl.h"

namespace kvsieve::quant {

extern const PortableKernels kPortableAvx512 = {ScoreOn<xsimd::avx512bw>,
                                                AccumulateOn<xsimd::avx512bw>};

}  // namespace kvsieve::quant

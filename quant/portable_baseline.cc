#include "quant/portable-inl.h"

namespace kvsieve::quant {

extern const PortableKernels kPortableBaseline = {ScoreOn<xsimd::default_arch>,
                                                  AccumulateOn<xsimd::default_arch>};

}  // namespace kvsieve::quant

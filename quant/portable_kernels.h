// The two loops of the portable path, one set per instruction set. Included by files that compile
// with their own -m flags, so it names no library type that other files also instantiate.
#ifndef KVSIEVE_QUANT_PORTABLE_KERNELS_H_
#define KVSIEVE_QUANT_PORTABLE_KERNELS_H_

namespace kvsieve::quant {

// f32 [count, dim], a row every `stride` elements.
struct PortableRows {
  const float* data;
  int count;
  int dim;
  int stride;
};

// q [heads, dim] is dense.
struct PortableKernels {
  void (*score)(const PortableRows& rows, const float* q, int heads, float* logits);
  void (*accumulate)(const PortableRows& rows, const float* weights, int heads, float* acc);
};

extern const PortableKernels kPortableBaseline;
#if defined(__x86_64__) || defined(_M_X64)
extern const PortableKernels kPortableAvx2;
extern const PortableKernels kPortableAvx512;
#endif

}  // namespace kvsieve::quant

#endif  // KVSIEVE_QUANT_PORTABLE_KERNELS_H_

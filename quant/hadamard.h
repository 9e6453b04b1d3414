// The random rotation of `hadamard` and `turbo`: signs first, then the orthonormal Walsh-Hadamard
// transform of each power-of-two block. (Signs after H would not randomise: a constant row stays
// a single spike.)
#ifndef KVSIEVE_QUANT_HADAMARD_H_
#define KVSIEVE_QUANT_HADAMARD_H_

#include <cstdint>
#include <memory>
#include <string>

#include "kvsieve/codec.h"

namespace kvsieve::quant {

// Largest power of two that divides dim.
constexpr int HadamardBlock(int dim) { return dim & -dim; }

// True when dimension j is negated: bit 63 of splitmix64(seed * 2^32 + j).
bool NegatedDim(std::uint64_t seed, int j);

// `canonical` is empty for a rotation that belongs to a codec and has no name in the spec.
std::shared_ptr<const Transform> MakeHadamard(int dim, std::uint64_t seed, std::string canonical);

}  // namespace kvsieve::quant

#endif  // KVSIEVE_QUANT_HADAMARD_H_

#include "quant/hadamard.h"

#include <cmath>
#include <vector>

#include "kvsieve/str_cat.h"
#include "quant/registry.h"
#include "quant/walsh_hadamard.h"

namespace kvsieve::quant {
namespace {

// splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014): the
// output for a generator in state x.
std::uint64_t SplitMix64(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

// y = H D x. The factor 1/sqrt(block) is multiplied in last, so that sums of equal magnitudes stay
// exact as long as f32 holds them.
class HadamardTransform final : public Transform {
 public:
  HadamardTransform(int dim, std::uint64_t seed, std::string canonical)
      : block_(HadamardBlock(dim)),
        ones_(static_cast<std::size_t>(dim), 1.0F),
        signs_(ones_),
        factors_(static_cast<std::size_t>(dim),
                 static_cast<float>(1.0 / std::sqrt(static_cast<double>(block_)))),
        signed_factors_(factors_),
        canonical_(std::move(canonical)) {
    for (int j = 0; j < dim; ++j) {
      if (!NegatedDim(seed, j)) continue;
      signs_[j] = -1.0F;
      signed_factors_[j] = -factors_[j];
    }
  }

  std::string Canonical() const override { return canonical_; }
  Status Learn(const RowSource&, float*) const override { return Status::Ok(); }
  // The length of a block, and what 12 roundings of f32 may add.
  float BoundAfter(float magnitude) const override {
    return magnitude * std::sqrt(static_cast<float>(block_)) * (1 + 0x1p-18F);
  }

  void Apply(const float*, float* rows, int count) const override { Rotate(rows, count); }
  void Invert(const float*, float* rows, int count) const override { RotateBack(rows, count); }
  float ApplyToQuery(const float*, float* q) const override {
    Rotate(q, 1);
    return 0.0F;
  }
  void InvertOutput(const float*, float, float* out) const override { RotateBack(out, 1); }

 private:
  int dim() const { return static_cast<int>(signs_.size()); }
  void Rotate(float* rows, int count) const {
    WalshHadamard({block_, signs_.data(), factors_.data()}, rows, count, dim());
  }
  void RotateBack(float* rows, int count) const {  // H is its own inverse, and so is D
    WalshHadamard({block_, ones_.data(), signed_factors_.data()}, rows, count, dim());
  }

  int block_;
  std::vector<float> ones_;
  std::vector<float> signs_;
  std::vector<float> factors_;
  std::vector<float> signed_factors_;
  std::string canonical_;
};

Result<std::uint64_t> ParseSeed(const SpecCall& call) {
  ArgReader args(call);
  std::uint64_t seed = 0;
  args.UInt64("seed", &seed);
  KVS_RETURN_IF_ERROR(args.Finish());
  return seed;
}

Result<std::string> Outline(const SpecCall& call) {
  KVS_ASSIGN_OR_RETURN(const std::uint64_t seed, ParseSeed(call));
  return StrCat("hadamard(seed=", seed, ")");
}

Result<std::shared_ptr<const Transform>> Make(const SpecCall& call, int dim) {
  KVS_ASSIGN_OR_RETURN(const std::uint64_t seed, ParseSeed(call));
  return MakeHadamard(dim, seed, StrCat("hadamard(seed=", seed, ")"));
}

}  // namespace

bool NegatedDim(std::uint64_t seed, int j) {
  return (SplitMix64((seed << 32) + static_cast<std::uint64_t>(j)) >> 63) != 0;
}

std::shared_ptr<const Transform> MakeHadamard(int dim, std::uint64_t seed, std::string canonical) {
  return std::make_shared<HadamardTransform>(dim, seed, std::move(canonical));
}

extern const TransformEntry kHadamardTransform = {
    {"hadamard", "Random signs, then the orthonormal Walsh-Hadamard transform: spreads outliers.",
     "y = H D x on blocks of the largest power of two that divides dim; D_jj = -1 iff bit 63 of "
     "splitmix64(seed * 2^32 + j) is set; exact for q.k and for sums of v",
     "seed=0"},
    Outline,
    Make,
    /*wants_exact_sinks=*/false,
    /*rotates=*/true};

}  // namespace kvsieve::quant

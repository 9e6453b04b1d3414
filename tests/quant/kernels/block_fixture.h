// Random blocks for kernel tests, with their values in double, in memory that ends at a page the
// process may not touch: reading past the block is a crash.
#ifndef KVSIEVE_TESTS_QUANT_KERNELS_BLOCK_FIXTURE_H_
#define KVSIEVE_TESTS_QUANT_KERNELS_BLOCK_FIXTURE_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "quant/kernels.h"
#include "quant/layout.h"

namespace kvsieve::quant {

// Memory whose last byte is followed by an inaccessible page.
class GuardedMemory {
 public:
  explicit GuardedMemory(std::size_t bytes);
  ~GuardedMemory();
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;
  template <class T = std::uint8_t>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  std::uint8_t* map_ = nullptr;
  std::size_t map_bytes_ = 0;
  std::uint8_t* data_ = nullptr;
};

enum class Format { kHalf, kFp8, kInt8, kNibble, kCodebook, kPlanes, kChannel };
std::string FormatName(Format format);

struct Shape {
  Format format = Format::kHalf;
  Side side = Side::kKey;
  int dim = 0;
  int group = 0;        // ignored by half and fp8
  int bits = 3;         // kPlanes, kChannel: of a code
  int group_rows = 32;  // kChannel
  bool zeros = false;
  HalfType half_type = HalfType::kBF16;
  int capacity_rows = 64;
  int rows = 0;
  float scale = 0.01F;   // about the largest scale
  bool extreme = false;  // all codes at the ends of their range

  std::string Describe() const;
};

class TestBlock {
 public:
  TestBlock(const Shape& shape, std::mt19937& random);

  const KernelBlock& kernel() const { return kernel_; }
  const Shape& shape() const { return shape_; }
  // Of row and dim: what the code alone stands for, its scale and zero point; the value is
  // scale * code + zero.
  double Code(int row, int d) const;
  double Scale(int row, int d) const;
  double Zero(int row, int d) const;
  double Value(int row, int d) const { return Scale(row, d) * Code(row, d) + Zero(row, d); }

 private:
  void FillCodes(std::mt19937& random);
  void SetCode(int row, int d, unsigned code);
  unsigned CodeOf(int row, int d) const;
  void FillScales(std::mt19937& random);
  // Of the scale of a row and dim in its plane, and of elements in a plane.
  int ScaleAt(int row, int d) const;
  int PlaneElements() const;

  Shape shape_;
  BlockLayout layout_;
  Codebook codebook_;
  GuardedMemory memory_;
  KernelBlock kernel_;
};

}  // namespace kvsieve::quant

#endif  // KVSIEVE_TESTS_QUANT_KERNELS_BLOCK_FIXTURE_H_

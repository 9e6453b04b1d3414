// One store of the layer that can do a decode step: kvsieve's caches and ggml's tensors.
#ifndef KVSIEVE_BENCH_PEERS_CONTENDER_H_
#define KVSIEVE_BENCH_PEERS_CONTENDER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "bench/peers/exact_attention.h"
#include "bench/peers/layer_data.h"
#include "kvsieve/codec.h"

namespace kvsieve::bench {

class Contender {
 public:
  virtual ~Contender() = default;
  // out: f32 [kQueryHeads, kDim]. One thread.
  virtual void Step(float* out) = 0;
  // Reads all rows as stored, and does nothing with them.
  virtual std::uint64_t Read() const = 0;
  virtual std::size_t bytes() const = 0;
  virtual HeadRows Decode(int kv_head) const = 0;
  virtual Rounding rounding() const = 0;
};

// spec: a pipeline with or without an evictor.
std::unique_ptr<Contender> MakeKvsieve(std::string_view spec, const LayerData& data);

enum class GgmlType { kF16, kQ8, kQ4 };

// Encoded rows of both layouts share no memory. kHeadMajor: the rows of a head lie together, which
// is kind to ggml; kTokenMajor: one row holds all heads, as its engine stores them.
enum class GgmlLayout { kHeadMajor, kTokenMajor };

std::unique_ptr<Contender> MakeGgml(GgmlType type, GgmlLayout layout, const LayerData& data);

// Encodes f32 [rows, kDim] as a contender's store would; for the clock alone.
class RowEncoder {
 public:
  virtual ~RowEncoder() = default;
  virtual void Encode(const float* rows, int count) = 0;  // at most kBlockRows
};

std::unique_ptr<RowEncoder> MakeGgmlEncoder(GgmlType type);
// store: without transforms, such as kv=int4(group=row).
std::unique_ptr<RowEncoder> MakeKvsieveEncoder(std::string_view store, Side side);

}  // namespace kvsieve::bench

#endif  // KVSIEVE_BENCH_PEERS_CONTENDER_H_

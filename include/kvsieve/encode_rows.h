// Rows of one head encoded without a cache, for what moves KV rows from one process to another:
// stateless, into memory of the caller's. Not for an engine that attends: that is Cache.
//
//   auto pipeline = Pipeline::Parse("none | k=center+turbo4, v=int4");
//   auto store = BuildStore(pipeline->main_store(), layer);
//   const Chain& chain = *store->key;
//   auto size = EncodedSize(chain, n);
//   std::vector<float> stats(size->stats_floats);
//   std::vector<std::uint8_t> bytes(size->bytes);
//   EncodeRowsTo(chain, HeadsView::HeadMajor(rows, 1, n, dim), stats, bytes);   // sender
//   DecodeRowsFrom(chain, n, stats, bytes, rows_again);                           // receiver
//
// Codes and scales lie together as in a cache, block after block:
//
//   bytes  [ 64 rows | 64 rows | ... | the rest, with room for whole panels and groups ]
//   stats  what the chain learnt of these rows, f32: without it the bytes mean nothing
//
// Both are the same on every target. A span that is null or of another size than EncodedSize says
// is an error with both numbers: bytes of one chain are not read by another by mistake.
#ifndef KVSIEVE_ENCODE_ROWS_H_
#define KVSIEVE_ENCODE_ROWS_H_

#include <cstdint>
#include <span>

#include "kvsieve/codec.h"
#include "kvsieve/result.h"
#include "kvsieve/types.h"

namespace kvsieve {

struct EncodedRowsSize {
  std::int64_t bytes = 0;
  std::int64_t stats_floats = 0;
};

// What `rows` rows of one head take. Fails for a negative number and for more rows than there are
// positions.
Result<EncodedRowsSize> EncodedSize(const Chain& chain, std::int64_t rows);

// rows: [1, n, chain.dim()] of any element type and row stride. Writes all of `stats` and `bytes`
// (bytes of room are zero), which need no alignment. Returns how many elements lay beyond the
// codec's range and were stored as its end: fp8 beyond 448. A row that the chain cannot hold, NaN
// and Inf included, is an error that names it, and nothing is written.
Result<std::int64_t> EncodeRowsTo(const Chain& chain, const HeadsView& rows, std::span<float> stats,
                                  std::span<std::uint8_t> bytes);

// rows: f32 [row_count, chain.dim()], in the original basis. The bytes themselves are not checked:
// a checksum is the transport's.
Status DecodeRowsFrom(const Chain& chain, std::int64_t row_count, std::span<const float> stats,
                      std::span<const std::uint8_t> bytes, std::span<float> rows);

}  // namespace kvsieve

#endif  // KVSIEVE_ENCODE_ROWS_H_

// The compressed KV cache of one sequence: all layers, one writer.
//
//   auto cache = Cache::Create(pipeline, layers, {});
//   for each chunk, each layer:  cache->Append(i, Phase::kPrefill, k, v, positions);
//                                cache->Observe(i, positions, q);
//   cache->FinishPrefill();                                  // evict, then encode
//   each step, each layer:       cache->Append(i, Phase::kDecode, k, v, position);
//                                cache->Attend(i, position, q, {}, scratch, out, lse);
//
// A call that fails leaves the cache as it was; a decode append may keep memory it had reserved.
// Calls that write (non-const) must not overlap any other call on the same cache; const calls may
// run concurrently.
#ifndef KVSIEVE_CACHE_H_
#define KVSIEVE_CACHE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvsieve/allocator.h"
#include "kvsieve/byte_report.h"
#include "kvsieve/byte_stream.h"
#include "kvsieve/parallel.h"
#include "kvsieve/pipeline.h"
#include "kvsieve/result.h"
#include "kvsieve/types.h"

namespace kvsieve {

// What the rows of an Append are. Never guessed from their number.
enum class Phase : std::uint8_t {
  kPrefill,
  kDecode,
  kVerify,  // a draft's: open until Cache::Accept or Rollback, and counted by no report
};

// Where rows appended after FinishPrefill go.
enum class DecodeRows : std::uint8_t {
  kStored,  // through the tail into tier 0, as an engine would
  kExact,   // kept in source precision for ever: judges the prompt's compression alone
};

// Whether a trim may go back behind rows that were evicted.
enum class Trim : std::uint8_t {
  kExact,         // no: kNotExact below oldest_exact_position()
  kAllowInexact,  // yes; rows that were evicted do not come back
};

struct CacheOptions {
  Allocator* allocator = nullptr;  // null: DefaultAllocator(). Must outlive the cache.
  Parallel* parallel = nullptr;    // null: serial. Used by FinishPrefill. Must outlive the cache.
  DecodeRows decode_rows = DecodeRows::kStored;
};

struct AttendParams {
  // Each replaces the layer's own value when set.
  std::optional<float> scale;
  std::optional<float> softcap;
  std::optional<int> sliding_window;
  // [query_heads], finite: a logit that each head has learnt and that takes a share of the softmax
  // without a value, as gpt-oss has. Neither scaled nor softcapped. Empty: none.
  std::span<const float> sink_logits;
  Parallel* parallel = nullptr;  // null: serial
};

// Temporary memory of Attend, reusable; grown on demand where none is lent. One per concurrent
// call.
class AttendScratch {
 public:
  AttendScratch();
  // Uses `memory` alone, which outlives it: a call that takes more than Cache::AttendScratchBytes
  // says there is, is kOutOfMemory.
  explicit AttendScratch(std::span<std::byte> memory);
  ~AttendScratch();
  AttendScratch(AttendScratch&&) noexcept;
  AttendScratch& operator=(AttendScratch&&) noexcept;
  std::int64_t bytes() const;

 private:
  friend class Cache;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// What one store of a layer holds, over all heads: rows and bytes, nothing about tokens seen.
struct StoreReport {
  std::string store;  // "k=..., v=..."; "exact" for the rows kept in source precision
  ByteReport bytes;
};

// What one layer asked for and got.
struct LayerReport {
  int layer = 0;  // the model's number
  ByteReport bytes;
  std::vector<ByteReport> heads;  // per KV head; layer-wide memory is in `bytes` only
  std::vector<StoreReport>
      stores;                     // after FinishPrefill: exact rows, then each tier; all of `heads`
  std::string requested;          // canonical evictor and store of this layer
  std::string applied;            // the same; "none | ..." or "sliding window | ..." when nothing
                                  // was evicted by score
  std::string key_path;           // kernel path of K: fused, portable, reference; with tiers that
  std::string value_path;         // differ "fused/portable"
  std::int64_t demoted_rows = 0;  // moved to a colder store during decode (demote=yes), so far
  std::string note;               // why something did not run; empty otherwise
};

class Cache {
 public:
  // Fails when a chain cannot be built for a layer's dimensions, naming the layer.
  static Result<Cache> Create(std::shared_ptr<const Pipeline> pipeline,
                              std::vector<LayerSpec> layers, const CacheOptions& options);
  // A cache that holds the same and goes on by itself, with the same pipeline, allocator and
  // workers: for beams of a search, or requests that share a prefix. Full blocks of encoded rows
  // are shared until each holder has dropped them, and never written; the rest is copied. Forks may
  // be used in different threads, each with its one writer; the allocator is then called from all
  // of them. Asks the allocator, so it must not overlap other calls that do
  // (kvsieve/allocator.h).
  Result<Cache> Fork() const;
  // A cache as Save wrote it, whose pipeline and layers are read from the state. Errors as of Load.
  static Result<Cache> FromState(ByteSource& source, std::optional<std::string_view> identity,
                                 const CacheOptions& options);
  ~Cache();
  Cache(Cache&&) noexcept;
  Cache& operator=(Cache&&) noexcept;

  // -- writing ----------------------------------------------------------------------------------

  // Appends rows of one layer. keys [kv_heads, n, key_dim], after RoPE, values [kv_heads, n,
  // value_dim] (empty for an MLA layer), positions [n], increasing and past the layer's last.
  // `layer_index` counts the layers given to Create. Before FinishPrefill only kPrefill is
  // accepted, afterwards kVerify and, while no verify rows are open in the layer, kDecode.
  Status Append(int layer_index, Phase phase, const HeadsView& keys, const HeadsView& values,
                std::span<const TokenPos> positions);

  // Keeps the last post-RoPE, unscaled queries, as many as the scorer needs (Evictor::needs):
  // [query_heads, n, key_dim]. Independent of how the prompt was cut. After
  // FinishPrefill only with schedule=every(n).
  Status Observe(int layer_index, std::span<const TokenPos> positions, const HeadsView& queries);

  // Scores for the evict stage `external` at the layer's next eviction, which forgets them: one per
  // KV head and row that it will rank, [kv_heads, rows], head by head in order of position; higher
  // stays. The numbers are the caller's and must stay valid until then.
  Status SetExternalScores(int layer_index, std::span<const float> scores);

  // Evicts, then encodes what stays. Everything is decided, then all memory is reserved, then
  // layer by layer committed and its staging freed; only the first two can fail, and then nothing
  // has changed. `scratch_limit_bytes` bounds scoring (0 = one query head per worker).
  Status FinishPrefill(std::int64_t scratch_limit_bytes = 0);

  // Drops what the pipeline's schedule says is due in this layer; call it after the attention of a
  // chunk or step, for rows that leave are gone for the next one. schedule=per_chunk: selects again
  // over the rows kept so far and the new chunk; every(n): over the stored rows, once n tokens came
  // since the last time; once: nothing. Rows that stay are moved, never encoded again, but for
  // those that demote=yes sends to colder stores. While verify rows are open nothing is dropped;
  // what was due then is due at the next call.
  Status Evict(int layer_index);

  // Takes back the tokens at `position` and behind it, in every layer: their rows, and the queries
  // observed there. next_position() becomes `position` (below 0 counts as 0); the phase stays.
  // Returns how many tokens went, kept rows or not: 0 when none is that far. Below
  // oldest_exact_position() it is kNotExact and nothing changes, unless inexact is allowed: then
  // rows that were evicted, or fell out of a window, stay away, and exactness is judged against
  // what is left. Rows that stay keep their bits. What the stores learnt stays, and a row that left
  // the exact tail stays encoded: once as many tokens have come again as went, tail and queries are
  // those of a cache that never saw the ones taken back. With no tail and nothing learnt all rows
  // are, at once. Memory is given back in whole blocks; the rest is reserve. Scores handed in are
  // forgotten; schedule=every(n) counts back with the tokens. Verify rows in front of `position`
  // stay open; taking them back is always exact, also where layers hold different numbers of them.
  Result<std::int64_t> TrimToPosition(TokenPos position, Trim trim = Trim::kExact);

  // Back to the state after Create; all row memory is given back. ReserveSpeculative's n stays.
  void Clear();

  // Replaces all of this by a cache that Save wrote; calls then give, bit for bit, what they would
  // have given there. Pipeline, layers and decode_rows must be the same as there, and `identity`
  // what Save was given (nullopt: whatever it was). The source must end with the state. Everything
  // is checked before anything is replaced, so until then both are in memory. A failure names what
  // is wrong and where, and leaves the cache as it was.
  Status Load(ByteSource& source, std::optional<std::string_view> identity);

  // -- drafts ------------------------------------------------------------------------------------
  // Speculative decoding: append the draft's rows in phase verify, in one call or several, attend,
  // then Accept those that the model agrees with. Open rows are seen by Attend, Gather, Visible,
  // rows() and next_position(), exact in their own type; nothing is encoded, evicted or dropped
  // from a window meanwhile, so that taking them back restores every bit. Reports count them
  // nowhere: their memory is reserve.

  // Most verify rows that a layer can hold (64 without this call), at most 65536, with memory for
  // as many: Append in phase verify asks for none then. A layer that holds no rows yet takes it
  // with the first. A smaller n gives memory back. Not part of a saved state.
  Status ReserveSpeculative(std::int64_t n);

  // Whether Rollback(n) will do: of the rows that are open or, where none are, of n rows that are
  // still to be appended.
  bool CanRollback(std::int64_t n) const;

  // The first n open rows of every layer become decode rows, bit for bit as one Append in phase
  // decode makes them; the others go. Fails as that Append would (a row that the codec cannot hold,
  // memory), when n is more than there are, and when layers hold different numbers; then all rows
  // stay open. With n = 0 only the last can happen.
  Status Accept(std::int64_t n);
  // The last n open rows of every layer go, the others become decode rows: Accept of the others.
  Status Rollback(std::int64_t n);

  // -- attention --------------------------------------------------------------------------------

  // queries [query_heads, n, key_dim] at `query_positions` [n]; out f32 [query_heads, n,
  // value_dim]; lse f32 [query_heads, n] (natural log of the sum of exp, of the sink logit too;
  // may be null). A row is visible iff its position <= the query's and, with a window w, > the
  // query's - w. No visible row: out 0, lse -inf or the sink logit. A query with NaN or Inf,
  // or with a logit above f32: out and lse NaN, others as if it were not there. Records nothing.
  Status Attend(int layer_index, std::span<const TokenPos> query_positions,
                const HeadsView& queries, const AttendParams& params, AttendScratch& scratch,
                float* out, float* lse) const;

  // Memory that Attend of `queries` queries over the rows stored now takes, lent to an
  // AttendScratch. Grows with the rows, in steps of 8192 a head. `workers`: of
  // AttendParams.parallel. Errors: a layer that there is not. Preconditions: queries >= 0, workers
  // > 0.
  Result<std::int64_t> AttendScratchBytes(int layer_index, std::int64_t queries, int workers) const;

  // -- reading ----------------------------------------------------------------------------------

  int layers() const;
  const LayerSpec& layer(int layer_index) const;
  std::int64_t rows(int layer_index, int head) const;  // stored rows
  // One past the last token seen by layer 0, or where the last trim ended.
  TokenPos next_position() const;
  // The lowest position that a trim brings back as it was: next_position() at the last eviction
  // or, where rows fell out of a sliding window, the first whose query saw none of them; 0 if
  // neither happened.
  TokenPos oldest_exact_position() const;

  // Stored rows of one head by position, decoded to f32 in the original basis. Spans sized by
  // rows(): positions [n], keys [n, key_dim], values [n, value_dim]; any may be empty to skip it.
  Status Gather(int layer_index, int head, std::span<TokenPos> positions, std::span<float> keys,
                std::span<float> values) const;

  // How each stored row of a head is held, in the order of Gather: kExactRow or the number of its
  // tier, 0 the first store of the spec, 1 that of its first cold(...). tiers [rows()].
  Status RowTiers(int layer_index, int head, std::span<std::int32_t> tiers) const;
  static constexpr std::int32_t kExactRow = -1;  // in source precision: sinks, tail, staged rows

  // Which stored rows of a head the layer's own window shows to which query: mask
  // [n, rows(layer_index, head)], rows in the order of Gather, 1 iff the row's position <= the
  // query's and, with a window w, > the query's - w. What Attend applies by itself.
  Status Visible(int layer_index, int head, std::span<const TokenPos> query_positions,
                 std::span<std::uint8_t> mask) const;

  LayerReport ReportLayer(int layer_index) const;
  ByteReport Report() const;  // the sum over layers

  // -- saving -----------------------------------------------------------------------------------

  // Writes everything that later calls depend on, also of a prompt that is not finished, but the
  // scores handed in, which are the caller's; not while verify rows are open. `identity`, one line
  // of text, says for which model, weights and prompt the rows are good; kvsieve only compares it.
  // Room for more rows is not saved: reserved_bytes may be smaller afterwards. docs/state.md
  // describes the format.
  Status Save(std::string_view identity, ByteSink& sink) const;

 private:
  friend ByteReport TotalReport(std::span<const Cache* const> caches);  // kvsieve/cache_set.h
  struct Impl;
  explicit Cache(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvsieve

#endif  // KVSIEVE_CACHE_H_

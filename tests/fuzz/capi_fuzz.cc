// Any bytes as calls of the C interface: structs of any size, nulls, numbers without sense, calls
// out of order, callbacks that fail. Each call ends well or with an error that has its one line;
// and none is a crash, or kvsieve's own mistake.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tests/fuzz/capi_callbacks.h"
#include "tests/fuzz/capi_codec_calls.h"
#include "tests/fuzz/capi_given.h"

namespace kvsieve::fuzz {
namespace {

constexpr int kCaches = 3;

class Calls {
 public:
  explicit Calls(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}
  ~Calls() {
    for (kvs_cache* cache : caches_) kvs_cache_destroy(cache);
    kvs_scratch_destroy(scratch_);
  }

  void Run() {
    Check(Create());
    while (!bytes_.empty()) {
      at_ = bytes_.Next() % kCaches;
      memory_.fail_at = bytes_.OneOf(10) ? bytes_.Next() % 16 : -1;
      Check(Call(bytes_.Next()));
      memory_.fail_at = -1;
    }
  }

 private:
  kvs_cache* cache() { return bytes_.OneOf(40) ? nullptr : caches_[at_]; }

  // The shape that a call will find; a cache that is not there has any.
  struct Shape {
    std::int32_t layer = 0;
    std::int64_t query_heads = 4, kv_heads = 2, key_dim = 32, value_dim = 32;
    std::int32_t next = 0;
    bool mla = false;
  };
  Shape ShapeOf(int member) {
    Shape shape = shapes_[member];
    (void)kvs_next_position(caches_[member], &shape.next);
    shape.layer = bytes_.IntOr(0);
    return shape;
  }

  kvs_result Call(int which) {
    switch (which % 26) {
      case 0:
        return Create();
      case 1:
      case 2:
      case 3:
        return Append();
      case 4:
        return Observe();
      case 5:
        return kvs_finish_prefill(cache(), bytes_.Or(0));
      case 6:
        return kvs_evict(cache(), bytes_.IntOr(0));
      case 7:
        return SetScores();
      case 8:
        return kvs_reserve_speculative(cache(), bytes_.Number());
      case 9:
        return CanRollback();
      case 10:
        return kvs_accept(cache(), bytes_.Number());
      case 11:
        return kvs_rollback(cache(), bytes_.Number());
      case 12:
        return MakeScratch();
      case 13:
        return ScratchBytes();
      case 14:
        return Attend();
      case 15:
        return Gather();
      case 16:
        return Visible();
      case 17:
        return Trim();
      case 18:
        return Stats();
      case 19:
        return Text();
      case 20:
        return Save();
      case 21:
        return Load();
      case 22:
        return Fork();
      case 23:
        return bytes_.OneOf(8) ? kvs_clear(cache()) : Count();
      default:
        return codec_.Call();
    }
  }

  // -- caches -----------------------------------------------------------------------------------

  kvs_cache_args Options() {
    kvs_cache_args args = {};
    args.allocator = bytes_.OneOf(2) ? &allocator_ : nullptr;
    args.parallel = bytes_.OneOf(4) ? &parallel_ : nullptr;
    args.decode_rows = bytes_.IntOr(KVS_DECODE_STORED);
    args.reserved = bytes_.IntOr(0);
    return args;
  }

  kvs_result Create() {
    kvs_layer layer = {};
    Shape shape;
    layer.layer = bytes_.IntOr(3);
    layer.query_heads = bytes_.IntOr(4);
    layer.kv_heads = bytes_.IntOr(2);
    layer.key_dim = bytes_.IntOr(32);
    layer.value_dim = bytes_.IntOr(32);
    layer.scale = bytes_.OneOf(20) ? -1.0F : 0.2F;
    layer.sliding_window = bytes_.IntOr(0);
    layer.softcap = static_cast<float>(bytes_.Or(0));
    layer.value_is_key_prefix = bytes_.OneOf(4) ? bytes_.IntOr(1) : 0;
    layer.reserved = bytes_.IntOr(0);
    // Memory for each head of a layer: more of them are another test's business.
    if (layer.query_heads > 64) return KVS_OK;
    Given<kvs_layer> layers(bytes_, layer);
    kvs_cache_args args = Options();
    args.spec = bytes_.OrNull(kSpecs[bytes_.Next() % std::size(kSpecs)]);
    args.layers = layers.get();
    args.layer_count = bytes_.OneOf(12) ? -bytes_.Next() : 1;
    Given<kvs_cache_args> given(bytes_, args);
    kvs_cache* made = nullptr;
    const kvs_result result = kvs_cache_create(given.get(), bytes_.OrNull(&made));
    Require((result == KVS_OK) == (made != nullptr), "a handle of a call that failed");
    if (made == nullptr) return result;
    shape = {.query_heads = layer.query_heads,
             .kv_heads = layer.kv_heads,
             .key_dim = layer.key_dim,
             .value_dim = layer.value_dim,
             .mla = layer.value_is_key_prefix == 1};
    Put(made, shape);
    return result;
  }

  void Put(kvs_cache* made, const Shape& shape) {
    kvs_cache_destroy(caches_[at_]);
    caches_[at_] = made;
    shapes_[at_] = shape;
  }

  kvs_result Fork() {
    const int from = bytes_.Next() % kCaches;
    kvs_cache* made = nullptr;
    const kvs_result result = kvs_fork(caches_[from], &made);
    Require((result == KVS_OK) == (made != nullptr), "a fork that failed");
    if (made != nullptr) Put(made, shapes_[from]);
    return result;
  }

  kvs_result Save() {
    Stream stream;
    stream.fail_at = bytes_.OneOf(4) ? bytes_.Next() % 4 : -1;
    Given<kvs_sink> sink(bytes_, {0, &stream, bytes_.OneOf(24) ? nullptr : Write});
    const kvs_result result =
        kvs_save(cache(), bytes_.OrNull(bytes_.OneOf(12) ? "two\nlines" : "fuzz"), sink.get());
    if (result != KVS_OK) return result;
    saved_ = stream.bytes;
    saved_shape_ = shapes_[at_];
    return result;
  }

  // What was saved last, or damaged, or of another length than it says.
  kvs_result Load() {
    Stream stream;
    stream.bytes = saved_;
    if (bytes_.OneOf(4) && !saved_.empty()) {
      stream.bytes[bytes_.Next() * saved_.size() / 256] ^= bytes_.Next();
    }
    stream.fail_at = bytes_.OneOf(4) ? bytes_.Next() % 6 : -1;
    const auto size = static_cast<std::int64_t>(stream.bytes.size());
    const std::int64_t said = bytes_.OneOf(6) ? size + bytes_.Int() % 64 : size;
    Given<kvs_source> source(bytes_, {0, &stream, bytes_.OneOf(24) ? nullptr : Read, said});
    const char* identity = bytes_.OneOf(3) ? nullptr : "fuzz";
    if (bytes_.OneOf(2)) return kvs_load(cache(), identity, source.get());
    Given<kvs_cache_args> given(bytes_, Options());
    kvs_cache* made = nullptr;
    const kvs_result result = kvs_cache_restore(given.get(), identity, source.get(), &made);
    Require((result == KVS_OK) == (made != nullptr), "a restored cache that failed");
    if (made != nullptr) Put(made, saved_shape_);
    return result;
  }

  // -- rows -------------------------------------------------------------------------------------

  kvs_result Append() {
    const Shape shape = ShapeOf(at_);
    const std::int64_t n = bytes_.Number();
    const GivenPositions positions(bytes_, shape.next, n);
    const kvs_rows none = {};
    Given<kvs_append_args> args(
        bytes_, {0, shape.layer, bytes_.Int() % 3, n, positions.data(),
                 GivenRows::Make(bytes_, shape.kv_heads, n, shape.key_dim),
                 shape.mla && !bytes_.OneOf(8)
                     ? none
                     : GivenRows::Make(bytes_, shape.kv_heads, n, shape.value_dim)});
    return kvs_append(cache(), args.get());
  }

  kvs_result Observe() {
    const Shape shape = ShapeOf(at_);
    const std::int64_t n = bytes_.Number();
    const GivenPositions positions(bytes_, std::max(shape.next - static_cast<int>(n % 64), 0), n);
    Given<kvs_observe_args> args(bytes_,
                                 {0, shape.layer, bytes_.IntOr(0), n, positions.data(),
                                  GivenRows::Make(bytes_, shape.query_heads, n, shape.key_dim)});
    return kvs_observe(cache(), args.get());
  }

  kvs_result SetScores() {
    static const std::vector<float> scores(4096, 0.5F);
    const std::int64_t count = bytes_.Number();
    const float* data = count <= 4096 ? bytes_.OrNull(scores.data()) : nullptr;
    return kvs_set_external_scores(cache(), bytes_.IntOr(0), data, count);
  }

  kvs_result Attend() {
    const Shape shape = ShapeOf(at_);
    const std::int64_t n = bytes_.Number();
    const GivenPositions positions(bytes_, shape.next, n);
    const std::size_t count =
        n >= 0 && n <= 64 ? static_cast<std::size_t>(shape.query_heads * n) : 0;
    std::vector<float> out(count * static_cast<std::size_t>(shape.value_dim));
    std::vector<float> lse(count);
    const std::vector<float> sinks(static_cast<std::size_t>(shape.query_heads), -1.0F);
    kvs_attend_args args = {};
    args.layer = shape.layer;
    args.reserved = bytes_.IntOr(0);
    args.n = n;
    args.positions = positions.data();
    args.queries = GivenRows::Make(bytes_, shape.query_heads, n, shape.key_dim);
    args.scratch = bytes_.OrNull(scratch_);
    args.out = bytes_.OrNull(out.data());
    args.lse = bytes_.OneOf(2) ? lse.data() : nullptr;
    args.parallel = bytes_.OneOf(4) ? &parallel_ : nullptr;
    args.overrides = bytes_.OneOf(4) ? bytes_.Int() : 0;
    args.scale = static_cast<float>(bytes_.Or(1));
    args.softcap = static_cast<float>(bytes_.Or(0));
    args.sliding_window = bytes_.Int();
    args.sink_logits = bytes_.OneOf(4) ? sinks.data() : nullptr;
    Given<kvs_attend_args> given(bytes_, args);
    return kvs_attend(cache(), given.get());
  }

  // -- reading ----------------------------------------------------------------------------------

  // As many as there are, or another number.
  std::int64_t Rows(std::int32_t layer, std::int32_t head) {
    std::int64_t rows = 0;
    (void)kvs_row_count(caches_[at_], layer, head, &rows);
    return bytes_.Or(rows);
  }

  kvs_result Gather() {
    const Shape shape = ShapeOf(at_);
    const std::int32_t head = bytes_.IntOr(0);
    const std::int64_t rows = Rows(shape.layer, head);
    const auto held = static_cast<std::size_t>(std::clamp<std::int64_t>(rows, 0, 4096));
    std::vector<std::int32_t> positions(held);
    std::vector<std::int32_t> tiers(held);
    std::vector<float> keys(held * static_cast<std::size_t>(shape.key_dim));
    std::vector<float> values(held * static_cast<std::size_t>(shape.value_dim));
    if (bytes_.OneOf(4)) {
      return kvs_positions(cache(), shape.layer, head, rows, bytes_.OrNull(positions.data()));
    }
    Given<kvs_gather_args> args(
        bytes_, {0, shape.layer, head, rows, bytes_.OrNull(positions.data()),
                 bytes_.OrNull(keys.data()), bytes_.OrNull(values.data()), tiers.data()});
    return kvs_gather(cache(), args.get());
  }

  kvs_result Visible() {
    const Shape shape = ShapeOf(at_);
    const std::int32_t head = bytes_.IntOr(0);
    const std::int64_t rows = Rows(shape.layer, head);
    const std::int64_t n = bytes_.Number();
    const GivenPositions positions(bytes_, 0, n);
    std::vector<std::uint8_t> mask(
        n > 0 && n <= 64 && rows > 0 && rows <= 4096 ? static_cast<std::size_t>(n * rows) : 0);
    Given<kvs_visible_args> args(
        bytes_, {0, shape.layer, head, n, positions.data(), rows, bytes_.OrNull(mask.data())});
    return kvs_visible(cache(), args.get());
  }

  kvs_result Trim() {
    const Shape shape = ShapeOf(at_);
    std::int64_t tokens = 0;
    const std::int32_t position = bytes_.OneOf(3) ? bytes_.Int() : shape.next - bytes_.Next() % 32;
    return kvs_trim(cache(), position, bytes_.IntOr(1), bytes_.OrNull(&tokens));
  }

  kvs_result CanRollback() {
    std::int32_t can = -1;
    const kvs_result result = kvs_can_rollback(cache(), bytes_.Number(), bytes_.OrNull(&can));
    Require(result != KVS_OK || can == 0 || can == 1, "can");
    return result;
  }

  kvs_result Count() {
    std::int64_t rows = 0;
    std::int32_t position = 0;
    Check(kvs_row_count(cache(), bytes_.IntOr(0), bytes_.IntOr(0), bytes_.OrNull(&rows)));
    return kvs_oldest_exact_position(cache(), bytes_.OrNull(&position));
  }

  kvs_result Stats() {
    Given<kvs_stats_report> report(bytes_, {});
    if (bytes_.OneOf(3)) {
      const kvs_cache* const caches[] = {cache(), cache()};
      return kvs_stats_of_batch(bytes_.OrNull(caches), bytes_.Next() % 3, report.get());
    }
    return kvs_stats(cache(), bytes_.IntOr(0), bytes_.IntOr(-1), report.get());
  }

  kvs_result Text() {
    std::vector<char> text(bytes_.Next() % 64);
    std::size_t length = 0;
    return kvs_layer_text(cache(), bytes_.IntOr(0), bytes_.IntOr(bytes_.Next() % 5),
                          bytes_.OrNull(text.data()), text.size(), bytes_.OrNull(&length));
  }

  kvs_result MakeScratch() {
    kvs_scratch_destroy(scratch_);
    scratch_ = nullptr;
    const std::size_t bytes = bytes_.OneOf(2) ? bytes_.Next() * std::size_t{257} : 0;
    lent_.assign(bytes, 0);
    return kvs_scratch_create(bytes > 0 ? bytes_.OrNull(lent_.data()) : nullptr, bytes,
                              bytes_.OrNull(&scratch_));
  }

  kvs_result ScratchBytes() {
    std::size_t bytes = 0;
    return kvs_attend_scratch_bytes(cache(), bytes_.IntOr(0), bytes_.Number(), bytes_.Int(),
                                    bytes_.OrNull(&bytes));
  }

  Bytes bytes_;
  Memory memory_;
  kvs_allocator allocator_ = {sizeof(kvs_allocator), &memory_, Allocate, Deallocate};
  kvs_parallel parallel_ = {sizeof(kvs_parallel), nullptr, RunTasks, 2, 0};
  kvs_cache* caches_[kCaches] = {};
  Shape shapes_[kCaches];
  int at_ = 0;
  std::vector<std::uint8_t> saved_;
  Shape saved_shape_;
  std::vector<std::uint8_t> lent_;
  kvs_scratch* scratch_ = nullptr;
  CodecCalls codec_{bytes_};
};

}  // namespace
}  // namespace kvsieve::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size > 2000) return 0;
  kvsieve::fuzz::Calls({data, size}).Run();
  return 0;
}

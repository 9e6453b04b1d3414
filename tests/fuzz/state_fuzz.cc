// Any bytes as a saved cache, behind right checksums: no crash, no memory that the bytes do not
// account for, one line of error; and what loads is saved again as the same bytes, and can be used.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "kvsieve/saved_state.h"
#include "tests/lib/state_bytes.h"

namespace {

using namespace kvsieve;

void Require(bool condition) {
  if (!condition) std::abort();  // libFuzzer keeps the input
}

// Refuses what passes a limit.
class LimitedAllocator final : public Allocator {
 public:
  explicit LimitedAllocator(std::size_t limit) : limit_(limit) {}
  void* Allocate(std::size_t bytes) override {
    peak_ += bytes;
    Require(peak_ <= limit_);
    return DefaultAllocator().Allocate(bytes);
  }
  void Deallocate(void* memory, std::size_t bytes) override {
    peak_ -= bytes;
    DefaultAllocator().Deallocate(memory, bytes);
  }
  void Lift() { limit_ = SIZE_MAX; }

 private:
  std::size_t limit_;
  std::size_t peak_ = 0;
};

void Attend(const Cache& cache) {
  AttendScratch scratch;
  for (int i = 0; i < cache.layers(); ++i) {
    const LayerSpec& layer = cache.layer(i);
    const std::vector<float> query(static_cast<std::size_t>(layer.query_heads) * layer.key_dim, 1);
    std::vector<float> out(static_cast<std::size_t>(layer.query_heads) * layer.value_dim);
    const TokenPos position = cache.next_position();
    Require(cache
                .Attend(i, {&position, 1},
                        HeadsView::HeadMajor(query.data(), layer.query_heads, 1, layer.key_dim), {},
                        scratch, out.data(), nullptr)
                .ok());
  }
}

// Rows and scales may be any numbers, so that calls may fail; they do not crash.
void GoOn(Cache& cache) {
  for (int i = 0; i < cache.layers(); ++i) {
    const LayerSpec& layer = cache.layer(i);
    const std::vector<float> keys(static_cast<std::size_t>(layer.kv_heads) * layer.key_dim, 0.5F);
    const std::vector<float> values(static_cast<std::size_t>(layer.kv_heads) * layer.value_dim, 2);
    const TokenPos position = cache.next_position();
    for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
      (void)cache.Append(
          i, phase, HeadsView::HeadMajor(keys.data(), layer.kv_heads, 1, layer.key_dim),
          HeadsView::HeadMajor(values.data(), layer.kv_heads, 1, layer.value_dim), {&position, 1});
    }
    (void)cache.Evict(i);
  }
  (void)cache.FinishPrefill();
  (void)cache.TrimToPosition(cache.next_position() / 2, Trim::kAllowInexact);
  Attend(cache);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  state_test::Bytes state(bytes, bytes + size);
  state_test::Sign(state);
  // Marks of bitmaps are made again; panels of blocks are not in the bytes, one is tried.
  LimitedAllocator allocator(2 * size + (std::size_t{4} << 20));
  CacheOptions options;
  options.allocator = &allocator;
  MemorySource source(state);
  Result<Cache> cache = Cache::FromState(source, std::nullopt, options);
  if (!cache.ok()) {
    Require(cache.message().starts_with("saved state: "));
    Require(cache.message().find('\n') == std::string::npos);
    return 0;
  }
  MemorySink again;
  MemorySource head(state);
  const Result<StateInfo> info = ReadStateInfo(head);
  Require(cache->Save(info->identity, again).ok());
  // A spec may be spelt otherwise, and is written in its canonical form; an older format as the
  // newest.
  const Result<Pipeline> pipeline = Pipeline::Parse(info->spec);
  Require(again.bytes() == state || pipeline->Canonical() != info->spec ||
          info->version != kStateVersion);
  allocator.Lift();
  Attend(*cache);
  GoOn(*cache);
  return 0;
}

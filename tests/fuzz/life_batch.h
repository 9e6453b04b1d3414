// A batch of caches with the model of each, and what every call on it needs: rows, checks of how a
// call ended, an allocator that counts and refuses. The lives themselves: life_fuzz.cc.
#ifndef KVSIEVE_TESTS_FUZZ_LIFE_BATCH_H_
#define KVSIEVE_TESTS_FUZZ_LIFE_BATCH_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvsieve/cache_set.h"
#include "tests/fuzz/life_model.h"

namespace kvsieve::fuzz {

// Counts what is held; refuses the `fail_at`-th request from now and those behind it.
class CountingAllocator final : public Allocator {
 public:
  void* Allocate(std::size_t bytes) override;
  void Deallocate(void* memory, std::size_t bytes) override;

  std::int64_t live_bytes = 0;
  int fail_at = -1;  // below 0: none
};

class LifeBatch {
 public:
  // One member, empty. Which pipeline (any number), and bits: 1 rows are f16, 2 rows of decode stay
  // exact.
  LifeBatch(int pipeline, int flags);
  LifeBatch(const LifeBatch&) = delete;
  ~LifeBatch();

 protected:
  static constexpr TokenPos kMostTokens = 320;
  static constexpr int kMostMembers = 4;

  Cache& cache() { return (*set_)[static_cast<int>(current_)]; }
  Model& model() { return models_[current_]; }
  Model NewModel() const;  // of an empty cache

  // The call had to work: it did, or no memory was there.
  bool Done(const Status& status) const;
  void Refused(const Status& status, ErrorCode code) const;
  template <class T>
  Status StatusOf(const Result<T>& result) const {
    return result.ok() ? Status::Ok() : Status(result.error().code, result.message());
  }

  // Tokens that were never there, behind those of a layer.
  std::vector<Token> NextTokens(int layer, std::int64_t count, int gap);
  Status AppendRows(int layer, Phase phase, std::span<const Token> tokens);
  // Whether the queries are known to the cache, where it wants them.
  bool Observe(int layer, std::span<const Token> tokens);

  // Empty while a draft is open.
  std::vector<std::byte> SavedBytes();
  // Blocks that forks share count once.
  void ExpectCounted() const;

  std::vector<LayerSpec> layers_;
  std::string spec_;
  bool scores_in_decode_ = false;
  bool f16_rows_ = false;
  bool faulty_ = false;  // the allocator refuses
  std::uint32_t births_ = 0;
  CountingAllocator allocator_;
  std::optional<CacheSet> set_;
  std::vector<Model> models_;  // of the members
  std::size_t current_ = 0;
};

}  // namespace kvsieve::fuzz

#endif  // KVSIEVE_TESTS_FUZZ_LIFE_BATCH_H_

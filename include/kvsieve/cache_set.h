// A batch: the caches of several sequences, each of its own length, with one pipeline, one model
// and one allocator. Members know nothing of each other, and there is no padding; what the set adds
// is that memory shared by forks counts once.
//
//   auto batch = CacheSet::Create(pipeline, layers, {});
//   Result<int> prefix = batch->AddState(source, identity);  // or Add, and append the prompt
//   Result<int> answer = batch->AddFork(*prefix);            // goes on by itself
//   (*batch)[*answer].Append(...);
#ifndef KVSIEVE_CACHE_SET_H_
#define KVSIEVE_CACHE_SET_H_

#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "kvsieve/byte_report.h"
#include "kvsieve/byte_stream.h"
#include "kvsieve/cache.h"
#include "kvsieve/pipeline.h"
#include "kvsieve/result.h"
#include "kvsieve/types.h"

namespace kvsieve {

// The sum of the reports of caches, but memory that several of them hold counts once, as kept,
// padding and reserve, so that resident_bytes() is what they hold of their allocators together; so
// do shared_bytes. Rows, tokens and full bytes count for every cache: storage_ratio() shows what
// sharing saves. A cache that is given twice counts twice but for shared memory.
ByteReport TotalReport(std::span<const Cache* const> caches);

class CacheSet {
 public:
  // A set without members. Arguments and errors as of Cache::Create.
  static Result<CacheSet> Create(std::shared_ptr<const Pipeline> pipeline,
                                 std::vector<LayerSpec> layers, const CacheOptions& options);

  // Each puts one member behind the others and returns its index. A call that fails changes
  // nothing.
  Result<int> Add();                // an empty one
  Result<int> AddFork(int member);  // Cache::Fork of a member
  // What Cache::Save wrote. Errors as of Cache::Load.
  Result<int> AddState(ByteSource& source, std::optional<std::string_view> identity);
  // Members behind it move up by one.
  Status Remove(int member);

  int size() const { return static_cast<int>(members_.size()); }
  // Precondition: 0 <= member < size(). A reference stays good until that member is removed, so
  // that members may be used in different threads while others come and go.
  Cache& operator[](int member) { return *members_[member]; }
  const Cache& operator[](int member) const { return *members_[member]; }

  ByteReport Report() const;  // TotalReport of the members; reads all of them

 private:
  explicit CacheSet(Cache empty) : empty_(std::move(empty)) {}
  Status CheckMember(int member) const;
  Result<int> Add(Result<Cache> cache);

  Cache empty_;  // what new members are forks of
  std::vector<std::unique_ptr<Cache>> members_;
};

}  // namespace kvsieve

#endif  // KVSIEVE_CACHE_SET_H_

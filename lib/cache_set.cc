#include "kvsieve/cache_set.h"

#include <cstddef>

#include "kvsieve/str_cat.h"
#include "lib/cache_impl.h"

namespace kvsieve {

Result<CacheSet> CacheSet::Create(std::shared_ptr<const Pipeline> pipeline,
                                  std::vector<LayerSpec> layers, const CacheOptions& options) {
  KVS_ASSIGN_OR_RETURN(Cache empty, Cache::Create(std::move(pipeline), std::move(layers), options));
  return CacheSet(std::move(empty));
}

Status CacheSet::CheckMember(int member) const {
  if (member >= 0 && member < size()) return Status::Ok();
  return Status::Invalid(StrCat("member ", member, " is outside [0, ", size(), ")"));
}

Result<int> CacheSet::Add(Result<Cache> cache) {
  if (!cache.ok()) return cache.TakeStatus();
  return NoThrow([&]() -> Result<int> {
    members_.push_back(std::make_unique<Cache>(*std::move(cache)));
    return size() - 1;
  });
}

Result<int> CacheSet::Add() { return Add(empty_.Fork()); }

Result<int> CacheSet::AddFork(int member) {
  return NoThrow([&]() -> Result<int> {
    KVS_RETURN_IF_ERROR(CheckMember(member));
    return Add(members_[member]->Fork());
  });
}

Result<int> CacheSet::AddState(ByteSource& source, std::optional<std::string_view> identity) {
  KVS_ASSIGN_OR_RETURN(Cache loaded, empty_.Fork());
  KVS_RETURN_IF_ERROR(loaded.Load(source, identity));
  return Add(std::move(loaded));
}

Status CacheSet::Remove(int member) {
  return NoThrow([&]() -> Status {
    KVS_RETURN_IF_ERROR(CheckMember(member));
    members_.erase(members_.begin() + member);
    return Status::Ok();
  });
}

ByteReport TotalReport(std::span<const Cache* const> caches) {
  ByteReport total;
  ByteReport repeated;
  CountedMemory counted;
  for (const Cache* cache : caches) {
    total += cache->Report();
    for (const LayerState& layer : cache->impl_->layers) {
      layer.staging.AddRepeated(layer.spec, layer.shape, counted, repeated);
      for (const HeadStore& head : layer.heads) {
        for (const Tier& tier : head.tiers) tier.AddRepeated(counted, repeated);
      }
    }
  }
  return total += repeated * -1;
}

ByteReport CacheSet::Report() const {
  std::vector<const Cache*> members;
  for (const std::unique_ptr<Cache>& member : members_) members.push_back(member.get());
  return TotalReport(members);
}

}  // namespace kvsieve

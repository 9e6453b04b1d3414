#include "evict/head_pass.h"

namespace kvsieve::evict {
namespace {

constexpr std::string_view kScopeNames[] = {"kv_head", "layer", "model"};

}  // namespace

void ReadScope(ArgReader& args, Scope* scope) {
  int index = static_cast<int>(*scope);
  args.Choice("scope", kScopeNames, &index);
  *scope = static_cast<Scope>(index);
}

std::string_view ScopeName(Scope scope) { return kScopeNames[static_cast<int>(scope)]; }

std::string RowOptions::Canonical() const {
  return StrCat(pool.Canonical(), ",scope=", ScopeName(scope));
}

RowOptions ReadRowOptions(ArgReader& args) {
  RowOptions options;
  ReadPool(args, &options.pool);
  ReadScope(args, &options.scope);
  return options;
}

void SmoothRows(const Pool& pool, std::int64_t window, std::span<const float> raw,
                std::span<float> smoothed) {
  const auto rows = static_cast<std::int64_t>(raw.size());
  const auto pooled = static_cast<std::size_t>(std::max<std::int64_t>(0, rows - window));
  Smooth(pool, raw.first(pooled), smoothed.first(pooled));
  std::copy(raw.begin() + static_cast<std::ptrdiff_t>(pooled), raw.end(),
            smoothed.begin() + static_cast<std::ptrdiff_t>(pooled));
}

}  // namespace kvsieve::evict

// The settings of an eviction policy as text: their names, where each came from, and the words for
// complaints about them.
#ifndef KVSIEVE_LIB_POLICY_SETTINGS_H_
#define KVSIEVE_LIB_POLICY_SETTINGS_H_

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "kvsieve/eviction_policy.h"
#include "kvsieve/result.h"

namespace kvsieve::policy {

// In the order of PolicyOptions().
enum Key : std::uint8_t { kEviction, kBudget, kWindow, kSinks, kMinTokens, kStore, kKeys };

// The argument of an evict stage that the setting becomes; empty: none.
std::string_view ArgumentOf(Key key);

// Whether two texts mean the same evict stage, whatever their spaces.
bool SameEviction(std::string_view a, std::string_view b);

// Later ones override earlier ones.
enum class Source : std::uint8_t { kDefault, kFlag, kRequest };

struct Setting {
  std::string text;
  Source source = Source::kDefault;
};

class Settings {
 public:
  Settings();  // the defaults

  // Replaces what `given` names; source is kFlag or kRequest. Errors: a name unknown or given
  // twice, a value with unprintable bytes or longer than any legal one.
  Status Override(std::span<const PolicySetting> given, Source source);

  const Setting& operator[](Key key) const { return settings_[key]; }
  bool given(Key key) const { return settings_[key].source != Source::kDefault; }
  void Reset(Key key);  // to the default

  std::string Name(Key key) const;   // "--kv-budget" or "kv_budget", as its source calls it
  std::string Label(Key key) const;  // "--kv-budget 512", with " (default)" where that is true

  // Tells settings apart, by their texts and sources.
  std::string Identity() const;

 private:
  std::array<Setting, kKeys> settings_;
};

}  // namespace kvsieve::policy

#endif  // KVSIEVE_LIB_POLICY_SETTINGS_H_

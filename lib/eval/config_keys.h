// Keys of a config.json, read with errors that name them. Thrown inside model_config.cc and
// layer_kinds.cc only; ParseModelConfig turns them into a Status.
#ifndef KVSIEVE_LIB_EVAL_CONFIG_KEYS_H_
#define KVSIEVE_LIB_EVAL_CONFIG_KEYS_H_

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>

#include "kvsieve/str_cat.h"

namespace kvsieve::eval {

struct ConfigError : std::runtime_error {
  ConfigError(std::string_view key, std::string_view what)
      : std::runtime_error(StrCat("key ", key, ": ", what)) {}
};

// Null counts as absent everywhere.
class ConfigKeys {
 public:
  explicit ConfigKeys(const nlohmann::json& object) : object_(object) {}

  // The value, or nullptr.
  const nlohmann::json* Find(std::string_view key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  bool Has(std::string_view key) const { return Find(key) != nullptr; }
  // The first of several names for one thing that is there; the first of all when none is.
  std::string_view NameOf(std::initializer_list<std::string_view> keys) const {
    for (const std::string_view key : keys) {
      if (Has(key)) return key;
    }
    return *keys.begin();
  }

  std::int64_t Int(std::string_view key, std::int64_t min = 1) const {
    const nlohmann::json* value = Find(key);
    if (value == nullptr) throw ConfigError(key, "missing");
    return IntOf(key, *value, min);
  }
  static std::int64_t IntOf(std::string_view key, const nlohmann::json& value, std::int64_t min,
                            std::int64_t most = 1'000'000'000) {
    const bool fits = value.is_number_integer() && value >= min && value <= most;
    if (!fits) {
      throw ConfigError(key, StrCat("'", Text(value), "' is no integer from ", min, " to ", most));
    }
    return value.get<std::int64_t>();
  }
  // Of layers or heads: a plan holds something for each. Saved states have as many layers at most.
  static std::int64_t CountOf(std::string_view key, const nlohmann::json& value) {
    constexpr std::int64_t kMostCount = 4096;
    return IntOf(key, value, 1, kMostCount);
  }
  std::int64_t Count(std::string_view key) const {
    const nlohmann::json* value = Find(key);
    if (value == nullptr) throw ConfigError(key, "missing");
    return CountOf(key, *value);
  }
  bool True(std::string_view key) const {
    const nlohmann::json* value = Find(key);
    if (value == nullptr) return false;
    if (!value->is_boolean()) {
      throw ConfigError(key, StrCat("'", Text(*value), "' is neither true nor false"));
    }
    return value->get<bool>();
  }
  // A positive number; 0 when absent.
  double Real(std::string_view key) const {
    const nlohmann::json* value = Find(key);
    if (value == nullptr) return 0;
    if (!value->is_number() || !(value->get<double>() > 0)) {
      throw ConfigError(key, StrCat("'", Text(*value), "' is no positive number"));
    }
    return value->get<double>();
  }
  std::string String(std::string_view key) const {
    const nlohmann::json* value = Find(key);
    return value != nullptr && value->is_string() ? value->get<std::string>() : std::string();
  }
  // An array with one element per layer.
  const nlohmann::json& PerLayer(std::string_view key, std::int64_t layers) const {
    const nlohmann::json* value = Find(key);
    if (value == nullptr || !value->is_array()) throw ConfigError(key, "no array");
    if (static_cast<std::int64_t>(value->size()) != layers) {
      throw ConfigError(key, StrCat("holds ", value->size(), " entries for ", layers, " layers"));
    }
    return *value;
  }

  // For messages: short, on one line.
  static std::string Text(const nlohmann::json& value) {
    std::string text =
        value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace).substr(0, 40);
    return text;
  }

 private:
  const nlohmann::json& object_;
};

}  // namespace kvsieve::eval

#endif  // KVSIEVE_LIB_EVAL_CONFIG_KEYS_H_

#include "kvsieve/spec_args.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <utility>

#include "kvsieve/str_cat.h"

namespace kvsieve {
namespace {

char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// Upper and lower case are alike.
int EditDistance(std::string_view a, std::string_view b) {
  std::vector<int> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const int substitute = diagonal + (Lower(a[i - 1]) != Lower(b[j - 1]));
      diagonal = row[j];
      row[j] = std::min({substitute, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

Status NotA(std::string_view kind, std::string_view text) {
  return Status::Invalid(StrCat("'", text, "' is not ", kind));
}

struct ByteUnit {
  std::string_view name;
  double bytes;
};
constexpr ByteUnit kByteUnits[] = {
    {"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 1073741824.0}, {"kB", 1e3}, {"MB", 1e6},
    {"GB", 1e9},     {"B", 1.0},
};

}  // namespace

std::string SpecCall::ToString() const {
  std::string out = name;
  if (args.empty()) return out;
  out += '(';
  for (std::size_t i = 0; i < args.size(); ++i) {
    if (i > 0) out += ',';
    const SpecArg& arg = args[i];
    if (!arg.key.empty()) out += arg.key + '=';
    out += arg.call.empty() ? arg.value : arg.call.front().ToString();
  }
  return out + ')';
}

Status SpecError(int column, std::string_view what) {
  return Status::Invalid(StrCat("column ", column, ": ", what));
}

std::string Suggest(std::string_view unknown, std::span<const std::string_view> known) {
  std::string_view nearest;
  int best = std::max<int>(2, static_cast<int>(unknown.size()) / 3) + 1;
  for (const std::string_view name : known) {
    const int distance = EditDistance(unknown, name);
    if (distance < best) {
      best = distance;
      nearest = name;
    }
  }
  if (!nearest.empty()) return StrCat(" (did you mean ", nearest, "?)");
  if (known.empty()) return " (it takes no options)";
  std::string list = " (known: ";
  for (std::size_t i = 0; i < known.size(); ++i) {
    if (i > 0) list += ", ";
    list.append(known[i]);
  }
  return list + ')';
}

std::int64_t Ratio::CeilOf(std::int64_t n) const {
  if (n <= 0) return 0;
  const auto product = static_cast<__int128>(n) * numerator;
  return static_cast<std::int64_t>((product + denominator - 1) / denominator);
}

Result<std::int64_t> ParseInt(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (ec == std::errc::result_out_of_range) return NotA("a 64-bit integer", text);
  if (ec != std::errc() || end != text.data() + text.size()) return NotA("an integer", text);
  return value;
}

Result<double> ParseReal(std::string_view text) {
  double value = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (ec != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) {
    return NotA("a finite number", text);
  }
  return value;
}

std::string RealText(double value) {
  char digits[400];  // 1.8e308 has 309
  const auto [end, ec] =
      std::to_chars(digits, digits + sizeof digits, value, std::chars_format::fixed);
  return ec == std::errc() ? std::string(digits, end) : std::string("?");
}

Result<Ratio> ParsePercent(std::string_view text) {
  constexpr int kMaxDecimals = 9;
  if (text.empty() || text.back() != '%') return NotA("a percentage such as 25%", text);
  const std::string_view number = text.substr(0, text.size() - 1);
  Ratio ratio{0, 100};
  bool seen_point = false;
  int decimals = 0;
  bool seen_digit = false;
  for (const char c : number) {
    if (c == '.' && !seen_point) {
      seen_point = true;
      continue;
    }
    if (c < '0' || c > '9') return NotA("a percentage such as 25%", text);
    if (seen_point && ++decimals > kMaxDecimals) {
      return Status::Invalid(
          StrCat("percentage ", text, " has more than ", kMaxDecimals, " decimals"));
    }
    seen_digit = true;
    ratio.numerator = ratio.numerator * 10 + (c - '0');
    if (seen_point) ratio.denominator *= 10;
    if (ratio.numerator > 100'000'000'000'000) break;  // far above 100 %, caught below
  }
  if (!seen_digit) return NotA("a percentage such as 25%", text);
  if (ratio.numerator <= 0 || ratio.numerator > ratio.denominator) {
    return Status::Invalid(StrCat("percentage ", text, " is outside (0, 100]"));
  }
  const std::int64_t divisor = std::gcd(ratio.numerator, ratio.denominator);
  return Ratio{ratio.numerator / divisor, ratio.denominator / divisor};
}

Result<std::int64_t> ParseByteSize(std::string_view text) {
  for (const ByteUnit& unit : kByteUnits) {
    if (!text.ends_with(unit.name)) continue;
    const Result<double> number = ParseReal(text.substr(0, text.size() - unit.name.size()));
    if (!number.ok()) break;
    const double bytes = std::floor(*number * unit.bytes);
    if (!(bytes >= 1) || bytes > 9e18) {
      return Status::Invalid(StrCat("size ", text, " is outside [1 byte, 8 EiB]"));
    }
    return static_cast<std::int64_t>(bytes);
  }
  return NotA("a size with a unit (B, kB, MB, GB, KiB, MiB, GiB)", text);
}

bool ArgReader::IsKnown(std::string_view name) const {
  return std::find(known_.begin(), known_.end(), name) != known_.end();
}

ArgReader::ArgReader(const SpecCall& call) : call_(call), used_(call.args.size(), false) {}

const SpecArg* ArgReader::Raw(std::string_view key) {
  if (!IsKnown(key)) known_.emplace_back(key);  // some are asked for twice
  const SpecArg* found = nullptr;
  for (std::size_t i = 0; i < call_.args.size(); ++i) {
    const SpecArg& arg = call_.args[i];
    if (arg.key != key || arg.is_word()) continue;
    if (found != nullptr) {
      Fail(arg.key_column, StrCat("option '", key, "' of ", call_.name, " is given twice"));
    }
    used_[i] = true;
    if (found == nullptr) found = &arg;
  }
  return found;
}

bool ArgReader::Word(std::string_view word) {
  known_.emplace_back(word);
  bool found = false;
  for (std::size_t i = 0; i < call_.args.size(); ++i) {
    const SpecArg& arg = call_.args[i];
    if (!arg.is_word() || arg.value != word || !arg.call.empty()) continue;
    if (found) Fail(arg.value_column, StrCat("'", word, "' of ", call_.name, " is given twice"));
    used_[i] = true;
    found = true;
  }
  return found;
}

std::vector<const SpecArg*> ArgReader::Words() {
  std::vector<const SpecArg*> words;
  for (std::size_t i = 0; i < call_.args.size(); ++i) {
    if (!call_.args[i].is_word()) continue;
    used_[i] = true;
    words.push_back(&call_.args[i]);
  }
  return words;
}

void ArgReader::Fail(int column, std::string_view what) {
  if (first_.ok()) first_ = SpecError(column, what);
}

void ArgReader::Fail(Status found) {
  if (first_.ok()) first_ = std::move(found);
}

void ArgReader::Int(std::string_view key, int* value, std::int64_t min, std::int64_t max) {
  const SpecArg* arg = Raw(key);
  if (arg == nullptr) return;
  const Result<std::int64_t> parsed = ParseInt(arg->value);
  if (!parsed.ok() || !arg->call.empty()) {
    return Fail(arg->value_column,
                StrCat("option ", key, ": '", arg->value, "' is not an integer"));
  }
  if (*parsed < min || *parsed > max) {
    return Fail(arg->value_column,
                StrCat("option ", key, ": ", *parsed, " is outside [", min, ", ", max, "]"));
  }
  *value = static_cast<int>(*parsed);
}

void ArgReader::UInt64(std::string_view key, std::uint64_t* value) {
  const SpecArg* arg = Raw(key);
  if (arg == nullptr) return;
  const std::string_view text = arg->value;
  std::uint64_t parsed = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), parsed);
  if (ec != std::errc() || end != text.data() + text.size() || !arg->call.empty()) {
    return Fail(arg->value_column,
                StrCat("option ", key, ": '", text, "' is not an integer in [0, 2^64)"));
  }
  *value = parsed;
}

void ArgReader::Real(std::string_view key, double* value, double min, double max) {
  const SpecArg* arg = Raw(key);
  if (arg == nullptr) return;
  const Result<double> parsed = ParseReal(arg->value);
  if (!parsed.ok() || !arg->call.empty()) {
    return Fail(arg->value_column, StrCat("option ", key, ": '", arg->value, "' is not a number"));
  }
  if (*parsed < min || *parsed > max) {
    return Fail(arg->value_column,
                StrCat("option ", key, ": ", *parsed, " is outside [", min, ", ", max, "]"));
  }
  *value = *parsed;
}

void ArgReader::Bool(std::string_view key, bool* value) {
  constexpr std::string_view kNames[] = {"false", "true"};
  int index = *value ? 1 : 0;
  Choice(key, kNames, &index);
  *value = index == 1;
}

void ArgReader::Choice(std::string_view key, std::span<const std::string_view> names, int* index) {
  const SpecArg* arg = Raw(key);
  if (arg == nullptr) return;
  const auto found = std::find(names.begin(), names.end(), arg->value);
  if (found == names.end() || !arg->call.empty()) {
    return Fail(arg->value_column, StrCat("option ", key, ": unknown value '", arg->value, "'",
                                          Suggest(arg->value, names)));
  }
  *index = static_cast<int>(found - names.begin());
}

Status ArgReader::Finish() {
  for (std::size_t i = 0; first_.ok() && i < call_.args.size(); ++i) {
    if (used_[i]) continue;
    const SpecArg& arg = call_.args[i];
    const std::string_view name = arg.is_word() ? arg.value : arg.key;
    if (IsKnown(name)) {  // a key without its value, or a bare word with one
      Fail(arg.key_column, StrCat("option '", name, "' of ", call_.name,
                                  arg.is_word() ? " needs a value" : " takes no value"));
      break;
    }
    const std::vector<std::string_view> known(known_.begin(), known_.end());
    Fail(arg.key_column,
         StrCat("unknown option '", name, "' of ", call_.name, Suggest(name, known)));
  }
  return std::move(first_);
}

}  // namespace kvsieve

// The parts of a parsed pipeline spec, and the one place that turns their text into numbers.
//
//   int4(group=32,sym)   ->  SpecCall{"int4", args {group=32}, {sym}}
//
// A factory reads its arguments through ArgReader, which remembers the first mistake:
//   ArgReader args(call);
//   int group = 32;
//   args.Int("group", &group, 1, 4096);
//   const bool symmetric = args.Word("sym");
//   KVS_RETURN_IF_ERROR(args.Finish());   // also reports unknown and duplicate keys
#ifndef KVSIEVE_SPEC_ARGS_H_
#define KVSIEVE_SPEC_ARGS_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvsieve/result.h"

namespace kvsieve {

struct SpecArg;

// A name with arguments, as written. Columns count from 1 over the whole spec.
struct SpecCall {
  std::string name;
  int column = 1;
  std::vector<SpecArg> args;

  std::string ToString() const;  // name(key=value,word), no spaces
};

// `key=value`, `key=name(args)`, a bare `word`, or (inside mix) `0.9*name(args)`.
struct SpecArg {
  std::string key;    // empty for a bare word
  std::string value;  // text of the value; for a call its name
  int key_column = 1;
  int value_column = 1;
  std::vector<SpecCall> call;  // one element when the value has parentheses, else empty

  bool is_word() const { return key.empty(); }
};

// An error that points at a column: "column 14: unknown option 'windw' of snapkv (did you mean
// window?)".
Status SpecError(int column, std::string_view what);

// "(did you mean X?)" for the nearest of `known` when it is near, else "(known: a, b, c)".
std::string Suggest(std::string_view unknown, std::span<const std::string_view> known);

// An exact share in (0, 1]: numerator / denominator, from text such as "12.5%".
struct Ratio {
  std::int64_t numerator = 0;
  std::int64_t denominator = 1;
  // ceil(n * ratio) in integers, at least 1 when n >= 1.
  std::int64_t CeilOf(std::int64_t n) const;
};

// Plain text to values. Errors carry no column; callers add it.
Result<std::int64_t> ParseInt(std::string_view text);
Result<double> ParseReal(std::string_view text);    // finite, whole text used
std::string RealText(double value);                 // for ParseReal; never an exponent
Result<Ratio> ParsePercent(std::string_view text);  // "25%", at most 9 decimals, in (0, 100]
Result<std::int64_t> ParseByteSize(
    std::string_view text);  // "64MiB", "1.5GB": kB MB GB KiB MiB GiB B

class ArgReader {
 public:
  explicit ArgReader(const SpecCall& call);

  // Each leaves *value alone when the key is absent, and marks the key as used.
  void Int(std::string_view key, int* value, std::int64_t min, std::int64_t max);
  void UInt64(std::string_view key, std::uint64_t* value);
  void Real(std::string_view key, double* value, double min, double max);
  void Bool(std::string_view key, bool* value);  // true | false
  // The value must be one of `names`; *index becomes its place.
  void Choice(std::string_view key, std::span<const std::string_view> names, int* index);
  // True when the bare word is present.
  bool Word(std::string_view word);
  // All arguments without a key, such as the terms of mix, in order; marks them as used. They
  // belong to the call.
  std::vector<const SpecArg*> Words();
  // The raw argument, or nullptr; marks it as used. For values with their own grammar.
  const SpecArg* Raw(std::string_view key);
  int column() const { return call_.column; }
  // Records a mistake found by the caller, unless one is recorded already.
  void Fail(int column, std::string_view what);
  // The same for what the reader of a nested call found; Ok records nothing.
  void Fail(Status found);

  // The first mistake; then duplicate or unknown arguments, with a suggestion from the keys asked
  // for so far.
  Status Finish();

 private:
  bool IsKnown(std::string_view name) const;

  const SpecCall& call_;
  std::vector<bool> used_;
  std::vector<std::string> known_;
  Status first_;
};

}  // namespace kvsieve

#endif  // KVSIEVE_SPEC_ARGS_H_

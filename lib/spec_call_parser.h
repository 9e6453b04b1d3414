// Stage calls and chains of them: the part of the spec grammar that stages share.
//
//   chain := { call "+" } call
//   call  := name [ "(" [ arg { "," arg } ] ")" ]
//   arg   := [ name "=" ] value                  bare values are words such as sym
//   value := atom { (":" | "/" | "*") atom } [ "(" args ")" ]      max:7  budget/8  0.9*name(args)
//          | "[" range { "," range } "]"                           [4..7]
#ifndef KVSIEVE_LIB_SPEC_CALL_PARSER_H_
#define KVSIEVE_LIB_SPEC_CALL_PARSER_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kvsieve/result.h"
#include "kvsieve/spec_args.h"
#include "lib/spec_cursor.h"

namespace kvsieve {

inline constexpr int kMaxSpecNesting = 16;  // parentheses inside parentheses
inline constexpr int kMaxChainStages = 16;

// Each takes what comes next and leaves the cursor behind it. `expected` is what to ask for when
// no name comes: "an evict stage".
Result<SpecCall> TakeCall(SpecCursor& cursor, std::string_view expected);

// Short names are spelt out: turbo4 becomes turbo(bits=4).
Result<std::vector<SpecCall>> TakeChain(SpecCursor& cursor);

// The same for a whole text, such as one that Canonical() returned.
Result<SpecCall> ParseCall(std::string_view text);
Result<std::vector<SpecCall>> ParseChain(std::string_view text);

// "= n", behind an option.
inline constexpr std::int64_t kMaxRows = std::int64_t{1} << 30;
Status TakeRows(SpecCursor& cursor, std::string_view option, std::optional<int>* rows);

// Lets errors of a chain that a name stands for, which come when it is built for a dim, point at
// the name.
void PointAt(int column, std::span<SpecCall> chain);

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_SPEC_CALL_PARSER_H_

#include "lib/spec_call_parser.h"

#include <algorithm>
#include <string>
#include <utility>

#include "kvsieve/str_cat.h"

namespace kvsieve {
namespace {

class CallParser {
 public:
  explicit CallParser(SpecCursor& cursor) : cursor_(cursor) {}

  Result<SpecCall> Call(std::string_view expected);

 private:
  Status Arguments(SpecCall* call);
  Result<SpecArg> Argument();
  Status Value(SpecArg* arg);
  Status Ranges(SpecArg* arg);
  Status AppendInteger(std::string* text);

  SpecCursor& cursor_;
  int nesting_ = 0;
};

Result<SpecCall> CallParser::Call(std::string_view expected) {
  SpecCall call;
  call.column = cursor_.column();
  call.name = cursor_.TakeName();
  if (call.name.empty()) return cursor_.Unexpected(expected);
  KVS_RETURN_IF_ERROR(Arguments(&call));
  return call;
}

Status CallParser::Arguments(SpecCall* call) {
  const int column = cursor_.column();
  if (!cursor_.Accept("(")) return Status::Ok();
  if (++nesting_ > kMaxSpecNesting) {
    return SpecError(column, StrCat("parentheses nest deeper than ", kMaxSpecNesting));
  }
  if (!cursor_.Accept(")")) {
    do {
      KVS_ASSIGN_OR_RETURN(SpecArg arg, Argument());
      call->args.push_back(std::move(arg));
    } while (cursor_.Accept(","));
    if (!cursor_.Accept(")")) {
      return cursor_.Unexpected(StrCat("',' or ')' in the arguments of ", call->name));
    }
  }
  --nesting_;
  return Status::Ok();
}

// What was read as a value is the key when '=' follows.
Result<SpecArg> CallParser::Argument() {
  SpecArg arg;
  KVS_RETURN_IF_ERROR(Value(&arg));
  arg.key_column = arg.value_column;
  if (!cursor_.Accept("=")) return arg;
  const bool is_name = arg.call.empty() && arg.value.find_first_of(".%+-:/*[") == std::string::npos;
  if (!is_name) {
    return SpecError(arg.key_column, StrCat("'", arg.value, "' is not the name of an option"));
  }
  arg.key = std::move(arg.value);
  KVS_RETURN_IF_ERROR(Value(&arg));
  return arg;
}

Status CallParser::Value(SpecArg* arg) {
  arg->value_column = cursor_.column();
  if (cursor_.Accept("[")) return Ranges(arg);
  std::string text(cursor_.TakeAtom());
  if (text.empty()) {
    return cursor_.Unexpected(arg->key.empty() ? "an argument" : StrCat("a value for ", arg->key));
  }
  for (char c = cursor_.Peek(); c == ':' || c == '/' || c == '*'; c = cursor_.Peek()) {
    cursor_.Accept({&c, 1});
    const std::string_view atom = cursor_.TakeAtom();
    if (atom.empty()) return cursor_.Unexpected(StrCat("a word or number after '", c, "'"));
    text += c;
    text += atom;
  }
  if (text.size() > kMaxWordBytes) {
    return SpecError(arg->value_column,
                     StrCat("a value is longer than ", kMaxWordBytes, " characters"));
  }
  if (cursor_.Peek() == '(') {
    SpecCall call{text, arg->value_column, {}};
    KVS_RETURN_IF_ERROR(Arguments(&call));
    arg->call.push_back(std::move(call));
  }
  arg->value = std::move(text);
  return Status::Ok();
}

// After the '['. The text keeps the brackets: "[4..7]".
Status CallParser::Ranges(SpecArg* arg) {
  std::string text = "[";
  do {
    if (text.size() > 1) text += ',';
    KVS_RETURN_IF_ERROR(AppendInteger(&text));
    KVS_RETURN_IF_ERROR(cursor_.Expect("..", "in a range such as [4..7]"));
    text += "..";
    KVS_RETURN_IF_ERROR(AppendInteger(&text));
  } while (cursor_.Accept(","));
  KVS_RETURN_IF_ERROR(cursor_.Expect("]", "after a range"));
  arg->value = text + ']';
  return Status::Ok();
}

Status CallParser::AppendInteger(std::string* text) {
  const std::string_view digits = cursor_.TakeInteger();
  if (digits.empty()) return cursor_.Unexpected("a row number in a range such as [4..7]");
  text->append(digits);
  return Status::Ok();
}

// turbo4 -> turbo(bits=4); the digit's column stands for both key and value.
void SpellOut(SpecCall* call) {
  constexpr std::string_view kTurbo = "turbo";
  const std::string& name = call->name;
  if (name.size() != kTurbo.size() + 1 || !name.starts_with(kTurbo)) return;
  if (name.back() < '1' || name.back() > '5') return;
  const int digit_column = call->column + static_cast<int>(kTurbo.size());
  SpecArg bits{"bits", std::string(1, name.back()), digit_column, digit_column, {}};
  call->args.insert(call->args.begin(), std::move(bits));
  call->name = kTurbo;
}

Status UnreadRest(const SpecCursor& cursor) {
  return cursor.AtEnd() ? Status::Ok() : cursor.Unexpected("the end of the text");
}

}  // namespace

Result<SpecCall> TakeCall(SpecCursor& cursor, std::string_view expected) {
  return CallParser(cursor).Call(expected);
}

Result<std::vector<SpecCall>> TakeChain(SpecCursor& cursor) {
  std::vector<SpecCall> chain;
  do {
    KVS_ASSIGN_OR_RETURN(SpecCall call, TakeCall(cursor, "a codec or a transform"));
    if (chain.size() == kMaxChainStages) {
      return SpecError(call.column, StrCat("a chain has more than ", kMaxChainStages, " stages"));
    }
    SpellOut(&call);
    chain.push_back(std::move(call));
  } while (cursor.Accept("+"));
  return chain;
}

Result<SpecCall> ParseCall(std::string_view text) {
  KVS_RETURN_IF_ERROR(CheckSpecBytes(text));
  SpecCursor cursor(text);
  KVS_ASSIGN_OR_RETURN(SpecCall call, TakeCall(cursor, "a stage"));
  KVS_RETURN_IF_ERROR(UnreadRest(cursor));
  return call;
}

Result<std::vector<SpecCall>> ParseChain(std::string_view text) {
  KVS_RETURN_IF_ERROR(CheckSpecBytes(text));
  SpecCursor cursor(text);
  KVS_ASSIGN_OR_RETURN(std::vector<SpecCall> chain, TakeChain(cursor));
  KVS_RETURN_IF_ERROR(UnreadRest(cursor));
  return chain;
}

Status TakeRows(SpecCursor& cursor, std::string_view option, std::optional<int>* rows) {
  KVS_RETURN_IF_ERROR(cursor.Expect("=", StrCat("after ", option)));
  const int column = cursor.column();
  const std::string_view text = cursor.TakeAtom();
  if (text.empty()) return cursor.Unexpected("a number of rows");
  const Result<std::int64_t> count = ParseInt(text);
  if (!count.ok()) {
    return SpecError(column, StrCat("option ", option, ": '", text, "' is not a number of rows"));
  }
  if (*count < 0 || *count > kMaxRows) {
    return SpecError(column,
                     StrCat("option ", option, ": ", *count, " is outside [0, ", kMaxRows, "]"));
  }
  *rows = static_cast<int>(*count);
  return Status::Ok();
}

void PointAt(int column, std::span<SpecCall> chain) {
  for (SpecCall& call : chain) {
    call.column = column;
    for (SpecArg& arg : call.args) arg.key_column = arg.value_column = column;
  }
}

}  // namespace kvsieve

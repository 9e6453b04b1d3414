#include "lib/spec_cursor.h"

#include "kvsieve/spec_args.h"
#include "kvsieve/str_cat.h"

namespace kvsieve {
namespace {

// Not <cctype>: its answers depend on the locale.
bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsNameChar(char c) {
  return IsDigit(c) || c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
bool IsAtomChar(char c) { return IsNameChar(c) || c == '.' || c == '%' || c == '+' || c == '-'; }

std::string HexByte(char c) {
  constexpr char kDigits[] = "0123456789abcdef";
  const auto byte = static_cast<unsigned char>(c);
  return {'0', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
}

template <class IsMember>
std::size_t EndOfRun(std::string_view text, std::size_t begin, IsMember is_member) {
  while (begin < text.size() && is_member(text[begin])) ++begin;
  return begin;
}

}  // namespace

Status CheckSpecBytes(std::string_view text) {
  if (text.size() > kMaxSpecBytes) {
    return SpecError(kMaxSpecBytes + 1,
                     StrCat("the spec has ", text.size(), " bytes, the limit is ", kMaxSpecBytes));
  }
  std::size_t word_begin = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (!IsSpace(c) && (c < ' ' || c > '~')) {
      return SpecError(static_cast<int>(i) + 1,
                       StrCat("byte ", HexByte(c), " is not allowed, specs are plain ASCII"));
    }
    if (!IsAtomChar(c) || c == '+') word_begin = i + 1;  // '+' joins the words of a chain
    if (i + 1 - word_begin > kMaxWordBytes) {
      return SpecError(static_cast<int>(word_begin) + 1,
                       StrCat("a word is longer than ", kMaxWordBytes, " characters"));
    }
  }
  return Status::Ok();
}

bool SpecCursor::Accept(std::string_view token) {
  if (!text_.substr(position_).starts_with(token)) return false;
  Take(position_ + token.size());
  return true;
}

Status SpecCursor::Expect(std::string_view token, std::string_view where) {
  if (Accept(token)) return Status::Ok();
  return Unexpected(StrCat("'", token, "' ", where));
}

std::string_view SpecCursor::TakeName() { return Take(EndOfRun(text_, position_, IsNameChar)); }

std::string_view SpecCursor::TakeAtom() { return Take(EndOfRun(text_, position_, IsAtomChar)); }

std::string_view SpecCursor::TakeInteger() {
  const std::size_t digits = position_ + (Peek() == '-' ? 1 : 0);
  const std::size_t end = EndOfRun(text_, digits, IsDigit);
  return Take(end == digits ? position_ : end);
}

Status SpecCursor::Unexpected(std::string_view expected) const {
  const std::string got = AtEnd() ? "the end of the spec" : StrCat("'", Peek(), "'");
  return SpecError(column(), StrCat("expected ", expected, ", got ", got));
}

std::string_view SpecCursor::Take(std::size_t end) {
  const std::string_view taken = text_.substr(position_, end - position_);
  position_ = end;
  SkipSpace();
  return taken;
}

void SpecCursor::SkipSpace() { position_ = EndOfRun(text_, position_, IsSpace); }

}  // namespace kvsieve

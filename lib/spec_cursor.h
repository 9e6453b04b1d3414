// Reads a pipeline spec character by character: skips white space between tokens, knows the column
// of what it reads, and words every complaint the same way. The grammar is in spec_parser.
#ifndef KVSIEVE_LIB_SPEC_CURSOR_H_
#define KVSIEVE_LIB_SPEC_CURSOR_H_

#include <cstddef>
#include <string_view>

#include "kvsieve/result.h"

namespace kvsieve {

inline constexpr std::size_t kMaxSpecBytes = 16 * 1024;
inline constexpr std::size_t kMaxWordBytes = 64;  // so that a message can quote every word

// The spec or a word of it too long, or a byte that is neither printable ASCII nor white space: an
// error at its column.
Status CheckSpecBytes(std::string_view text);

// Precondition: CheckSpecBytes(text). The text outlives the cursor.
class SpecCursor {
 public:
  explicit SpecCursor(std::string_view text) : text_(text) { SkipSpace(); }

  // Between calls the cursor stands on a token or at the end, never on white space.
  bool AtEnd() const { return position_ == text_.size(); }
  char Peek() const { return AtEnd() ? '\0' : text_[position_]; }
  int column() const { return static_cast<int>(position_) + 1; }

  // Takes `token` when it comes next.
  bool Accept(std::string_view token);
  // Takes `token`, or complains that it was expected `where` ("after layers").
  Status Expect(std::string_view token, std::string_view where);

  // Each takes the longest run of its characters; empty when there is none.
  std::string_view TakeName();     // letters, digits, _
  std::string_view TakeAtom();     // those and . % + -, for values
  std::string_view TakeInteger();  // digits, perhaps after one -

  // "column 9: expected a codec, got ')'".
  Status Unexpected(std::string_view expected) const;

 private:
  std::string_view Take(std::size_t end);
  void SkipSpace();

  std::string_view text_;
  std::size_t position_ = 0;
};

}  // namespace kvsieve

#endif  // KVSIEVE_LIB_SPEC_CURSOR_H_

// Cases of files that must be refused: each is a good trace with one mistake.
#ifndef KVSIEVE_TESTS_EVAL_MALFORMED_H_
#define KVSIEVE_TESTS_EVAL_MALFORMED_H_

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kvsieve/eval/trace.h"
#include "tests/eval/test_trace.h"

namespace kvsieve::eval {

struct Malformed {
  std::string name;
  std::function<void(TestFile&)> edit;
  std::vector<std::string> words;  // that the message must hold
};

using Edits = std::vector<std::pair<std::string, std::string>>;

inline Malformed HeaderEdit(const std::string& name, const Edits& edits,
                            const std::vector<std::string>& words) {
  return {name, [edits](TestFile& file) { file.header_edits = edits; }, words};
}

// Each is refused with one line that names the file, says what is wrong and what to do.
inline void ExpectRefused(const std::vector<Malformed>& cases) {
  for (const Malformed& malformed : cases) {
    SCOPED_TRACE(malformed.name);
    TestFile file = MakeTestTrace({});
    malformed.edit(file);
    const auto trace = Trace::FromBytes(file.Encode(), "folder/bad.safetensors");
    ASSERT_FALSE(trace.ok());
    EXPECT_TRUE(trace.message().starts_with("folder/bad.safetensors: ")) << trace.message();
    EXPECT_EQ(trace.message().find('\n'), std::string::npos) << trace.message();
    EXPECT_NE(trace.message().find("; "), std::string::npos) << "no remedy: " << trace.message();
    for (const std::string& word : malformed.words) {
      EXPECT_NE(trace.message().find(word), std::string::npos)
          << "expected \"" << word << "\" in: " << trace.message();
    }
  }
}

}  // namespace kvsieve::eval

#endif  // KVSIEVE_TESTS_EVAL_MALFORMED_H_

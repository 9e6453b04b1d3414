// Where output goes: whether a person watches it, how wide it is, progress and warnings.
#ifndef KVSIEVE_TOOLS_TERMINAL_H_
#define KVSIEVE_TOOLS_TERMINAL_H_

#include <cstdio>
#include <string_view>

namespace kvsieve::tools {

// Colours: only on a terminal, not with NO_COLOR set, not on a dumb one.
bool UseColour(std::FILE* stream);

// Columns of the terminal behind `stream`; 0 when it is none (then nothing is wrapped).
int TerminalColumns(std::FILE* stream);

// One line on stderr.
void Warn(bool quiet, std::string_view message);

// A line on stderr that is updated in place. Silent unless stderr is a terminal.
class Progress {
 public:
  Progress(bool quiet, int steps);
  ~Progress();  // removes the line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Announces the next step.
  void Step(std::string_view what);
  void Clear();

 private:
  const int steps_;
  const bool shown_;
  int step_ = 0;
};

}  // namespace kvsieve::tools

#endif  // KVSIEVE_TOOLS_TERMINAL_H_

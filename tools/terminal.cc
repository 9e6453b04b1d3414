#include "tools/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>

namespace kvsieve::tools {
namespace {

constexpr int kDefaultColumns = 80;

bool IsTerminal(std::FILE* stream) { return isatty(fileno(stream)) == 1; }

}  // namespace

bool UseColour(std::FILE* stream) {
  const char* no_colour = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  return IsTerminal(stream) && (no_colour == nullptr || *no_colour == '\0') &&
         terminal != nullptr && std::string_view(terminal) != "dumb";
}

int TerminalColumns(std::FILE* stream) {
  if (!IsTerminal(stream)) return 0;
  winsize size{};
  if (ioctl(fileno(stream), TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kDefaultColumns;
  return size.ws_col;
}

void Warn(bool quiet, std::string_view message) {
  if (quiet) return;
  std::fprintf(stderr, "kvsieve: warning: %.*s\n", static_cast<int>(message.size()),
               message.data());
}

Progress::Progress(bool quiet, int steps) : steps_(steps), shown_(!quiet && IsTerminal(stderr)) {}

Progress::~Progress() { Clear(); }

void Progress::Step(std::string_view what) {
  ++step_;
  if (!shown_) return;
  char count[32];
  const int used = std::snprintf(count, sizeof count, "[%d/%d] ", step_, steps_);
  // A line that wraps could not be taken back.
  const int room = std::max(0, TerminalColumns(stderr) - used - 1);
  const int shown = std::min(room, static_cast<int>(what.size()));
  std::fprintf(stderr, "\r\x1b[K%s%.*s", count, shown, what.data());
  std::fflush(stderr);
}

void Progress::Clear() {
  if (!shown_ || step_ == 0) return;
  std::fprintf(stderr, "\r\x1b[K");
  std::fflush(stderr);
}

}  // namespace kvsieve::tools

// kvsieve: what eviction and compression of a KV cache cost and save, on a recorded trace.
//
// Exit codes: 0 done, 1 the answer is no (fit), 2 bad usage or bad input, with one line on stderr:
// what, where, what to do.
#include <signal.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "kvsieve/spec_args.h"
#include "kvsieve/str_cat.h"
#include "kvsieve/targets.h"
#include "lib/eval/atomic_file.h"
#include "lib/eval/file_error.h"
#include "tools/context.h"
#include "tools/decimal.h"

namespace kvsieve::tools {
namespace {

constexpr int kDone = 0;
constexpr int kAnswerIsNo = 1;
constexpr int kBadInput = 2;
constexpr int kMaxThreads = 1024;

int Fail(std::string message) {
  while (!message.empty() && message.back() == '\n') message.pop_back();
  std::replace(message.begin(), message.end(), '\n', ' ');
  std::fprintf(stderr, "kvsieve: %s\n", message.c_str());
  return kBadInput;
}

// The command that the user reached, for "see 'kvsieve compare --help'".
std::string HelpCommand(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? "kvsieve --help" : StrCat("kvsieve ", chosen[0]->get_name(), " --help");
}

// CLI11 says "A subcommand is required" whether a command is missing or misspelt.
int FailUsage(const CLI::App& app, const CLI::ParseError& error) {
  if (app.get_subcommands().empty() && error.get_name() == "RequiredError") {
    const std::vector<std::string> unknown = app.remaining();
    if (unknown.empty()) return Fail("no command given, see 'kvsieve --help'");
    std::vector<std::string_view> known;
    for (const CLI::App* command : app.get_subcommands({})) known.push_back(command->get_name());
    const bool is_option = unknown[0].starts_with('-');
    return Fail(StrCat("unknown ", is_option ? "option" : "command", " '", unknown[0], "'",
                       is_option ? "" : Suggest(unknown[0], known), ", see 'kvsieve --help'"));
  }
  return Fail(StrCat(error.what(), ", see '", HelpCommand(app), "'"));
}

void AddGlobalOptions(CLI::App& app, Context& context) {
  app.add_flag("--quiet", context.quiet, "No progress and no warnings; errors still show");
  app.add_option("--threads", context.threads, "Threads to use (default: all cores)")
      ->check(Decimal(1, kMaxThreads))
      ->type_name("N");
  std::string names;
  for (const std::string_view name : SupportedTargets()) {
    names += StrCat(names.empty() ? "" : ", ", name);
  }
  app.add_option("--target", context.target,
                 StrCat("Instruction set of the kernels: ", names, " (default: the first)"))
      ->type_name("NAME");
  app.set_version_flag("--version", "kvsieve " KVS_VERSION, "Print the version");
}

Status FlushOutput() {
  const bool failed_before = std::ferror(stdout) != 0;  // and nobody kept the reason
  if (std::fflush(stdout) != 0) return eval::FileErrors("standard output").System("write", errno);
  if (!failed_before) return {};
  return {ErrorCode::kIo, "standard output: cannot write all of it; check its disk or its reader"};
}

Status RunCommand(Context& context) {
  KVS_RETURN_IF_ERROR(SelectTarget(context.target));
  KVS_RETURN_IF_ERROR(context.run(context));
  return FlushOutput();
}

Status PrintHelpOrVersion(const CLI::App& app, const CLI::Success& asked) {
  std::ostringstream text;
  app.exit(asked, text, text);
  std::fputs(text.str().c_str(), stdout);
  return FlushOutput();
}

// Ends the program as the signal would, without leaving files that are half written.
void EndBySignal(int number) {
  eval::RemoveTemporaryFiles();
  std::raise(number);  // SA_RESETHAND: its own action now
}

void HandleSignals() {
  std::signal(SIGXFSZ, SIG_IGN);  // the write fails, and its error says what to do
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction action = {};
    if (sigaction(number, nullptr, &action) != 0 || action.sa_handler == SIG_IGN) continue;
    action = {};
    action.sa_handler = EndBySignal;
    action.sa_flags = static_cast<int>(SA_RESETHAND | SA_NODEFER);
    sigaction(number, &action, nullptr);
  }
}

int Main(int argc, char** argv) {
  HandleSignals();
  CLI::App app("What eviction and compression of a KV cache cost and save.", "kvsieve");
  Context context;
  app.require_subcommand(1);
  app.fallthrough();  // inherited by the commands: global options may stand anywhere
  AddGlobalOptions(app, context);
  for (const auto add :
       {AddCompare, AddReport, AddCompact, AddExplain, AddList, AddGen, AddInspect, AddFit}) {
    add(app, context);
  }
  Status status;
  try {
    app.parse(argc, argv);
    status = RunCommand(context);
  } catch (const CLI::Success& help_or_version) {
    status = PrintHelpOrVersion(app, help_or_version);
  } catch (const CLI::ParseError& error) {
    return FailUsage(app, error);
  }
  if (!status.ok()) return Fail(status.message());
  return context.answer_is_no ? kAnswerIsNo : kDone;
}

}  // namespace
}  // namespace kvsieve::tools

int main(int argc, char** argv) {
  try {
    return kvsieve::tools::Main(argc, argv);
  } catch (const std::bad_alloc&) {
    return kvsieve::tools::Fail("out of memory, use a smaller input or fewer threads");
  } catch (const std::exception& error) {
    return kvsieve::tools::Fail(error.what());
  }
}

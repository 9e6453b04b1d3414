// What every command shares: the global options, and the action that the command line chose.
#ifndef KVSIEVE_TOOLS_CONTEXT_H_
#define KVSIEVE_TOOLS_CONTEXT_H_

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>

#include "kvsieve/eval/thread_pool.h"
#include "kvsieve/result.h"

namespace kvsieve::tools {

struct Context {
  bool quiet = false;
  int threads = 0;            // 0: all cores
  std::string target;         // empty: the best one
  bool answer_is_no = false;  // set by a command that answers a question

  // Set by the command that was named; called once the global options are known.
  std::function<Status(Context&)> run;

  // Created on first use, so that commands which need no threads start none.
  Parallel& parallel() {
    if (pool_ == nullptr) pool_ = std::make_unique<eval::ThreadPool>(threads);
    return *pool_;
  }

 private:
  std::unique_ptr<eval::ThreadPool> pool_;
};

// Each declares one command. Its options live in the action that it installs.
void AddCompare(CLI::App& app, Context& context);
void AddReport(CLI::App& app, Context& context);
void AddCompact(CLI::App& app, Context& context);
void AddExplain(CLI::App& app, Context& context);
void AddList(CLI::App& app, Context& context);
void AddGen(CLI::App& app, Context& context);
void AddInspect(CLI::App& app, Context& context);
void AddFit(CLI::App& app, Context& context);

// Declares a command whose options are one `Options` value and whose action is
// `run(context, options)`.
template <class Options>
CLI::App* AddCommand(CLI::App& app, Context& context, const std::string& name,
                     const std::string& summary, std::shared_ptr<Options> options,
                     Status (*run)(Context&, const Options&)) {
  CLI::App* command = app.add_subcommand(name, summary);
  command->footer("Also: --quiet, --threads N, --target NAME, see 'kvsieve --help'.");
  command->callback([&context, options, run] {
    context.run = [options, run](Context& c) { return run(c, *options); };
  });
  return command;
}

}  // namespace kvsieve::tools

#endif  // KVSIEVE_TOOLS_CONTEXT_H_

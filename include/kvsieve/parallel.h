// How the caller lends threads. Kernels never start one.
#ifndef KVSIEVE_PARALLEL_H_
#define KVSIEVE_PARALLEL_H_

#include <cstdint>
#include <type_traits>

namespace kvsieve {

// Runs independent tasks. Results of kvsieve never depend on the number of workers: work is cut
// by KV head, then by fixed row ranges, never by worker.
class Parallel {
 public:
  // `context` is the caller's; `task` in [0, tasks); `worker` in [0, workers()).
  using TaskFn = void (*)(void* context, std::int64_t task, int worker);

  virtual ~Parallel() = default;
  virtual int workers() const = 0;
  // Returns after all tasks have run. Tasks must not throw.
  virtual void Run(std::int64_t tasks, TaskFn fn, void* context) = 0;
};

// All tasks on the calling thread, in order. Stateless.
class SerialParallel final : public Parallel {
 public:
  int workers() const override { return 1; }
  void Run(std::int64_t tasks, TaskFn fn, void* context) override {
    for (std::int64_t task = 0; task < tasks; ++task) fn(context, task, 0);
  }
};

// ParallelFor(parallel, n, [&](std::int64_t task, int worker) { ... });
template <class Body>
void ParallelFor(Parallel& parallel, std::int64_t tasks, Body&& body) {
  parallel.Run(
      tasks,
      [](void* context, std::int64_t task, int worker) {
        (*static_cast<std::remove_reference_t<Body>*>(context))(task, worker);
      },
      const_cast<void*>(static_cast<const void*>(&body)));
}

}  // namespace kvsieve

#endif  // KVSIEVE_PARALLEL_H_

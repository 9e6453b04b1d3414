// Threads for tools and tests. An engine lends its own through kvsieve::Parallel.
#ifndef KVSIEVE_EVAL_THREAD_POOL_H_
#define KVSIEVE_EVAL_THREAD_POOL_H_

#include <cstdint>
#include <memory>

#include "kvsieve/parallel.h"

namespace kvsieve::eval {

// A fixed set of threads that live as long as the pool. The thread that calls Run works too, as
// worker 0. Run must not be called from a task, nor by two threads at once.
class ThreadPool final : public Parallel {
 public:
  // `threads` includes the calling one; 0 or less: as many as this process may use. When the
  // system refuses a thread the pool is smaller than asked for.
  explicit ThreadPool(int threads);
  ~ThreadPool() override;
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int workers() const override;
  void Run(std::int64_t tasks, TaskFn fn, void* context) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvsieve::eval

#endif  // KVSIEVE_EVAL_THREAD_POOL_H_

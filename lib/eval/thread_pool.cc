#include "kvsieve/eval/thread_pool.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace kvsieve::eval {

struct ThreadPool::Impl {
  struct Job {
    TaskFn fn = nullptr;
    void* context = nullptr;
    std::int64_t tasks = 0;
  };

  // Tasks are claimed one by one: they are few and long, and may differ in length.
  void Work(const Job& current, int worker) {
    for (std::int64_t task = next_task++; task < current.tasks; task = next_task++) {
      current.fn(current.context, task, worker);
    }
  }

  void Loop(int worker) {
    std::unique_lock lock(mutex);
    for (std::int64_t seen_jobs = 0;;) {
      wake.wait(lock, [&] { return stopping || jobs_started != seen_jobs; });
      if (stopping) return;
      seen_jobs = jobs_started;
      const Job current = job;
      lock.unlock();
      Work(current, worker);
      lock.lock();
      if (--busy == 0) done.notify_one();
    }
  }

  std::vector<std::thread> threads;
  std::mutex mutex;
  std::condition_variable wake;
  std::condition_variable done;
  std::atomic<std::int64_t> next_task = 0;
  Job job;  // the rest under `mutex`
  std::int64_t jobs_started = 0;
  std::size_t busy = 0;  // threads that have not finished the current job
  bool stopping = false;
};

ThreadPool::ThreadPool(int threads) : impl_(std::make_unique<Impl>()) {
  if (threads <= 0) threads = static_cast<int>(std::thread::hardware_concurrency());
  try {
    for (int worker = 1; worker < threads; ++worker) {
      impl_->threads.emplace_back([impl = impl_.get(), worker] { impl->Loop(worker); });
    }
  } catch (const std::system_error&) {
    // The system has no more threads for us: work with those there are.
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
  }
  impl_->wake.notify_all();
  for (std::thread& thread : impl_->threads) thread.join();
}

int ThreadPool::workers() const { return static_cast<int>(impl_->threads.size()) + 1; }

void ThreadPool::Run(std::int64_t tasks, TaskFn fn, void* context) {
  const Impl::Job job{fn, context, tasks};
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->job = job;
    impl_->next_task = 0;
    impl_->busy = impl_->threads.size();
    ++impl_->jobs_started;
  }
  impl_->wake.notify_all();
  impl_->Work(job, 0);
  std::unique_lock lock(impl_->mutex);
  impl_->done.wait(lock, [&] { return impl_->busy == 0; });
}

}  // namespace kvsieve::eval

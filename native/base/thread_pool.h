// SPDX-License-Identifier: Apache-2.0
// Worker threads of one session: fork-join over numbered tasks, without allocation.
#pragma once
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace hotset {

class ThreadPool {
 public:
  // n_threads counts the caller: n_threads - 1 workers are started. At least 1.
  explicit ThreadPool(int n_threads);
  // Waits for the workers; in a child made by fork(), which has none of them, for nothing.
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return n_threads_; }

  // Calls f(task, thread) once for each task in [0, n_tasks), thread in [0, size()), and returns when all are done.
  // Tasks are claimed one by one, so a worker that the system has put aside between two holds up nobody; workers see to it
  // that this is where it happens. The first exception of a task is thrown again here. When another call is in flight (two
  // runs of one session, or a task that calls again) the tasks run on the calling thread as thread 0.
  template <class F>
  void parallel_for(int64_t n_tasks, F&& f) {
    run_tasks(
        n_tasks, [](void* context, int64_t task, int thread) { (*static_cast<std::remove_reference_t<F>*>(context))(task, thread); },
        const_cast<void*>(static_cast<const void*>(&f)));
  }

 private:
  using Call = void (*)(void* context, int64_t task, int thread);
  void run_tasks(int64_t n_tasks, Call call, void* context);
  void worker(int thread);
  bool claim_and_run(uint32_t epoch, int thread);

  // ticket: high 32 bits epoch of the job, low 32 bits next unclaimed task. A claim is one compare-and-swap, which fails
  // when the job is over; the job fields are read before it and used only after it succeeded.
  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) std::atomic<uint32_t> n_done_{0};
  alignas(64) std::atomic<uint32_t> epoch_{0};  // what sleeping workers wait on
  std::atomic<uint32_t> n_tasks_{0};
  std::atomic<Call> call_{nullptr};
  std::atomic<void*> context_{nullptr};
  std::atomic<bool> stop_{false};
  std::mutex busy_;
  std::mutex error_mutex_;
  std::exception_ptr error_;
  const int n_threads_;
  const int64_t process_;
  std::unique_ptr<std::vector<std::thread>> threads_;
};

// The number of the calling process: a child made by fork() has another one than its parent.
int64_t process_id();

// Threads that this process may keep busy: the processors of its affinity mask, or as many as the CPU quota of its control
// group pays for where that is less; at least 1.
int available_threads();

}  // namespace hotset

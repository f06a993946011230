// SPDX-License-Identifier: Apache-2.0
// The thread pool runs every task once, from several callers, with exceptions, with any number of threads.
#include "base/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <stdexcept>
#include <vector>

#include "base/cpu_quota.h"

#if defined(__linux__)
#include <sched.h>
#endif

using hotset::ThreadPool;

namespace {

int failures = 0;
void expect(bool ok, const char* what) {
  if (ok) return;
  std::printf("FAILED: %s\n", what);
  ++failures;
}

void each_task_once(int n_threads) {
  ThreadPool pool(n_threads);
  for (int round = 0; round < 400; ++round) {
    const int n = round % 67;
    std::vector<std::atomic<int>> hits(static_cast<size_t>(n));
    std::atomic<bool> bad_thread{false};
    pool.parallel_for(n, [&](int64_t task, int thread) {
      hits[static_cast<size_t>(task)].fetch_add(1);
      if (thread < 0 || thread >= pool.size()) bad_thread = true;
    });
    for (const auto& h : hits) expect(h.load() == 1, "a task ran once");
    expect(!bad_thread, "thread numbers are in range");
  }
}

// Jobs of changing size and context back to back: a late worker must never run a task of another job.
void no_task_of_an_old_job() {
  ThreadPool pool(4);
  std::atomic<int64_t> total{0};
  int64_t expected = 0;
  for (int round = 0; round < 50000; ++round) {
    const int n = 2 + round % 5;
    int64_t local[8] = {};
    pool.parallel_for(n, [&](int64_t task, int) { local[task] += round + task; });
    for (int i = 0; i < n; ++i) {
      expect(local[i] == round + i, "the task saw its own job");
      total += local[i];
      expected += round + i;
    }
  }
  expect(total == expected, "sums agree");
}

void several_callers() {
  ThreadPool pool(3);
  std::atomic<int> done{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&] {
      for (int round = 0; round < 2000; ++round) {
        std::atomic<int> n{0};
        pool.parallel_for(9, [&](int64_t, int) { n.fetch_add(1); });
        if (n == 9) done.fetch_add(1);
      }
    });
  }
  for (auto& t : callers) t.join();
  expect(done == 8000, "every call of every caller ran all its tasks");
}

void exceptions_come_back() {
  ThreadPool pool(4);
  for (int round = 0; round < 200; ++round) {
    bool caught = false;
    try {
      pool.parallel_for(16, [&](int64_t task, int) {
        if (task == round % 16) throw std::runtime_error("task");
      });
    } catch (const std::runtime_error&) {
      caught = true;
    }
    expect(caught, "the exception reached the caller");
  }
  std::atomic<int> n{0};
  pool.parallel_for(16, [&](int64_t, int) { n.fetch_add(1); });
  expect(n == 16, "the pool works after exceptions");
}

void nested_calls_run_inline() {
  ThreadPool pool(2);
  std::atomic<int> n{0};
  pool.parallel_for(4, [&](int64_t, int) { pool.parallel_for(4, [&](int64_t, int) { n.fetch_add(1); }); });
  expect(n == 16, "nested tasks ran");
}

void idle_pool_uses_no_processor() {
  ThreadPool pool(2);
  pool.parallel_for(2, [](int64_t, int) {});
  const std::clock_t before = std::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const double used = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
  expect(used < 0.02, "idle workers sleep");
}

// The caller waits for a worker's long task, then the worker for the next job: each spins for 50 us at most, then sleeps.
void waiting_threads_sleep() {
  ThreadPool pool(2);
  constexpr int kRounds = 100;
  const std::clock_t before = std::clock();
  for (int round = 0; round < kRounds; ++round) {
    std::atomic<bool> started{false};
    pool.parallel_for(2, [&](int64_t, int thread) {
      if (thread != 0) {
        started = true;
        std::this_thread::sleep_for(std::chrono::milliseconds(3));
      }
      for (int i = 0; i < 3 && !started; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const double used_us = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC * 1e6 / kRounds;
  if (used_us >= 400) std::printf("%.0f us a round\n", used_us);
  expect(used_us < 400, "two waits of 50 us and the system calls around them");
}

#if defined(__linux__)
double thread_cpu_us() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) * 1e-3;
}

// Processor time of each thread over each of its waits, from the end of its task to the wake: 50 us of spinning and the system
// calls around them. The median, since an interrupt is charged to the thread that it meets.
void a_wait_spins_50_us() {
  ThreadPool pool(2);
  std::vector<double> worker, caller;
  double worker_end = 0, caller_end = 0;
  for (int round = 0; round < 120; ++round) {
    std::atomic<int> started{0};
    pool.parallel_for(2, [&](int64_t, int thread) {
      if (thread != 0 && round > 0) worker.push_back(thread_cpu_us() - worker_end);  // it slept since the last round
      started.fetch_add(1);
      while (started != 2) std::this_thread::sleep_for(std::chrono::microseconds(50));
      if (thread == 0) {
        caller_end = thread_cpu_us();
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));  // the caller waits
      worker_end = thread_cpu_us();
    });
    caller.push_back(thread_cpu_us() - caller_end);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // the worker waits
  }
  for (std::vector<double>* waits : {&worker, &caller}) {
    std::sort(waits->begin(), waits->end());
    const double median = (*waits)[waits->size() / 2];
    if (median >= 100 || median < 5) std::printf("%s: %.1f us a wait\n", waits == &worker ? "worker" : "caller", median);
    expect(median < 100, "a wait costs 50 us and two system calls");
    expect(median > 5, "a wait spins before it sleeps");
  }
  expect(worker.size() == 119 && caller.size() == 120, "every wait was measured");
}
#endif

// A worker gives way between two tasks of a long job and still all tasks run.
void long_jobs() {
  ThreadPool pool(3);
  std::atomic<int> n{0};
  pool.parallel_for(60, [&](int64_t, int) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(300);
    while (std::chrono::steady_clock::now() < end) {
    }
    n.fetch_add(1);
  });
  expect(n == 60, "all tasks of a long job ran");
}

void available_is_the_mask_or_the_quota() {
  expect(hotset::available_threads() >= 1, "at least one thread");
#if defined(__linux__)
  cpu_set_t all, one;
  if (sched_getaffinity(0, sizeof all, &all) != 0) return;
  const int quota = hotset::cpu_quota_threads();
  expect(hotset::available_threads() == (quota ? std::min(quota, CPU_COUNT(&all)) : CPU_COUNT(&all)), "what mask and quota allow");
  CPU_ZERO(&one);
  for (int i = 0; i < CPU_SETSIZE && !CPU_COUNT(&one); ++i)
    if (CPU_ISSET(i, &all)) CPU_SET(i, &one);
  expect(sched_setaffinity(0, sizeof one, &one) == 0 && hotset::available_threads() == 1, "one");
  sched_setaffinity(0, sizeof all, &all);
#endif
}

}  // namespace

int main() {
  for (int n : {1, 2, 3, 65, 129}) each_task_once(n);
  no_task_of_an_old_job();
  several_callers();
  exceptions_come_back();
  nested_calls_run_inline();
  idle_pool_uses_no_processor();
  waiting_threads_sleep();
#if defined(__linux__)
  a_wait_spins_50_us();
#endif
  long_jobs();
  available_is_the_mask_or_the_quota();
  if (!failures) std::printf("ok\n");
  return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}

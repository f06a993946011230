// SPDX-License-Identifier: Apache-2.0
// Fork-join worker threads. A waiting thread spins at most kSpin, then sleeps in the kernel.
#include "base/thread_pool.h"

#include <algorithm>
#include <chrono>

#include "base/cpu_quota.h"

#if defined(_WIN32)
#include <process.h>
#else
#include <unistd.h>
#endif
#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace hotset {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::microseconds kSpin{50};
// A worker that has run this long gives way between two tasks, where nobody waits for it. Linux takes a processor that
// others want away after 1.4 to 4 ms, and would do so in the middle of a task, for which all others then wait as long.
constexpr std::chrono::microseconds kTurn{1300};

inline void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins until value != old or the time is up; then sleeps until it changes. Returns how long it slept.
Clock::duration wait_while_equal(const std::atomic<uint32_t>& value, uint32_t old) {
  Clock::time_point now = Clock::now();
  const Clock::time_point end = now + kSpin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (value.load(std::memory_order_acquire) != old) return {};
      pause();
    }
  } while ((now = Clock::now()) < end);
  value.wait(old, std::memory_order_acquire);
  return Clock::now() - now;
}

}  // namespace

int64_t process_id() {
#if defined(_WIN32)
  return _getpid();
#else
  return getpid();
#endif
}

namespace {

// Processors of the affinity mask.
int mask_threads() {
#if defined(__linux__)
  // A mask larger than cpu_set_t (1024 processors) makes the call fail with the small set: grow it.
  for (int bits = CPU_SETSIZE; bits <= (1 << 16); bits *= 4) {
    cpu_set_t* set = CPU_ALLOC(static_cast<size_t>(bits));
    if (!set) break;
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(bits));
    const int n = sched_getaffinity(0, bytes, set) == 0 ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (n > 0) return n;
  }
#endif
  const unsigned n = std::thread::hardware_concurrency();
  return n ? static_cast<int>(n) : 1;
}

}  // namespace

int available_threads() {
  const int mask = mask_threads();
#if defined(__linux__)
  if (const int quota = cpu_quota_threads()) return std::min(mask, quota);
#endif
  return mask;
}

ThreadPool::ThreadPool(int n_threads)
    : n_threads_(n_threads < 1 ? 1 : n_threads), process_(process_id()), threads_(std::make_unique<std::vector<std::thread>>()) {
  try {
    for (int i = 1; i < n_threads_; ++i) {
      threads_->emplace_back([this, i] { worker(i); });
#if defined(__linux__)
      pthread_setname_np(threads_->back().native_handle(), "hotset-worker");
#endif
    }
  } catch (...) {
    stop_.store(true);
    epoch_.fetch_add(1);
    epoch_.notify_all();
    for (auto& t : *threads_) t.join();
    throw;
  }
}

ThreadPool::~ThreadPool() {
  if (process_id() != process_) {
    threads_.release();  // handles of threads that do not exist here can be neither joined nor let go
    return;
  }
  stop_.store(true, std::memory_order_release);
  epoch_.fetch_add(1, std::memory_order_acq_rel);
  epoch_.notify_all();
  for (auto& t : *threads_) t.join();
}

// Claims one task of job `epoch` and runs it; false when none is left or the job is over.
bool ThreadPool::claim_and_run(uint32_t epoch, int thread) {
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  for (;;) {
    if (static_cast<uint32_t>(ticket >> 32) != epoch) return false;
    const uint32_t task = static_cast<uint32_t>(ticket), n = n_tasks_.load(std::memory_order_acquire);
    const Call call = call_.load(std::memory_order_acquire);
    void* const context = context_.load(std::memory_order_acquire);
    if (task >= n) return false;
    if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
    try {
      call(context, task, thread);
    } catch (...) {
      const std::lock_guard lock(error_mutex_);
      if (!error_) error_ = std::current_exception();
    }
    // The last one wakes the caller; nothing of the job may be touched after this.
    if (n_done_.fetch_add(1, std::memory_order_acq_rel) + 1 == n) n_done_.notify_one();
    return true;
  }
}

void ThreadPool::worker(int thread) {
  uint32_t seen = 0;
  Clock::time_point begin = Clock::now();
  for (;;) {
    begin += wait_while_equal(epoch_, seen);
    seen = epoch_.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_acquire)) return;
    while (claim_and_run(seen, thread)) {
      if (Clock::now() - begin < kTurn) continue;
      std::this_thread::yield();
      begin = Clock::now();
    }
  }
}

void ThreadPool::run_tasks(int64_t n_tasks, Call call, void* context) {
  if (n_tasks <= 0) return;
  std::unique_lock lock(busy_, std::defer_lock);
  if (n_threads_ == 1 || n_tasks == 1 || n_tasks >= UINT32_MAX || !lock.try_lock()) {
    for (int64_t i = 0; i < n_tasks; ++i) call(context, i, 0);
    return;
  }
  const uint32_t n = static_cast<uint32_t>(n_tasks);
  const uint32_t epoch = epoch_.load(std::memory_order_relaxed) + 1;
  // Close the ticket first: a late worker that still holds the old one and reads a new field below then fails its
  // compare-and-swap (release on the fields, acquire in claim_and_run).
  ticket_.store(static_cast<uint64_t>(epoch) << 32 | UINT32_MAX, std::memory_order_relaxed);
  n_tasks_.store(n, std::memory_order_release);
  call_.store(call, std::memory_order_release);
  context_.store(context, std::memory_order_release);
  n_done_.store(0, std::memory_order_relaxed);
  ticket_.store(static_cast<uint64_t>(epoch) << 32, std::memory_order_release);
  epoch_.store(epoch, std::memory_order_release);
  if (n == 2)
    epoch_.notify_one();
  else
    epoch_.notify_all();
  while (claim_and_run(epoch, 0)) {
  }
  for (uint32_t done; (done = n_done_.load(std::memory_order_acquire)) != n;) wait_while_equal(n_done_, done);
  if (error_) {
    std::exception_ptr error = std::move(error_);
    error_ = nullptr;
    std::rethrow_exception(error);
  }
}

}  // namespace hotset

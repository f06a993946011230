// SPDX-License-Identifier: Apache-2.0
// What the memory and the arithmetic units of this machine give to n threads; bench_moe_layer.py compiles and calls it.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef void work_fn(const void *argument, int thread, int threads);

typedef struct {
  work_fn *work;
  const void *argument;
  int thread, threads;
  pthread_barrier_t *start;
  double begin, end;
} job;

static volatile uint64_t sink;

static void *run_job(void *p) {
  job *j = p;
  pthread_barrier_wait(j->start);
  j->begin = now();
  j->work(j->argument, j->thread, j->threads);
  j->end = now();
  return NULL;
}

// Seconds from the first start to the last end of `work` on n threads, the caller among them.
static double seconds(work_fn *work, const void *argument, int n) {
  job jobs[256];
  pthread_t threads[256];
  pthread_barrier_t start;
  if (n < 1 || n > 256 || pthread_barrier_init(&start, NULL, (unsigned)n)) return -1;
  for (int i = 0; i < n; ++i) jobs[i] = (job){work, argument, i, n, &start, 0, 0};
  for (int i = 1; i < n; ++i)
    if (pthread_create(&threads[i], NULL, run_job, &jobs[i])) abort();
  run_job(&jobs[0]);
  double begin = jobs[0].begin, end = jobs[0].end;
  for (int i = 1; i < n; ++i) {
    pthread_join(threads[i], NULL);
    if (jobs[i].begin < begin) begin = jobs[i].begin;
    if (jobs[i].end > end) end = jobs[i].end;
  }
  pthread_barrier_destroy(&start);
  return end - begin;
}

// ---- memory -----------------------------------------------------------------------------------------------------------------------

typedef struct {
  const uint8_t *base;
  const uint64_t *offsets;  // of runs of bytes
  uint64_t run_bytes, n_runs;
} ranges;

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void read_ranges(const void *argument, int thread, int threads) {
  const ranges *r = argument;
  __m256i sum[4];
  for (int j = 0; j < 4; ++j) sum[j] = _mm256_setzero_si256();
  const uint64_t part = r->run_bytes / (uint64_t)threads / 256 * 256;
  for (uint64_t i = 0; i < r->n_runs; ++i) {
    const uint8_t *p = r->base + r->offsets[i] + part * (uint64_t)thread;
    for (uint64_t at = 0; at < part; at += 256)
      for (int j = 0; j < 8; ++j) {
        if (j % 2 == 0) _mm_prefetch((const char *)p + at + 32 * j + 4096, _MM_HINT_T0);
        sum[j % 4] = _mm256_add_epi64(sum[j % 4], _mm256_loadu_si256((const __m256i *)(p + at + 32 * j)));
      }
  }
  sum[0] = _mm256_add_epi64(_mm256_add_epi64(sum[0], sum[1]), _mm256_add_epi64(sum[2], sum[3]));
  sink += (uint64_t)_mm256_extract_epi64(sum[0], 0) + (uint64_t)_mm256_extract_epi64(sum[0], 2);
}
#else
static void read_ranges(const void *argument, int thread, int threads) {
  const ranges *r = argument;
  uint64_t sum[4] = {0, 0, 0, 0};
  const uint64_t part = r->run_bytes / (uint64_t)threads / 64 * 64;
  for (uint64_t i = 0; i < r->n_runs; ++i) {
    const uint64_t *p = (const uint64_t *)(r->base + r->offsets[i] + part * (uint64_t)thread);
    for (uint64_t at = 0; at < part / 8; at += 8)
      for (int j = 0; j < 8; ++j) sum[j % 4] += p[at + (uint64_t)j];
  }
  sink += sum[0] + sum[1] + sum[2] + sum[3];
}
#endif

// Seconds that n threads need to read `n_runs` runs of `run_bytes` bytes at the given offsets of base, each split among the threads.
double roof_read_seconds(const void *base, const uint64_t *offsets, uint64_t n_runs, uint64_t run_bytes, int n) {
  const ranges r = {base, offsets, run_bytes, n_runs};
  return seconds(read_ranges, &r, n);
}

// `bytes` of anonymous memory, written to, with huge pages if the kernel gives them; NULL when there is none.
void *roof_huge_alloc(uint64_t bytes) {
  uint8_t *p = mmap(NULL, bytes + (2u << 20), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return NULL;
  p = (uint8_t *)(((uintptr_t)p + (2u << 20) - 1) / (2u << 20) * (2u << 20));
#ifdef MADV_HUGEPAGE
  madvise(p, bytes, MADV_HUGEPAGE);
#endif
  for (uint64_t i = 0; i < bytes; i += 8) *(uint64_t *)(p + i) = i * 0x9E3779B97F4A7C15u;
  return p;
}

// ---- arithmetic -------------------------------------------------------------------------------------------------------------------

enum { kRounds = 1000000, kChains = 12 };

#if defined(__x86_64__)
#define CHAINS(type, zero, step, use)                                                            \
  type a[kChains]; /* all different and all used, or the compiler drops some */                  \
  for (int i = 0; i < kChains; ++i) a[i] = zero;                                                 \
  for (int r = 0; r < kRounds; ++r) _Pragma("GCC unroll 12") for (int i = 0; i < kChains; ++i) { \
      step;                                                                                      \
    }                                                                                            \
  use

__attribute__((target("avx512f"))) static void fma512(const void *p, int thread, int threads) {
  (void)p, (void)thread, (void)threads;
  const __m512 b = _mm512_set1_ps(0.5f);
  CHAINS(__m512, _mm512_set1_ps((float)i), a[i] = _mm512_fmadd_ps(a[i], b, b),
         for (int i = 0; i < kChains; ++i) sink += (uint64_t)_mm512_cvtss_f32(a[i]));
}
__attribute__((target("avx2,fma"))) static void fma256(const void *p, int thread, int threads) {
  (void)p, (void)thread, (void)threads;
  const __m256 b = _mm256_set1_ps(0.5f);
  CHAINS(__m256, _mm256_set1_ps((float)i), a[i] = _mm256_fmadd_ps(a[i], b, b),
         for (int i = 0; i < kChains; ++i) sink += (uint64_t)_mm256_cvtss_f32(a[i]));
}
__attribute__((target("avx512f,avx512vnni"))) static void vnni512(const void *p, int thread, int threads) {
  (void)p, (void)thread, (void)threads;
  const __m512i b = _mm512_set1_epi8(3);
  CHAINS(__m512i, _mm512_set1_epi32(i), a[i] = _mm512_dpbusd_epi32(a[i], b, b),
         for (int i = 0; i < kChains; ++i) sink += (uint64_t)_mm512_cvtsi512_si32(a[i]));
}
__attribute__((target("avx2"))) static void madd256(const void *p, int thread, int threads) {
  (void)p, (void)thread, (void)threads;
  const __m256i b = _mm256_set1_epi8(3), one = _mm256_set1_epi16(1);
  CHAINS(__m256i, _mm256_set1_epi32(i), a[i] = _mm256_add_epi32(a[i], _mm256_madd_epi16(_mm256_maddubs_epi16(b, a[i]), one)),
         for (int i = 0; i < kChains; ++i) sink += (uint64_t)_mm256_extract_epi32(a[i], 0));
}

// 10^9 multiply-adds a second of n threads: float32, or bytes with 32-bit sums.
double roof_gmacs(int bytes, int n) {
  const int wide = __builtin_cpu_supports("avx512f");
  const int vnni = wide && __builtin_cpu_supports("avx512vnni");
  work_fn *const work = bytes ? (vnni ? vnni512 : madd256) : (wide ? fma512 : fma256);
  const double lanes = bytes ? (vnni ? 64 : 32) : (wide ? 16 : 8);
  return lanes * kChains * kRounds * n / seconds(work, NULL, n) * 1e-9;
}
#else
double roof_gmacs(int bytes, int n) {
  (void)bytes, (void)n;
  return 0;
}
#endif

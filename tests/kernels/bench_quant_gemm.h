// SPDX-License-Identifier: Apache-2.0
// The --bench half of check_quant_gemm: weights per second and products per second beside the roofs measured here.
#pragma once

#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "cpu_avx/cpu_features.h"
#include "cpu_avx/quant_gemm.h"

#if defined(__x86_64__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif

namespace bench {

using namespace hotset::cpu;

// Time of this thread on a core: other programs take turns on a small machine.
inline double thread_seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

template <typename Work>
double best_seconds(const Work& work, int runs) {
  double best = 1e30;
  for (int r = 0; r < runs; ++r) {
    const double start = thread_seconds();
    work();
    best = std::min(best, thread_seconds() - start);
  }
  return best;
}

// Work(thread) on n threads at once; the slowest one's seconds.
template <typename Work>
double seconds_on_threads(int n, const Work& work) {
  std::vector<double> seconds(static_cast<size_t>(n));
  auto timed = [&](int t) {
    const double start = thread_seconds();
    work(t);
    seconds[static_cast<size_t>(t)] = thread_seconds() - start;
  };
  std::vector<std::thread> others;
  for (int t = 1; t < n; ++t) others.emplace_back(timed, t);
  timed(0);
  for (std::thread& t : others) t.join();
  return *std::max_element(seconds.begin(), seconds.end());
}

// Cycles a second of this core now: an addition that waits for the one before takes one cycle. 0 where that is not measured.
inline double clock_hz() {
#if defined(__x86_64__)
  constexpr int kRounds = 100000;
  uint64_t sum = 0;
  return 8.0 * kRounds / best_seconds([&] {
           for (int i = 0; i < kRounds; ++i)
             __asm__ volatile("add $1, %0\n add $1, %0\n add $1, %0\n add $1, %0\n add $1, %0\n add $1, %0\n add $1, %0\n add $1, %0" : "+r"(sum));
         }, 3);
#else
  return 0;
#endif
}

struct Roofs {
  double read_gbs = 0, fma_gmacs = 0, vnni_gmacs = 0;  // one thread
};

#if defined(__x86_64__)
__attribute__((target("avx2"))) inline uint64_t read_all(const uint8_t* p, size_t bytes) {
  __m256i a[4] = {};
  for (size_t i = 0; i + 128 <= bytes; i += 128) {
    _mm_prefetch(reinterpret_cast<const char*>(p + i + 4096), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(p + i + 4160), _MM_HINT_T0);
    for (int j = 0; j < 4; ++j) a[j] = _mm256_add_epi64(a[j], _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + i + 32 * j)));
  }
  a[0] = _mm256_add_epi64(_mm256_add_epi64(a[0], a[1]), _mm256_add_epi64(a[2], a[3]));
  alignas(32) uint64_t sums[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(sums), a[0]);
  return sums[0] + sums[1] + sums[2] + sums[3];
}

__attribute__((target("avx512f"))) inline float fma512(int rounds) {
  __m512 a[12];
  for (int i = 0; i < 12; ++i) a[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512 b = _mm512_set1_ps(0.5f), c = _mm512_set1_ps(1.0f);
  for (int r = 0; r < rounds; ++r)
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i) a[i] = _mm512_fmadd_ps(a[i], b, c);
  for (int i = 1; i < 12; ++i) a[0] = _mm512_add_ps(a[0], a[i]);
  return _mm512_cvtss_f32(a[0]);
}

__attribute__((target("avx2,fma"))) inline float fma256(int rounds) {
  __m256 a[12];
  for (int i = 0; i < 12; ++i) a[i] = _mm256_set1_ps(static_cast<float>(i));
  const __m256 b = _mm256_set1_ps(0.5f), c = _mm256_set1_ps(1.0f);
  for (int r = 0; r < rounds; ++r)
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i) a[i] = _mm256_fmadd_ps(a[i], b, c);
  for (int i = 1; i < 12; ++i) a[0] = _mm256_add_ps(a[0], a[i]);
  return _mm256_cvtss_f32(a[0]);
}

__attribute__((target("avx512f,avx512vnni"))) inline int vnni512(int rounds) {
  __m512i a[12];
  for (int i = 0; i < 12; ++i) a[i] = _mm512_set1_epi32(i);
  const __m512i b = _mm512_set1_epi8(3), c = _mm512_set1_epi8(1);
  for (int r = 0; r < rounds; ++r)
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i) a[i] = _mm512_dpbusd_epi32(a[i], b, c);
  for (int i = 1; i < 12; ++i) a[0] = _mm512_add_epi32(a[0], a[i]);
  return _mm512_cvtsi512_si32(a[0]);
}

// Measured anew beside each line: other work on the machine changes them.
inline Roofs roofs(const std::vector<uint8_t>& memory, size_t read_bytes) {
  Roofs r;
  static volatile double sink;
  (void)sink;
  const CpuFeatures& cpu = cpu_features();
  constexpr int kRounds = 20000;
  if (cpu.avx2) r.read_gbs = static_cast<double>(read_bytes) / best_seconds([&] { sink = static_cast<double>(read_all(memory.data(), read_bytes)); }, read_bytes > (64u << 20) ? 3 : 20) / 1e9;
  if (cpu.avx512)
    r.fma_gmacs = 12.0 * 16 * kRounds / best_seconds([&] { sink = fma512(kRounds); }, 10) / 1e9;
  else if (cpu.avx2)
    r.fma_gmacs = 12.0 * 8 * kRounds / best_seconds([&] { sink = fma256(kRounds); }, 10) / 1e9;
  if (cpu.avx512vnni) r.vnni_gmacs = 12.0 * 64 * kRounds / best_seconds([&] { sink = vnni512(kRounds); }, 10) / 1e9;
  return r;
}
#else
inline Roofs roofs(const std::vector<uint8_t>&, size_t) { return {}; }
#endif

struct Shape {
  int64_t k, n;
};

// One product: m rows by copies of the matrix that lie one after the other in `memory`; hot: the first copy again and again.
inline void line(const char* filter, std::vector<uint8_t>& memory, bool int8, int bits, int64_t block, Shape s, int64_t m, int threads, bool hot) {
  QuantMatrix w;
  w.bits = bits, w.block = block, w.n = s.n, w.k = s.k;
  w.row_bytes = s.k * bits / 8;
  w.scale_stride = (s.k + block - 1) / block;
  const QuantGemm& g = quant_gemm(int8, w);
  char name[160];
  std::snprintf(name, sizeof name, "%s %-10s b%d g%-3d K%-4d N%-4d M%-3d t%d %s", int8 ? "i8 " : "f32", quant_gemm_isa(int8, w), bits, static_cast<int>(block), static_cast<int>(s.k),
                static_cast<int>(s.n), static_cast<int>(m), threads, hot ? "hot " : "cold");
  if (!std::strstr(name, filter)) return;
  const size_t code_bytes = static_cast<size_t>(s.n * w.row_bytes), matrix_bytes = code_bytes + static_cast<size_t>(s.n * w.scale_stride) * 4;
  const size_t step = (matrix_bytes + 63) / 64 * 64;
  std::vector<float> x(static_cast<size_t>(m * s.k)), y(static_cast<size_t>(m * s.n));
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(static_cast<int>(i * 2654435761u % 2001) - 1000) * 1e-3f;
  struct Aligned {
    explicit Aligned(size_t n) : bytes(n + 64) {}
    void* data() { return bytes.data() + (64 - reinterpret_cast<uintptr_t>(bytes.data()) % 64) % 64; }
    std::vector<uint8_t> bytes;
  };
  Aligned prepared(g.prepared_bytes(m, s.k));
  std::vector<Aligned> scratch;
  for (int t = 0; t < threads; ++t) scratch.emplace_back(g.scratch_bytes(m, s.n, s.k) + 64);
  const double macs = static_cast<double>(m * s.n * s.k);
  size_t repeats = static_cast<size_t>(1.5e-3 * threads * (int8 ? 60e9 : 30e9) / macs) + 1;
  if (!hot) repeats = std::min(repeats, memory.size() / step);
  const int64_t share = ((s.n + threads - 1) / threads + 31) / 32 * 32;
  size_t at = 0;
  const Roofs roof = roofs(memory, hot ? matrix_bytes : memory.size());
  double seconds = 1e30, hz = clock_hz();
  for (int run = 0; run < 25; ++run) {
    const size_t first = at;
    seconds = std::min(seconds, seconds_on_threads(threads, [&](int t) {
      QuantMatrix copy = w;
      size_t place = first;
      for (size_t r = 0; r < repeats; ++r) {
        if (place + step > memory.size()) place = 0;
        copy.codes = memory.data() + place;
        copy.scales = memory.data() + place + code_bytes;
        if (t == 0 && m <= 4) g.prepare(x.data(), s.k, m, s.k, 0, m, prepared.data());
        g.multiply(copy, prepared.data(), m, 0, m, std::min(s.n, t * share), std::min(s.n, (t + 1) * share), nullptr, y.data(), s.n, scratch[static_cast<size_t>(t)].data());
        if (!hot) place += step;
      }
      if (t == 0) at = place;
    }));
  }
  hz = (hz + clock_hz()) / 2;
  const double each = seconds / static_cast<double>(repeats), gbs = static_cast<double>(matrix_bytes) / each / 1e9, gmacs = macs / each / 1e9;
  const double peak = (int8 ? roof.vnni_gmacs : roof.fma_gmacs) * threads;
  std::printf("%s  %9.2f us  %6.1f GB/s (%3.0f %% of read)  %7.1f GMAC/s (%3.0f %% of peak)  %7.2f cycles per 64 bytes of codes and row\n", name, each * 1e6, gbs, 100 * gbs / (roof.read_gbs * threads), gmacs, peak > 0 ? 100 * gmacs / peak : 0,
              each * hz * threads * 64 / static_cast<double>(code_bytes) / static_cast<double>(m));
  std::fflush(stdout);
}

}  // namespace bench

// filter: only lines that contain it.
inline void bench_quant_gemm(const char* filter) {
  using namespace bench;
  std::vector<uint8_t> memory(size_t{512} << 20);
  uint32_t state = 1;
  for (size_t i = 0; i + 4 <= memory.size(); i += 4) {
    // Any bits are codes, and as scales they are numbers of usual size.
    state = state * 1664525u + 1013904223u;
    const uint32_t word = (state & 0x807fffffu) | 0x3d000000u;
    std::memcpy(memory.data() + i, &word, 4);
  }
  const Roofs roof = roofs(memory, memory.size());
  std::printf("one thread: read %.1f GB/s, float FMA %.1f GMAC/s, int8 %.1f GMAC/s\n", roof.read_gbs, roof.fma_gmacs, roof.vnni_gmacs);
  const Shape small[] = {{256, 512}, {256, 256}, {256, 24}, {256, 4096}, {256, 384}, {192, 256}, {2048, 384}}, large[] = {{2048, 1536}, {2880, 2880}};
  for (bool int8 : {false, true}) {
    for (const Shape& s : small)
      for (int64_t m : {1, 2, 4, 8, 32, 512}) line(filter, memory, int8, 4, 32, s, m, 1, true);
    for (const Shape& s : large) {
      for (int threads : {1, 2}) line(filter, memory, int8, 4, 32, s, 1, threads, false);
      for (int64_t m : {1, 2, 3, 4, 5, 6, 8, 16, 32, 128, 512}) line(filter, memory, int8, 4, 32, s, m, 1, true);
    }
    for (int64_t block : {64, 128})
      for (int64_t m : {1, 32}) line(filter, memory, int8, 4, block, large[0], m, 1, true);
    for (int bits : {2, 8})
      for (int64_t m : {1, 32}) line(filter, memory, int8, bits, 64, large[0], m, 1, true);
  }
}

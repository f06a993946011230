// SPDX-License-Identifier: Apache-2.0
// Every instruction set's float products and conversions against float64, with guard bytes. --bench: GFLOP/s and GB/s.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "base/dtype.h"
#include "cpu_avx/convert.h"
#include "cpu_avx/convert_isa.h"
#include "cpu_avx/cpu_features.h"
#include "cpu_avx/float_gemm.h"

#if defined(__x86_64__)
namespace hotset::cpu {
extern const FloatGemm kFloatGemmEmulatedAmx;  // emulated_float_gemm.cpp
}
#endif

using namespace hotset;

namespace {

int failures = 0;

// Bytes that end where an inaccessible page would be worth having: the buffer's own end, so that sanitizers see an overrun.
struct Weights {
  std::vector<char> bytes;
  cpu::FloatMatrix w;
  std::vector<double> value;  // [n][k]
};

double as_double(int dtype, const char* p) {
  if (dtype == 1) {
    float f;
    std::memcpy(&f, p, 4);
    return f;
  }
  uint16_t h;
  std::memcpy(&h, p, 2);
  return dtype == 10 ? f16_to_f32(h) : bf16_to_f32(h);
}

Weights make_weights(std::mt19937& rng, int dtype, int64_t n, int64_t k, bool by_row, int64_t pad, int shift) {
  std::normal_distribution<float> normal;
  Weights r;
  const int size = dtype == 1 ? 4 : 2;
  const int64_t ld = (by_row ? k : n) + pad, rows = by_row ? n : k;
  r.bytes.resize(static_cast<size_t>((rows * ld - pad) * size + shift));
  r.w = {r.bytes.data() + shift, dtype, n, k, by_row ? ld : 1, by_row ? 1 : ld};
  r.value.resize(static_cast<size_t>(n * k));
  for (int64_t i = 0; i < rows * ld - pad; ++i) {
    const float f = normal(rng);
    char* p = r.bytes.data() + shift + i * size;
    const uint16_t h = dtype == 10 ? f32_to_f16(f) : f32_to_bf16(f);
    if (dtype == 1) std::memcpy(p, &f, 4);
    else std::memcpy(p, &h, 2);
  }
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < k; ++j)
      r.value[static_cast<size_t>(i * k + j)] = as_double(dtype, r.bytes.data() + shift + (i * r.w.stride_n + j * r.w.stride_k) * size);
  return r;
}

void check(const cpu::FloatGemm& gemm, std::mt19937& rng, unsigned seed, int dtype, bool by_row, int64_t m, int64_t n, int64_t k) {
  const Weights weights = make_weights(rng, dtype, n, k, by_row, static_cast<int64_t>(rng() % 3), static_cast<int>(rng() % 3));
  std::normal_distribution<float> normal;
  const int64_t ldx = k + static_cast<int64_t>(rng() % 4), ldy = n + static_cast<int64_t>(rng() % 4);
  std::vector<float> x(static_cast<size_t>((m - 1) * ldx + k)), bias(static_cast<size_t>(n));
  for (float& f : x) f = normal(rng);
  for (float& f : bias) f = normal(rng);
  const bool with_bias = rng() % 2;
  constexpr float kGuard = -12345.0f;
  std::vector<float> y(static_cast<size_t>(m * ldy + 16), kGuard);
  const size_t scratch_bytes = gemm.scratch_bytes(m, n, k);
  std::vector<char> scratch(scratch_bytes + 128, 0x5a);
  char* aligned = scratch.data() + (64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64) % 64;
  const int64_t m0 = rng() % 3 == 0 ? static_cast<int64_t>(rng() % static_cast<unsigned>(m)) : 0;
  const int64_t cut = static_cast<int64_t>(rng() % static_cast<unsigned>(n + 1));
  gemm.multiply(weights.w, x.data(), ldx, m0, m, 0, cut, with_bias ? bias.data() : nullptr, y.data() + 8, ldy, aligned);
  gemm.multiply(weights.w, x.data(), ldx, m0, m, cut, n, with_bias ? bias.data() : nullptr, y.data() + 8, ldy, aligned);
  auto report = [&](const char* what, int64_t i, int64_t j, double got, double want) {
    std::printf("%s: %s m=%lld..%lld n=%lld k=%lld dtype=%d by_row=%d seed=%u: y[%lld][%lld] = %.9g, expected %.9g\n", gemm.name, what,
                static_cast<long long>(m0), static_cast<long long>(m), static_cast<long long>(n), static_cast<long long>(k), dtype, by_row,
                seed, static_cast<long long>(i), static_cast<long long>(j), got, want);
    ++failures;
  };
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < ldy; ++j) {
      const float got = y[static_cast<size_t>(8 + i * ldy + j)];
      if (i < m0 || j >= n) {
        if (got != kGuard) return report("guard", i, j, got, kGuard);
        continue;
      }
      double want = with_bias ? static_cast<double>(bias[static_cast<size_t>(j)]) : 0, size = std::fabs(want);
      for (int64_t l = 0; l < k; ++l) {
        const double term = static_cast<double>(x[static_cast<size_t>(i * ldx + l)]) * weights.value[static_cast<size_t>(j * k + l)];
        want += term;
        size += std::fabs(term);
      }
      const double bound = (2 + std::sqrt(static_cast<double>(k))) * 0x1p-23 * size;  // reduction over k
      if (!(std::fabs(got - want) <= bound)) return report("value", i, j, got, want);
    }
  }
  for (int i = 0; i < 8; ++i)
    if (y[static_cast<size_t>(i)] != kGuard || y[static_cast<size_t>(8 + m * ldy + i)] != kGuard) return report("guard", i, -1, 0, 0);
  for (char* p = aligned + scratch_bytes; p < scratch.data() + scratch.size(); ++p)
    if (*p != 0x5a) return report("scratch guard", 0, 0, 0, 0);
}

void check_conversions() {
  std::vector<cpu::ConvertKernels> tiers(1);
  cpu::convert_kernels_scalar(&tiers[0]);
#if defined(__x86_64__)
  if (cpu::cpu_features().avx2) cpu::convert_kernels_avx2(&tiers.emplace_back(tiers[0]));
  if (cpu::cpu_features().avx512) cpu::convert_kernels_avx512(&tiers.emplace_back(tiers[0]));
#elif defined(__aarch64__)
  if (cpu::cpu_features().neon) cpu::convert_kernels_neon(&tiers.emplace_back(tiers[0]));
#endif
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  // Halfway points, their neighbours, and everything near the overflow of float16.
  std::vector<float> floats;
  for (uint32_t high = 0; high < 65536; ++high)
    for (uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu, 0x0fffu, 0x1000u, 0x1001u, 0x3000u})
      floats.push_back(std::bit_cast<float>(high << 16 | low));
  for (size_t t = 0; t < tiers.size(); ++t) {
    const auto fail = [&](const char* what, size_t i) {
      std::printf("convert tier %zu: %s differs at %zu\n", t, what, i);
      ++failures;
    };
    std::vector<float> wide(65536), reference(65536);
    for (int kind = 0; kind < 2; ++kind) {
      (kind ? tiers[t].bf16_to_f32 : tiers[t].f16_to_f32)(all.data(), wide.data(), 65536);
      for (size_t i = 0; i < all.size(); ++i) {
        const float want = kind ? bf16_to_f32(all[i]) : f16_to_f32(all[i]);
        if (std::bit_cast<uint32_t>(wide[i]) != std::bit_cast<uint32_t>(want)) { fail(kind ? "bf16_to_f32" : "f16_to_f32", i); break; }
      }
      std::vector<uint16_t> narrow(floats.size());
      (kind ? tiers[t].f32_to_bf16 : tiers[t].f32_to_f16)(floats.data(), narrow.data(), static_cast<int64_t>(floats.size()));
      for (size_t i = 0; i < floats.size(); ++i)
        if (narrow[i] != (kind ? f32_to_bf16(floats[i]) : f32_to_f16(floats[i]))) { fail(kind ? "f32_to_bf16" : "f32_to_f16", i); break; }
    }
    for (int64_t n = 0; n < 40; ++n) {  // unaligned, odd lengths, guards
      std::vector<char> in(static_cast<size_t>(n) * 2 + 1, 1), out(static_cast<size_t>(n) * 4 + 9, 0x5a);
      tiers[t].f16_to_f32(in.data() + 1, reinterpret_cast<float*>(out.data() + 1), n);
      for (size_t i = 0; i < 8; ++i)
        if (out[1 + static_cast<size_t>(n) * 4 + i] != 0x5a) { fail("guard", i); break; }
    }
  }
}

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

void bench(const cpu::FloatGemm& gemm, std::mt19937& rng) {
  struct Case { int64_t m, n, k; };
  for (int dtype : {1, 10, 16})
    for (bool by_row : {true, false})
      for (const Case c : {Case{1, 4096, 4096}, Case{4, 4096, 4096}, Case{8, 2048, 2048}, Case{12, 2048, 2048}, Case{16, 2048, 2048}, Case{20, 2048, 2048}, Case{24, 2048, 2048},
                           Case{32, 2048, 2048}, Case{48, 2048, 2048}, Case{64, 2048, 2048}, Case{512, 1024, 2048}}) {
        Weights weights;
        weights.bytes.assign(static_cast<size_t>(c.n * c.k) * (dtype == 1 ? 4 : 2), 0x31);
        weights.w = {weights.bytes.data(), dtype, c.n, c.k, by_row ? c.k : 1, by_row ? 1 : c.n};
        std::vector<float> x(static_cast<size_t>(c.m * c.k), 1.0f), y(static_cast<size_t>(c.m * c.n));
        std::vector<char> scratch(gemm.scratch_bytes(c.m, c.n, c.k) + 64);
        char* aligned = scratch.data() + (64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64) % 64;
        double best = 1e9;
        for (int r = 0; r < 5; ++r) {
          const double t = seconds();
          gemm.multiply(weights.w, x.data(), c.k, 0, c.m, 0, c.n, nullptr, y.data(), c.n, aligned);
          best = std::min(best, seconds() - t);
        }
        std::printf("%-7s dtype %2d %s m %4lld n %5lld k %5lld: %8.3f ms %7.1f GFLOP/s %6.1f GB/s\n", gemm.name, dtype, by_row ? "W[N][K]" : "B[K][N]",
                    static_cast<long long>(c.m), static_cast<long long>(c.n), static_cast<long long>(c.k), best * 1e3,
                    2e-9 * static_cast<double>(c.m * c.n * c.k) / best, static_cast<double>(weights.bytes.size()) / best / 1e9);
        std::fflush(stdout);
      }
  (void)rng;
}

}  // namespace

int main(int argc, char** argv) {
  const unsigned seed = argc > 2 ? static_cast<unsigned>(std::atoi(argv[2])) : 1;
  std::mt19937 rng(seed);
  const bool measure = argc > 1 && std::strcmp(argv[1], "--bench") == 0;
  if (!measure) check_conversions();
  std::vector<const cpu::FloatGemm*> tiers;
  for (int t = 0; const cpu::FloatGemm* gemm = cpu::float_gemm_at(t); ++t) tiers.push_back(gemm);
#if defined(__x86_64__)
  if (!measure && cpu::cpu_features().avx512vnni) tiers.push_back(&cpu::kFloatGemmEmulatedAmx);
#endif
  for (const cpu::FloatGemm* gemm : tiers) {
    if (measure) {
      if (gemm != tiers[0]) bench(*gemm, rng);
      continue;
    }
    for (int dtype : {1, 10, 16})
      for (int by_row = 0; by_row < 2; ++by_row)
        for (int round = 0; round < 60; ++round) {
          const int64_t m = 1 + static_cast<int64_t>(rng() % (round % 3 ? 14 : 80)), n = 1 + static_cast<int64_t>(rng() % 150);
          const int64_t k = 1 + static_cast<int64_t>(rng() % (round % 5 ? 80 : 700));
          check(*gemm, rng, seed, dtype, by_row != 0, m, n, k);
        }
  }
  if (failures) std::printf("%d failures\n", failures);
  return failures != 0;
}

// SPDX-License-Identifier: Apache-2.0
// Every instruction set's gated unit against float64, with guard values. --bench: nanoseconds an element.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "cpu_avx/cpu_features.h"
#include "cpu_avx/swiglu_isa.h"

using namespace hotset;

namespace {

using Function = void (*)(const cpu::Swiglu&, const float*, const float*, int64_t, float*);
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr double kRelative = 1e-6, kAbsolute = 1e-30;  // five roundings, exp to 2 ulp
int failures = 0;

double reference(const cpu::Swiglu& s, double g, double l) {
  l = std::clamp<double>(l, -double{s.limit}, s.limit) + s.beta;
  if (s.limit_after) return std::min<double>(g / (1 + std::exp(-double{s.alpha} * g)), s.limit) * l;
  g = std::min<double>(g, s.limit);
  return g / (1 + std::exp(-double{s.alpha} * g)) * l;
}

void check(const char* isa, Function f, std::mt19937& random) {
  const cpu::Swiglu units[] = {{1, 0, kInf, false}, {1.702f, 1, 7, false}, {1.702f, 1, 7, true}, {-0.5f, 0.25f, 0, false}};
  for (const cpu::Swiglu& unit : units) {
    for (int64_t n = 0; n < 70; ++n) {
      std::normal_distribution<float> normal(0, random() % 2 ? 3.0f : 30.0f);
      std::vector<float> gate(static_cast<size_t>(n)), value(gate), pairs(2 * gate.size());
      for (size_t i = 0; i < gate.size(); ++i) {
        pairs[2 * i] = gate[i] = normal(random);
        pairs[2 * i + 1] = value[i] = normal(random);
      }
      for (int interleaved = 0; interleaved < 2; ++interleaved) {
        std::vector<float> out(static_cast<size_t>(n) + 2, 123.0f);
        f(unit, interleaved ? pairs.data() : gate.data(), interleaved ? nullptr : value.data(), n, out.data() + 1);
        bool ok = out.front() == 123 && out.back() == 123;
        for (size_t i = 0; i < gate.size(); ++i) {
          const double y = reference(unit, gate[i], value[i]);
          // The sum of value and beta may cancel: allow a rounding of its terms.
          ok &= std::fabs(out[i + 1] - y) <= kRelative * (std::fabs(y) + std::fabs(gate[i]) * 1e-1 * (unit.beta != 0)) + kAbsolute;
        }
        if (!ok) {
          std::printf("%s: alpha %g limit %g after %d n %d interleaved %d\n", isa, unit.alpha, unit.limit, unit.limit_after,
                      static_cast<int>(n), interleaved);
          ++failures;
        }
      }
    }
  }
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float gates[] = {nan, 1, -200, 200, -kInf, 1e30f, 0}, values[] = {1, nan, 1, 1, 0, 1, -kInf};
  for (const cpu::Swiglu& unit : units) {
    float out[7];
    f(unit, gates, values, 7, out);
    bool ok = std::isnan(out[0]) && std::isnan(out[1]);
    if (unit.alpha > 0) ok &= std::fabs(out[2]) < 1e-30f;
    if (unit.limit == kInf) ok &= out[3] == 200 && out[5] == 1e30f;
    if (!ok) {
      std::printf("%s: special values, alpha %g limit %g\n", isa, unit.alpha, unit.limit);
      ++failures;
    }
  }
}

void bench(const char* isa, Function f) {
  std::vector<float> pairs(4096), out(2048);
  for (size_t i = 0; i < pairs.size(); ++i) pairs[i] = static_cast<float>(i % 37) * 0.2f - 3;
  double best = 1e9;
  for (int round = 0; round < 20; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 50; ++i) f({1.702f, 1, 7, false}, pairs.data(), nullptr, 2048, out.data());
    best = std::min(best, std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / (50 * 2048));
  }
  std::printf("swiglu interleaved %-8s %6.3f ns an element\n", isa, best);
}

}  // namespace

int main(int argc, char** argv) {
  const bool benches = argc > 1 && std::strcmp(argv[1], "--bench") == 0;
  std::mt19937 random(7);
  const auto each = [&](const char* isa, Function f) {
    if (benches)
      bench(isa, f);
    else
      check(isa, f, random);
  };
  each("scalar", cpu::swiglu_scalar);
#if defined(__x86_64__) || defined(_M_X64)
  if (cpu::cpu_features().avx2) each("avx2", cpu::swiglu_avx2);
  if (cpu::cpu_features().avx512) each("avx512", cpu::swiglu_avx512);
#elif defined(__aarch64__)
  if (cpu::cpu_features().neon) each("neon", cpu::swiglu_neon);
#endif
  return failures != 0;
}

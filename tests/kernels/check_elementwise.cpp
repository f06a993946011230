// SPDX-License-Identifier: Apache-2.0
// Vector loops of arithmetic, functions and softmax against float64, with guards. --bench: nanoseconds for 4096 elements.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "base/dtype.h"
#include "cpu_avx/convert.h"
#include "cpu_avx/cpu_features.h"
#include "cpu_avx/elementwise_isa.h"

using namespace hotset;

namespace {

constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16};
const char* const kFunctionNames[] = {"exp", "sigmoid", "swish", "tanh", "gelu_tanh", "erf", "gelu", "relu", "sqrt"};
constexpr float kAlpha = 1.702f;
int failures = 0;

double function(int f, double x) {
  switch (f) {
    case 0: return std::exp(x);
    case 1: return 1 / (1 + std::exp(-x));
    case 2: return x / (1 + std::exp(-static_cast<double>(kAlpha) * x));
    case 3: return std::tanh(x);
    case 4: return x / (1 + std::exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)));  // 0.5 x (1 + tanh(u)) = x / (1 + exp(-2 u))
    case 5: return std::erf(x);
    case 6: return 0.5 * x * std::erfc(-x * M_SQRT1_2);
    case 7: return x < 0 ? 0 : x;
    default: return std::sqrt(x);
  }
}

double arithmetic(int op, double a, double b) { return op == 0 ? a + b : op == 1 ? a - b : op == 2 ? a * b : a / b; }

struct Buffer {  // n elements of a type at an odd address, guards behind
  int type;
  size_t n;
  std::vector<char> bytes;
  Buffer(int type_, size_t n_) : type(type_), n(n_), bytes(n_ * size() + 1 + 8, 0x5a) {}
  size_t size() const { return type == 0 ? 4 : 2; }
  char* data() { return bytes.data() + 1; }
  void set(const std::vector<float>& v) { cpu::from_f32(kTypes[type], v.data(), data(), static_cast<int64_t>(v.size())); }
  std::vector<float> get() {
    std::vector<float> v(n);
    cpu::to_f32(kTypes[type], data(), v.data(), static_cast<int64_t>(n));
    return v;
  }
  bool guarded() const {
    for (size_t i = bytes.size() - 8; i < bytes.size(); ++i)
      if (bytes[i] != 0x5a) return false;
    return true;
  }
};

// `units` of float32, then one rounding to the type.
bool close(double got, double want, int type, double units) {
  if (std::isnan(want)) return std::isnan(got);
  const double largest = type == 1 ? 65504 : 3.3895e38;
  if (std::fabs(want) > largest * 0.999) return std::isinf(got) || std::fabs(got) > largest * 0.99;
  const double unit = type == 0 ? 0 : type == 1 ? 0x1p-11 : 0x1p-8;
  return std::fabs(got - want) <= std::fabs(want) * (units * 0x1p-23 + unit) + (type == 1 ? 0x1p-24 : 0x1p-126);
}

void check(const char* tier, const cpu::ElementwiseKernels& k, std::mt19937& rng) {
  std::normal_distribution<float> normal;
  for (int type = 0; type < 3; ++type) {
    for (int round = 0; round < 60; ++round) {
      const size_t n = rng() % 100;
      Buffer a(type, n), b(type, n), out(type, n);
      std::vector<float> v(n);
      for (Buffer* buffer : {&a, &b}) {
        for (float& f : v) f = normal(rng);
        buffer->set(v);
      }
      const std::vector<float> av = a.get(), bv = b.get();
      const bool a_one = n && rng() % 3 == 0, b_one = n && rng() % 3 == 0;
      for (int op = 0; op < cpu::kArithmetics; ++op) {
        k.arithmetic[op][type](a.data(), a_one, b.data(), b_one, out.data(), static_cast<int64_t>(n));
        const std::vector<float> got = out.get();
        for (size_t i = 0; i < n; ++i) {
          const double want = arithmetic(op, av[a_one ? 0 : i], bv[b_one ? 0 : i]);
          if (close(got[i], want, type, 0.51) && out.guarded()) continue;
          std::printf("%s: arithmetic %d type %d n %zu [%zu] = %.9g, expected %.9g\n", tier, op, type, n, i, static_cast<double>(got[i]), want);
          ++failures;
          break;
        }
      }
    }
    std::vector<float> v;
    for (float x = -110; x < 95; x += 0.0137f) v.push_back(x);
    for (float x : {0.0f, -0.0f, 1e-30f, -1e-30f, 1e-3f, 1e4f, -1e4f, 3e38f, -3e38f, INFINITY, NAN}) v.push_back(x);
    Buffer in(type, v.size()), out(type, v.size());
    in.set(v);
    const std::vector<float> x = in.get();
    for (int f = 0; f < cpu::kFunctions; ++f) {
      k.function[f][type](in.data(), out.data(), static_cast<int64_t>(v.size()), &kAlpha);
      const std::vector<float> got = out.get();
      for (size_t i = 0; i < v.size(); ++i) {
        // Products with a vanishing sigmoid are 0 or tiny; relative digits of results below 1e-30 do not matter.
        const double want = function(f, x[i]);
        // The argument of the inner exponential is rounded: its error grows with its size.
        const double inner = f == 0 || f == 3 ? 0 : f == 4 ? std::fabs(3.2 * x[i] * (1 + 0.0447 * x[i] * x[i])) : f == 2 ? std::fabs(kAlpha * x[i]) : 0;
        const double cancelled = f == 6 ? 2e-7 * std::fabs(x[i]) : 0;  // 1 + erf(x) keeps the digits of 1
        if (close(got[i], want, type, 3 + inner) || std::fabs(got[i] - want) <= cancelled || std::fabs(got[i] - want) < 1e-30) continue;
        if (std::fabs(want) < 1e-30 && std::fabs(got[i]) < 1e-30) continue;
        std::printf("%s: %s type %d of %.9g = %.9g, expected %.9g\n", tier, kFunctionNames[f], type, static_cast<double>(x[i]), static_cast<double>(got[i]), want);
        if (++failures > 20) return;
        break;
      }
    }
  }
  for (size_t n : {1u, 2u, 15u, 16u, 17u, 128u, 333u}) {
    std::vector<float> x(n), y(n + 1, 7.0f);
    for (float& f : x) f = 10 * normal(rng);
    k.softmax(x.data(), y.data(), static_cast<int64_t>(n));
    double largest = -INFINITY, total = 0;
    for (float f : x) largest = std::max(largest, static_cast<double>(f));
    for (float f : x) total += std::exp(f - largest);
    for (size_t i = 0; i < n; ++i) {
      const double want = std::exp(x[i] - largest) / total;
      if (std::fabs(y[i] - want) <= (4e-7 + 1.2e-7 * (largest - x[i])) * want + 1e-38 && y[n] == 7.0f) continue;
      std::printf("%s: softmax n %zu [%zu] = %.9g, expected %.9g\n", tier, n, i, static_cast<double>(y[i]), want);
      ++failures;
      break;
    }
  }
}

void bench(const char* tier, const cpu::ElementwiseKernels& k) {
  constexpr int kN = 4096;
  std::vector<float> a(kN, 1.25f), b(kN, 0.5f), y(kN);
  const auto time = [&](const char* name, auto&& f) {
    double best = 1e9;
    for (int r = 0; r < 50; ++r) {
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < 20; ++i) f();
      best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / 20);
    }
    std::printf("%-7s %-10s %8.1f ns\n", tier, name, best * 1e9);
  };
  time("add", [&] { k.arithmetic[0][0](a.data(), false, b.data(), false, y.data(), kN); });
  time("add f16", [&] { k.arithmetic[0][1](a.data(), false, b.data(), false, y.data(), kN); });
  for (int f = 0; f < cpu::kFunctions; ++f) time(kFunctionNames[f], [&] { k.function[f][0](a.data(), y.data(), kN, &kAlpha); });
  time("softmax", [&] { k.softmax(a.data(), y.data(), kN); });
}

}  // namespace

int main(int argc, char** argv) {
  std::mt19937 rng(1);
  const bool measure = argc > 1 && std::strcmp(argv[1], "--bench") == 0;
#if defined(__x86_64__)
  if (cpu::cpu_features().avx2) measure ? bench("avx2", cpu::kElementwiseAvx2) : check("avx2", cpu::kElementwiseAvx2, rng);
  if (cpu::cpu_features().avx512) measure ? bench("avx512", cpu::kElementwiseAvx512) : check("avx512", cpu::kElementwiseAvx512, rng);
#elif defined(__aarch64__)
  if (cpu::cpu_features().neon) measure ? bench("neon", cpu::kElementwiseNeon) : check("neon", cpu::kElementwiseNeon, rng);
#endif
  return failures != 0;
}

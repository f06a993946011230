// SPDX-License-Identifier: Apache-2.0
// Normalisation of rows on every instruction set against float64, with guards. --bench: nanoseconds a row.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "base/dtype.h"
#include "cpu_avx/cpu_features.h"
#include "cpu_avx/norm_isa.h"

using namespace hotset;

namespace {

using NormFunction = void (*)(const cpu::NormRows&, int64_t, int64_t, float*);
struct Tier {
  const char* name;
  NormFunction run;
};

std::vector<Tier> tiers() {
  std::vector<Tier> list = {{"scalar", cpu::norm_rows_scalar}};
#if defined(__x86_64__)
  if (cpu::cpu_features().avx2) list.push_back({"avx2", cpu::norm_rows_avx2});
  if (cpu::cpu_features().avx512) list.push_back({"avx512", cpu::norm_rows_avx512});
#elif defined(__aarch64__)
  if (cpu::cpu_features().neon) list.push_back({"neon", cpu::norm_rows_neon});
#endif
  return list;
}

// Elements of a type, at any address.
struct Row {
  int dtype;
  std::vector<char> bytes;
  size_t shift;
  Row(int dtype_, size_t n, std::mt19937& rng) : dtype(dtype_), bytes(n * size() + 3 + kGuard), shift(rng() % 3) {
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < n; ++i) set(i, normal(rng));
    std::memset(bytes.data() + shift + n * size(), 0x5a, bytes.size() - shift - n * size());
  }
  static constexpr size_t kGuard = 16;
  size_t size() const { return dtype == 1 ? 4 : 2; }
  char* data() { return bytes.data() + shift; }
  void set(size_t i, float f) {
    const uint16_t h = dtype == 10 ? f32_to_f16(f) : f32_to_bf16(f);
    std::memcpy(data() + i * size(), dtype == 1 ? static_cast<const void*>(&f) : &h, size());
  }
  double get(size_t i) {
    float f;
    uint16_t h;
    if (dtype == 1) {
      std::memcpy(&f, data() + i * 4, 4);
      return f;
    }
    std::memcpy(&h, data() + i * 2, 2);
    return dtype == 10 ? f16_to_f32(h) : bf16_to_f32(h);
  }
  void align() { shift = (64 - reinterpret_cast<uintptr_t>(bytes.data()) % 64) % 64; }
  bool guarded(size_t n) {
    for (size_t i = shift + n * size(); i < bytes.size(); ++i)
      if (bytes[i] != 0x5a) return false;
    return true;
  }
};

int check(const Tier& tier, std::mt19937& rng, unsigned seed) {
  const int types[] = {1, 10, 16};
  const int dtype = types[rng() % 3];
  const size_t width = 1 + rng() % (rng() % 2 ? 40 : 300), rows = 1 + rng() % 4, skip_rows = rng() % 2 ? rows : 1;
  const bool center = rng() % 2, with_skip = rng() % 3, with_bias = with_skip && rng() % 2, with_beta = center && rng() % 2, with_sum = rng() % 2;
  Row x(dtype, rows * width, rng), skip(dtype, skip_rows * width, rng), bias(dtype, width, rng), gamma(dtype, width, rng), beta(dtype, width, rng);
  Row y(dtype, rows * width, rng), sum(dtype, rows * width, rng);
  std::vector<float> temp(width + 16, -1.0f), mean(rows), inverse(rows);
  cpu::NormRows a;
  a.dtype = dtype;
  a.width = static_cast<int64_t>(width);
  a.epsilon = 1e-5f;
  a.center = center;
  a.x = x.data();
  a.skip = with_skip ? skip.data() : nullptr;
  a.skip_rows = static_cast<int64_t>(skip_rows);
  a.bias = with_bias ? bias.data() : nullptr;
  a.gamma = gamma.data();
  a.beta = with_beta ? beta.data() : nullptr;
  a.y = y.data();
  a.sum = with_sum ? sum.data() : nullptr;
  a.mean = mean.data();
  a.inverse = inverse.data();
  tier.run(a, 0, static_cast<int64_t>(rows), temp.data());

  const double unit = dtype == 1 ? 0x1p-24 : dtype == 10 ? 0x1p-11 : 0x1p-8;
  const auto fail = [&](const char* what, size_t r, size_t i, double got, double want) {
    std::printf("%s: %s differs, dtype %d rows %zu width %zu center %d skip %d bias %d seed %u: [%zu][%zu] = %.9g, expected %.9g\n", tier.name, what, dtype,
                rows, width, center, with_skip, with_bias, seed, r, i, got, want);
    return 1;
  };
  if (!y.guarded(rows * width) || !sum.guarded(rows * width)) return fail("guard", 0, 0, 0, 0);
  for (size_t i = width; i < temp.size(); ++i)
    if (temp[i] != -1.0f) return fail("temp guard", 0, i, temp[i], -1);
  for (size_t r = 0; r < rows; ++r) {
    std::vector<double> s(width);
    double m = 0, squares = 0;
    for (size_t i = 0; i < width; ++i) {
      s[i] = x.get(r * width + i) + (with_skip ? skip.get(r % skip_rows * width + i) : 0) + (with_bias ? bias.get(i) : 0);
      m += s[i] / static_cast<double>(width);
      const double terms = std::fabs(x.get(r * width + i)) + (with_skip ? 2 * std::fabs(skip.get(r % skip_rows * width + i)) : 0) + std::fabs(s[i]);
      if (with_sum && std::fabs(sum.get(r * width + i) - s[i]) > unit * std::fabs(s[i]) + 0x1p-23 * terms + 0x1p-24)
        return fail("sum", r, i, sum.get(r * width + i), s[i]);
    }
    if (!center) m = 0;
    for (double v : s) squares += (v - m) * (v - m);
    const double inv = 1 / std::sqrt(squares / static_cast<double>(width) + 1e-5);
    // One row of width 1 may cancel to nothing: everything is compared with the size of the terms.
    if (std::fabs(mean[r] - m) > 1e-5 || std::fabs(inverse[r] - inv) > 1e-5 * inv * (1 + inv)) return fail("statistics", r, 0, inverse[r], inv);
    for (size_t i = 0; i < width; ++i) {
      const double want = (s[i] - m) * inv * gamma.get(i) + (with_beta ? beta.get(i) : 0), got = y.get(r * width + i);
      const double terms = (std::fabs(s[i]) + std::fabs(m)) * inv * std::fabs(gamma.get(i)) + std::fabs(want);
      if (!(std::fabs(got - want) <= (2 * unit + 0x1p-21) * terms + 1e-7)) return fail("value", r, i, got, want);
    }
  }
  return 0;
}

void bench(const Tier& tier) {
  std::mt19937 rng(1);
  for (int dtype : {1, 10, 16})
    for (size_t width : {256u, 2880u, 4096u})
      for (int form = 0; form < 3; ++form) {
        Row x(dtype, width + 32, rng), skip(dtype, width + 32, rng), gamma(dtype, width + 32, rng), y(dtype, width + 32, rng), sum(dtype, width + 32, rng);
        std::vector<float> temp(width);
        for (Row* row : {&x, &skip, &gamma, &y, &sum}) row->align();
        cpu::NormRows a;
        a.dtype = dtype;
        a.width = static_cast<int64_t>(width);
        a.epsilon = 1e-5f;
        a.center = form == 2;
        a.x = x.data();
        a.gamma = gamma.data();
        a.y = y.data();
        if (form) {
          a.skip = skip.data();
          a.sum = sum.data();
        }
        double best = 1e9;
        for (int r = 0; r < 20; ++r) {
          const auto start = std::chrono::steady_clock::now();
          for (int i = 0; i < 200; ++i) tier.run(a, 0, 1, temp.data());
          best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / 200);
        }
        const char* names[] = {"rms", "skip + rms", "skip + layer norm"};
        std::printf("%-7s dtype %2d width %4zu %-18s %7.1f ns\n", tier.name, dtype, width, names[form], best * 1e9);
      }
}

}  // namespace

int main(int argc, char** argv) {
  const unsigned seed = argc > 2 ? static_cast<unsigned>(std::atoi(argv[2])) : 1;
  int failures = 0;
  for (const Tier& tier : tiers()) {
    std::mt19937 rng(seed);
    if (argc > 1 && std::strcmp(argv[1], "--bench") == 0) bench(tier);
    else
      for (int i = 0; i < 600; ++i) failures += check(tier, rng, seed);
  }
  return failures != 0;
}

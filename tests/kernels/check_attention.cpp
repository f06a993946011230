// SPDX-License-Identifier: Apache-2.0
// Every instruction set's attention, rotation and cache codes against float64, with guard bytes. --bench: us and GFLOP/s.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/dtype.h"
#include "cpu_avx/attention.h"
#include "cpu_avx/cpu_features.h"

using namespace hotset;
using cpu::BiasFormat;
using cpu::KvFormat;

namespace {

int failures = 0;
unsigned seed = 1;
std::mt19937 rng;

int pick(int below) { return static_cast<int>(rng() % static_cast<unsigned>(below)); }

constexpr KvFormat kFormats[] = {KvFormat::f32, KvFormat::f16, KvFormat::bf16, KvFormat::i8, KvFormat::i4, KvFormat::f8};

ptrdiff_t row_bytes(KvFormat f, int d) {
  return f == KvFormat::f32 ? 4 * d : f == KvFormat::f16 || f == KvFormat::bf16 ? 2 * d : f == KvFormat::i4 ? (d + 1) / 2 : d;
}

double value_at(KvFormat f, const uint8_t* row, int c) {
  uint16_t h;
  float x;
  std::memcpy(&h, row + (f == KvFormat::f16 || f == KvFormat::bf16 ? 2 * c : 0), 2);
  switch (f) {
    case KvFormat::f32:
      std::memcpy(&x, row + 4 * c, 4);
      return x;
    case KvFormat::f16:
      return f16_to_f32(h);
    case KvFormat::bf16:
      return bf16_to_f32(h);
    case KvFormat::i8:
      return static_cast<int8_t>(row[c]);
    case KvFormat::i4:
      return (row[c / 2] >> 4 * (c % 2) & 15) - 8;
    case KvFormat::f8:
      return f8e4m3fn_to_f32(row[c]);
  }
  return 0;
}

// Rows of random values, the last byte of the vector being the last byte that may be read.
std::vector<uint8_t> make_rows(KvFormat f, int n, int d, ptrdiff_t stride, int shift) {
  std::normal_distribution<float> normal;
  std::vector<uint8_t> bytes(static_cast<size_t>(shift + (n - 1) * stride + row_bytes(f, d)) + (f == KvFormat::f32 ? 0 : 1));
  for (int i = 0; i < n; ++i) {
    uint8_t* const row = bytes.data() + shift + i * stride;
    for (int c = 0; c < d; ++c) {
      const float x = normal(rng);
      const uint16_t h = f == KvFormat::f16 ? f32_to_f16(x) : f32_to_bf16(x);
      if (f == KvFormat::f32)
        std::memcpy(row + 4 * c, &x, 4);
      else if (f == KvFormat::f16 || f == KvFormat::bf16)
        std::memcpy(row + 2 * c, &h, 2);
      else if (f == KvFormat::i4)
        row[c / 2] = static_cast<uint8_t>(rng());
      else
        row[c] = f == KvFormat::f8 ? static_cast<uint8_t>(rng() & 0xbf) : static_cast<uint8_t>(rng());
    }
  }
  return bytes;
}

template <class T>
T* align(std::vector<T>& v) {
  return v.data() + (64 - reinterpret_cast<uintptr_t>(v.data()) % 64) % 64 / sizeof(T);
}

void report(const char* isa, const char* what, const char* detail, double got, double want) {
  if (++failures <= 20) std::printf("%s %s, seed %u: %s: %.9g, expected %.9g\n", isa, what, seed, detail, got, want);
}

void check_attend(const cpu::AttentionKernels& kernels, const char* isa) {
  std::normal_distribution<float> normal;
  const int rows = pick(3) ? 1 + pick(9) : 1 + pick(cpu::kAttentionTileRows), d = 1 + pick(pick(2) ? 20 : 150),
            dv = pick(2) ? d : 1 + pick(150);
  const int n = 1 + pick(pick(2) ? 20 : 300), first = pick(50);
  const KvFormat kf = kFormats[pick(6)], vf = kFormats[pick(6)];
  const ptrdiff_t ks = row_bytes(kf, d) + pick(3) * 4, vs = row_bytes(vf, dv) + pick(3) * 4;
  const int shift = pick(2) * 4;
  const std::vector<uint8_t> k = make_rows(kf, n, d, ks, shift), v = make_rows(vf, n, dv, vs, shift);
  const int ldq = cpu::attention_ld(d), lda = cpu::attention_ld(dv);
  std::vector<float> q(static_cast<size_t>(rows * ldq)), m(static_cast<size_t>(rows)), l(static_cast<size_t>(rows)), key_bias;
  std::vector<float> acc(static_cast<size_t>(rows * lda) + 16, -7.0f), logits(static_cast<size_t>(rows * (first + n)), -7.0f);
  const double q_scale = 2.0 / std::sqrt(d) / (kf == KvFormat::i8 ? 70 : kf == KvFormat::i4 ? 5 : kf == KvFormat::f8 ? 4 : 1);
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < d; ++c) q[static_cast<size_t>(r * ldq + c)] = static_cast<float>(normal(rng) * q_scale);
    m[static_cast<size_t>(r)] = -std::numeric_limits<float>::infinity();
    l[static_cast<size_t>(r)] = 0;
    std::memset(acc.data() + r * lda, 0, static_cast<size_t>(lda) * 4);
  }
  std::vector<int64_t> lo(static_cast<size_t>(rows)), hi(static_cast<size_t>(rows));
  const int start = first + pick(n), window = pick(3) ? 1 << 20 : 1 + pick(40), group = 1 + pick(4);
  const bool causal = pick(2);
  for (int r = 0; r < rows; ++r) {
    hi[static_cast<size_t>(r)] = causal ? std::min(first + n, start + r / group + 1) : first + n;
    lo[static_cast<size_t>(r)] = std::max(first, start + r / group + 1 - window);
  }
  const auto bias_format = static_cast<BiasFormat>(pick(5));
  const KvFormat bias_values = bias_format == BiasFormat::f16    ? KvFormat::f16
                               : bias_format == BiasFormat::bf16 ? KvFormat::bf16
                                                                 : KvFormat::f32;
  const ptrdiff_t bias_stride = bias_format == BiasFormat::boolean ? first + n : row_bytes(bias_values, first + n);
  std::vector<uint8_t> bias = make_rows(bias_values, rows, first + n, row_bytes(bias_values, first + n), 0);
  std::vector<const void*> bias_rows(static_cast<size_t>(rows));
  if (bias_format == BiasFormat::boolean)
    for (uint8_t& b : bias) b = pick(3) > 0;
  for (int r = 0; r < rows; ++r) bias_rows[static_cast<size_t>(r)] = bias.data() + r * bias_stride;
  if (pick(3) == 0)
    for (int j = 0; j < first + n; ++j) key_bias.push_back(normal(rng));
  std::vector<float> scratch(cpu::attention_scratch_floats(rows, d, dv) + 32, -7.0f);

  cpu::AttentionTile t;
  t.rows = rows, t.d = d, t.dv = dv, t.q = q.data();
  t.k_format = kf, t.v_format = vf, t.k = k.data() + shift, t.v = v.data() + shift, t.k_stride = ks, t.v_stride = vs;
  t.first = first, t.lo = lo.data(), t.hi = hi.data();
  t.softcap = pick(3) ? 0.0f : 1.5f;
  t.bias_format = bias_format, t.bias = bias_rows.data(), t.key_bias = key_bias.empty() ? nullptr : key_bias.data();
  t.m = m.data(), t.l = l.data(), t.acc = acc.data(), t.logits = logits.data(), t.logits_ld = first + n, t.scratch = align(scratch);
  const int cut = first + pick(n + 1);  // in two pieces
  t.begin = first, t.end = cut;
  kernels.attend(t);
  t.begin = cut, t.end = first + n;
  kernels.attend(t);

  for (int r = 0; r < rows; ++r) {
    double top = -INFINITY, sum = 0;
    std::vector<double> x(static_cast<size_t>(n), -INFINITY), out(static_cast<size_t>(dv));
    for (int j = 0; j < n; ++j) {
      const int64_t key = first + j;
      if (key < lo[static_cast<size_t>(r)] || key >= hi[static_cast<size_t>(r)]) continue;
      double s = 0;
      for (int c = 0; c < d; ++c) s += q[static_cast<size_t>(r * ldq + c)] * value_at(kf, k.data() + shift + j * ks, c);
      if (t.softcap > 0) s = t.softcap * std::tanh(s / t.softcap);
      const uint8_t* const b = static_cast<const uint8_t*>(bias_rows[static_cast<size_t>(r)]);
      if (bias_format == BiasFormat::boolean)
        s = b[key] ? s : -INFINITY;
      else if (bias_format != BiasFormat::none)
        s += value_at(bias_values, b, static_cast<int>(key));
      if (t.key_bias) s += t.key_bias[key];
      x[static_cast<size_t>(j)] = s;
      top = std::max(top, s);
      const double got = logits[static_cast<size_t>(r * (first + n) + key)];
      if (got != s && !(std::fabs(got - s) <= 2e-5 * (1 + std::fabs(s)))) report(isa, "attend", "a logit", got, s);
    }
    for (int j = 0; j < n; ++j) {
      const double p = top == -INFINITY ? 0 : std::exp(x[static_cast<size_t>(j)] - top);
      sum += p;
      for (int c = 0; c < dv; ++c) out[static_cast<size_t>(c)] += p == 0 ? 0 : p * value_at(vf, v.data() + shift + j * vs, c);
    }
    const double l_got = l[static_cast<size_t>(r)];
    double largest = 1;
    for (int j = 0; j < n; ++j)
      for (int c = 0; c < dv; ++c) largest = std::max(largest, std::fabs(value_at(vf, v.data() + shift + j * vs, c)));
    for (int c = 0; c < dv; ++c) {
      const double got = sum == 0 ? acc[static_cast<size_t>(r * lda + c)] : acc[static_cast<size_t>(r * lda + c)] / l_got;
      const double want = sum == 0 ? 0 : out[static_cast<size_t>(c)] / sum;
      if (!(std::fabs(got - want) <= 2e-5 * largest)) report(isa, "attend", "an output", got, want);
    }
  }
  for (size_t i = acc.size() - 16; i < acc.size(); ++i)
    if (acc[i] != -7.0f) report(isa, "attend", "guard after acc", acc[i], -7);
  const float* const end = t.scratch + cpu::attention_scratch_floats(rows, d, dv);
  if (*end != -7.0f) report(isa, "attend", "guard after scratch", *end, -7);
}

void check_rotate_and_scale(const cpu::AttentionKernels& kernels, const char* isa) {
  std::normal_distribution<float> normal;
  const int half = 1 + pick(70), n = 2 * half;
  const bool interleaved = pick(2);
  std::vector<float> x(static_cast<size_t>(n) + 1, -7.0f), cos(static_cast<size_t>(half)), sin(static_cast<size_t>(half)), y(x);
  for (int i = 0; i < n; ++i) x[static_cast<size_t>(i)] = normal(rng);
  for (int i = 0; i < half; ++i) cos[static_cast<size_t>(i)] = normal(rng), sin[static_cast<size_t>(i)] = normal(rng);
  const std::vector<float> before = x;
  kernels.rotate(x.data(), cos.data(), sin.data(), half, interleaved);
  for (int i = 0; i < half; ++i) {
    const size_t p = static_cast<size_t>(interleaved ? 2 * i : i), r = static_cast<size_t>(interleaved ? 2 * i + 1 : half + i),
                 c = static_cast<size_t>(i);
    const float ac = before[p] * cos[c], bs = before[r] * sin[c], bc = before[r] * cos[c], as = before[p] * sin[c];
    if (x[p] != ac - bs || x[r] != bc + as) report(isa, "rotate", "not the same bits", x[p], ac - bs);
  }
  if (x[static_cast<size_t>(n)] != -7.0f) report(isa, "rotate", "guard", x[static_cast<size_t>(n)], -7);
  kernels.scale(before.data(), 0.5f, pick(2) ? cos.data() : nullptr, 0, y.data(), n);
  if (y[static_cast<size_t>(n)] != -7.0f) report(isa, "scale", "guard", y[static_cast<size_t>(n)], -7);
}

void check_codes(const cpu::AttentionKernels& kernels, const char* isa) {
  std::normal_distribution<float> normal(0, 40);
  const KvFormat f = kFormats[3 + pick(3)];
  const int n = 1 + pick(90), step = pick(2);
  std::vector<float> x(static_cast<size_t>(n)), s(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) {
    s[static_cast<size_t>(i)] = std::ldexp(1.0f, pick(4) - 2);
    x[static_cast<size_t>(i)] = pick(2) ? normal(rng) : static_cast<float>(pick(40) - 20) * 0.25f;  // many ties
    if (pick(9) == 0) x[static_cast<size_t>(i)] = pick(2) ? 1e30f : -INFINITY;
    if (f == KvFormat::f8 && pick(2)) x[static_cast<size_t>(i)] = std::ldexp(normal(rng), -12);  // subnormals
  }
  std::vector<uint8_t> codes(static_cast<size_t>(row_bytes(f, n)) + 1, 0x5a);
  kernels.quantize(f, x.data(), s.data(), step, codes.data(), n);
  if (codes.back() != 0x5a) report(isa, "quantize", "guard", codes.back(), 0x5a);
  for (int i = 0; i < n; ++i) {
    const float r = x[static_cast<size_t>(i)] / s[static_cast<size_t>(i * step)];
    const double got = value_at(f, codes.data(), i);
    double want;
    if (f == KvFormat::f8) {  // the nearest of all values; of two as near, the even code
      double best = INFINITY;
      want = 0;
      for (int code = 0; code < 127; ++code) {
        const double v = f8e4m3fn_to_f32(static_cast<uint8_t>(code)),
                     error = std::fabs(std::min(std::fabs(static_cast<double>(r)), 448.0) - v);
        if (error < best || (error == best && code % 2 == 0)) best = error, want = std::copysign(v, static_cast<double>(r));
      }
    } else {
      const double low = f == KvFormat::i8 ? -128 : -8, high = f == KvFormat::i8 ? 127 : 7;
      want = std::min(high, std::max(low, std::nearbyint(static_cast<double>(r))));
    }
    if (got != want) report(isa, "quantize", "a code", got, want);
  }
}

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// One K/V head: 2 query rows over n keys (decode), 96 over n (a tile of a prompt).
void bench(const cpu::AttentionKernels& kernels, const char* isa) {
  for (const KvFormat f : kFormats) {
    for (const int rows : {1, 2, 8, 96}) {
      for (const int n : {16, 256, 2048}) {
        const int d = 64;
        std::vector<uint8_t> k = make_rows(f, n + 1, d, row_bytes(f, d), 0), v = make_rows(f, n + 1, d, row_bytes(f, d), 0);
        std::vector<float> q(static_cast<size_t>(rows * d), 0.01f), m(static_cast<size_t>(rows)), l(m), acc(static_cast<size_t>(rows * d));
        std::vector<float> scratch(cpu::attention_scratch_floats(rows, d, d) + 16);
        std::vector<int64_t> lo(static_cast<size_t>(rows), 0), hi(static_cast<size_t>(rows), n);
        cpu::AttentionTile t{};
        t.rows = rows, t.d = t.dv = d, t.q = q.data(), t.k_format = t.v_format = f, t.k = align(k), t.v = align(v);
        t.k_stride = t.v_stride = row_bytes(f, d), t.end = n, t.lo = lo.data(), t.hi = hi.data();
        t.m = m.data(), t.l = l.data(), t.acc = acc.data(), t.scratch = align(scratch);
        double best = 1e9;
        for (int round = 0; round < 30; ++round) {
          const double start = seconds();
          constexpr int kReps = 5;
          for (int i = 0; i < kReps; ++i) kernels.attend(t);
          best = std::min(best, (seconds() - start) / kReps);
        }
        std::printf("%-6s %-4s rows %2d keys %4d: %8.2f us %6.1f GFLOP/s %6.1f GB/s\n", isa,
                    f == KvFormat::f32    ? "f32"
                    : f == KvFormat::f16  ? "f16"
                    : f == KvFormat::bf16 ? "bf16"
                    : f == KvFormat::i8   ? "i8"
                    : f == KvFormat::i4   ? "i4"
                                          : "f8",
                    rows, n, best * 1e6, 4e-9 * rows * n * d / best, 2e-9 * n * static_cast<double>(row_bytes(f, d)) / best);
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  seed = argc > 2 ? static_cast<unsigned>(std::atoi(argv[2])) : 1;
  const bool measure = argc > 1 && std::strcmp(argv[1], "--bench") == 0;
  struct Tier {
    const char* name;
    bool available;
    void (*fill)(cpu::AttentionKernels*);
  };
  const Tier tiers[] = {
      {"scalar", true, cpu::attention_kernels_scalar},
#if defined(__x86_64__) || defined(_M_X64)
      {"avx2", cpu::cpu_features().avx2, cpu::attention_kernels_avx2},
      {"avx512", cpu::cpu_features().avx512, cpu::attention_kernels_avx512},
#elif defined(__aarch64__)
      {"neon", cpu::cpu_features().neon, cpu::attention_kernels_neon},
#endif
  };
  for (const Tier& tier : tiers) {
    if (!tier.available) continue;
    cpu::AttentionKernels kernels;
    tier.fill(&kernels);
    rng.seed(seed);
    if (measure) {
      bench(kernels, tier.name);
      continue;
    }
    for (int round = 0; round < 400; ++round) {
      check_attend(kernels, tier.name);
      check_rotate_and_scale(kernels, tier.name);
      check_codes(kernels, tier.name);
    }
  }
  if (failures) std::printf("%d failures\n", failures);
  return failures != 0;
}

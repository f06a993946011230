// SPDX-License-Identifier: Apache-2.0
// Every tier of quantised GEMM that this machine can run, against float64; with --bench, its speed.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "bench_quant_gemm.h"
#include "cpu_avx/cpu_features.h"
#include "cpu_avx/quant_gemm.h"
#include "cpu_avx/quant_gemm_isa.h"
#include "guarded_bytes.h"

#if defined(__x86_64__)
namespace hotset::cpu {
extern const QuantGemm kQuantI8EmulatedAmx[3], kQuantI8EmulatedAmxBlock16[3];  // emulated_quant_gemm.cpp
}
#endif

namespace {

using namespace hotset::cpu;

struct Tier {
  const char* name;
  bool int8;
  const QuantGemm* tables;  // for 2, 4 and 8 bits; one for all where any_block
  int64_t smallest_block;   // 0: any block
};

std::vector<Tier> tiers() {
  std::vector<Tier> list = {{"f32 scalar", false, &kQuantF32Scalar, 0}, {"i8 scalar", true, &kQuantI8Scalar, 0}};
  [[maybe_unused]] const auto add = [&](CpuLevel level, const char* name, bool int8, const QuantGemm* tables, int64_t smallest_block) {
    if (cpu_features().has(level)) list.push_back({name, int8, tables, smallest_block});
  };
#if defined(__x86_64__)
  add(CpuLevel::kAvx2, "f32 avx2", false, kQuantF32Avx2, 16);
  add(CpuLevel::kAvx512, "f32 avx512", false, kQuantF32Avx512, 16);
  add(CpuLevel::kAvx512Vnni, "f32 avx512vnni", false, kQuantF32Avx512Vnni, 32);
  add(CpuLevel::kAvx2, "i8 avx2", true, kQuantI8Avx2, 32);
  add(CpuLevel::kAvx2, "i8 avx2 block 16", true, kQuantI8Avx2Block16, 16);
  add(CpuLevel::kAvx2Vnni, "i8 avx2vnni", true, kQuantI8Avx2Vnni, 32);
  add(CpuLevel::kAvx2Vnni, "i8 avx2vnni block 16", true, kQuantI8Avx2VnniBlock16, 16);
  add(CpuLevel::kAvx512Vnni, "i8 avx512vnni", true, kQuantI8Avx512Vnni, 32);
  add(CpuLevel::kAvx512Vnni, "i8 emulated amx", true, kQuantI8EmulatedAmx, 32);
  add(CpuLevel::kAvx512Vnni, "i8 emulated amx block 16", true, kQuantI8EmulatedAmxBlock16, 16);
  if (amx_permitted()) {
    add(CpuLevel::kAmx, "i8 amx", true, kQuantI8Amx, 32);
    add(CpuLevel::kAmx, "i8 amx block 16", true, kQuantI8AmxBlock16, 16);
  }
#elif defined(__aarch64__)
  add(CpuLevel::kNeon, "f32 neon", false, kQuantF32Neon, 16);
  add(CpuLevel::kNeon, "i8 neon", true, kQuantI8Neon, 32);
  add(CpuLevel::kNeon, "i8 neon block 16", true, kQuantI8NeonBlock16, 16);
  add(CpuLevel::kNeonDot, "i8 neondot", true, kQuantI8NeonDot, 32);
  add(CpuLevel::kNeonDot, "i8 neondot block 16", true, kQuantI8NeonDotBlock16, 16);
  add(CpuLevel::kNeonI8mm, "i8 neoni8mm", true, kQuantI8NeonI8mm, 32);
  add(CpuLevel::kNeonI8mm, "i8 neoni8mm block 16", true, kQuantI8NeonI8mmBlock16, 16);
#endif
  return list;
}

uint16_t half_of(double v) {  // v is a normal half
  int e;
  const double f = std::frexp(std::fabs(v), &e);
  const int mantissa = static_cast<int>(std::lrint(f * 2048));
  return static_cast<uint16_t>((v < 0 ? 0x8000 : 0) + ((e + 14) << 10) + (mantissa - 1024));
}

double value_of_half(uint16_t h) {
  return (h & 0x8000 ? -1 : 1) * std::ldexp(1024 + (h & 1023), ((h >> 10) & 31) - 25);
}

// kLargest: exact, with the largest products there are. kSpread: numbers of a group 2^30 apart. kBroken: some rows have a NaN or an
// infinity, or are too large or too small for fixed point.
enum class Inputs { kRandom, kExact, kExtreme, kLargest, kSpread, kBroken };

struct Problem {
  int64_t m, n, k, block;
  int bits, scale_type;
  bool zeros, zeros_along_n, bias;
  Inputs inputs;
};

// All sums of integers and of floats are exact, so that every tier must give the same bits.
bool exact(const Problem& p) { return p.inputs == Inputs::kExact || p.inputs == Inputs::kLargest; }

uint64_t seed = 0;
int failures = 0;

void describe(const char* tier, const Problem& p, const char* what) {
  std::printf("FAILED %s: %s; seed %llu m %lld n %lld k %lld block %lld bits %d scale_type %d zeros %d along_n %d bias %d inputs %d\n", tier, what,
              static_cast<unsigned long long>(seed), static_cast<long long>(p.m), static_cast<long long>(p.n), static_cast<long long>(p.k),
              static_cast<long long>(p.block), p.bits, p.scale_type, p.zeros, p.zeros_along_n, p.bias, static_cast<int>(p.inputs));
  if (++failures > 20) std::exit(1);
}

void check(const std::vector<Tier>& all, const Problem& p) {
  std::mt19937_64 rng(seed);
  auto below = [&](uint64_t n) { return rng() % n; };
  std::uniform_real_distribution<float> real(-1, 1);

  // W, in rows with a few bytes between them that belong to nobody.
  const int64_t blocks = (p.k + p.block - 1) / p.block, gap = static_cast<int64_t>(below(4));
  const int64_t used = (p.k * p.bits + 7) / 8;
  GuardedBytes codes(static_cast<size_t>((p.n - 1) * (used + gap) + used));
  for (size_t i = 0; i < codes.size(); ++i) codes.data()[i] = static_cast<uint8_t>(p.inputs == Inputs::kLargest || (p.inputs == Inputs::kExtreme && below(2)) ? 255 : rng());
  const int64_t scale_gap = static_cast<int64_t>(below(2)), scale_size = p.scale_type == 1 ? 4 : 2;
  GuardedBytes scales(static_cast<size_t>(((p.n - 1) * (blocks + scale_gap) + blocks) * scale_size), below(2) * below(4));
  std::vector<double> scale_values(scales.size() / static_cast<size_t>(scale_size));
  for (size_t i = 0; i < scale_values.size(); ++i) {
    const float s = exact(p) ? 1.0f : real(rng) * 0.05f + (below(2) ? 0.1f : -0.1f);
    if (p.scale_type == 1) {
      std::memcpy(scales.data() + 4 * i, &s, 4);
      scale_values[i] = s;
    } else if (p.scale_type == 10) {
      const uint16_t h = half_of(s);
      std::memcpy(scales.data() + 2 * i, &h, 2);
      scale_values[i] = value_of_half(h);
    } else {
      uint32_t b;
      std::memcpy(&b, &s, 4);
      b &= 0xffff0000u;
      const uint16_t h = static_cast<uint16_t>(b >> 16);
      std::memcpy(scales.data() + 2 * i, &h, 2);
      float f;
      std::memcpy(&f, &b, 4);
      scale_values[i] = f;
    }
  }
  const int64_t zero_row = (blocks * p.bits + 7) / 8;
  GuardedBytes zeros(static_cast<size_t>(p.zeros_along_n ? (p.n * p.bits + 7) / 8 : p.n * zero_row));
  for (size_t i = 0; i < zeros.size(); ++i) zeros.data()[i] = static_cast<uint8_t>(p.inputs == Inputs::kLargest ? 0 : rng());
  GuardedBytes bias_bytes(static_cast<size_t>(p.n) * 4);
  for (int64_t j = 0; j < p.n; ++j) {
    const float b = exact(p) ? static_cast<float>(static_cast<int>(below(64))) : real(rng);
    std::memcpy(bias_bytes.data() + 4 * j, &b, 4);
  }
  const float* bias = reinterpret_cast<const float*>(bias_bytes.data());

  QuantMatrix w;
  w.codes = codes.data();
  w.row_bytes = used + gap;
  w.scales = scales.data();
  w.scale_stride = blocks + scale_gap;
  w.scale_type = p.scale_type;
  w.zero_points = p.zeros ? zeros.data() : nullptr;
  w.zero_stride = p.zeros_along_n ? 0 : zero_row;
  w.bits = p.bits;
  w.block = p.block;
  w.n = p.n;
  w.k = p.k;
  if (below(2)) {  // addresses that are asked for early and never read
    w.next_codes = codes.data() + codes.size();
    w.next_scales = scales.data() + scales.size();
  }

  const int64_t ldx = p.k + static_cast<int64_t>(below(3)), ldy = p.n + static_cast<int64_t>(below(5));
  GuardedBytes x_bytes(static_cast<size_t>((p.m - 1) * ldx + p.k) * 4);
  float* x = reinterpret_cast<float*>(x_bytes.data());
  for (int64_t i = 0; i < p.m; ++i) {
    for (int64_t k = 0; k < p.k; ++k) {
      float& v = x[i * ldx + k];
      if (p.inputs == Inputs::kLargest) {
        v = i % 3 == 0 ? 127.0f : i % 3 == 1 ? -127.0f : below(2) ? 127.0f : -127.0f;
      } else if (p.inputs == Inputs::kExact) {
        // The group scale is a power of two: the quantised codes are these integers, and all sums are exact in float32.
        v = k % 32 == 0 ? (below(2) ? 127.0f : -127.0f) : static_cast<float>(static_cast<int>(below(255)) - 127);
      } else if (p.inputs == Inputs::kExtreme) {
        const uint64_t kind = below(40);
        v = kind == 0 ? 1e6f : kind == 1 ? -1e6f : kind < 10 ? 0.0f : kind < 12 ? 1e-38f : kind < 14 ? -1e-30f : real(rng) + 1.0f;
      } else {
        v = real(rng);
        if (p.inputs == Inputs::kSpread) v *= std::ldexp(1.0f, -static_cast<int>(below(31)));
      }
    }
    if (p.inputs == Inputs::kBroken && i % 4 != 0) {
      float& v = x[i * ldx + static_cast<int64_t>(below(static_cast<uint64_t>(p.k)))];
      if (i % 4 == 1) v = below(2) ? std::nanf("") : below(2) ? HUGE_VALF : -HUGE_VALF;
      if (i % 4 == 2) v = 1e25f;
      if (i % 4 == 3)
        for (int64_t k = 0; k < std::min<int64_t>(p.k, 40); ++k) x[i * ldx + k] *= 1e-25f;
    }
  }
  if (p.inputs == Inputs::kExtreme && p.k >= 64)
    for (int64_t k = 32; k < 64; ++k) x[k] = 1e-39f;  // a group too small to have a reciprocal

  auto code = [&](int64_t n, int64_t k) { return (codes.data()[n * w.row_bytes + k * p.bits / 8] >> (k * p.bits % 8)) & ((1 << p.bits) - 1); };
  auto zero = [&](int64_t n, int64_t j) {
    if (!p.zeros) return 1 << (p.bits - 1);
    const int64_t i = p.zeros_along_n ? n * p.bits : (n * zero_row * 8 + j * p.bits);
    return (zeros.data()[i / 8] >> (i % 8)) & ((1 << p.bits) - 1);
  };
  std::vector<double> want(static_cast<size_t>(p.m * p.n)), magnitude(want.size()), want8(want.size()), magnitude8(want.size()), slack8(want.size());
  for (int64_t i = 0; i < p.m; ++i) {
    std::vector<double> q(static_cast<size_t>(p.k)), d(static_cast<size_t>(p.k));
    for (int64_t g = 0; g < p.k; g += 32) {
      float largest = 0;
      const int64_t end = std::min(p.k, g + 32);
      for (int64_t k = g; k < end; ++k) largest = std::max(largest, std::fabs(x[i * ldx + k]));
      const float inverse = largest < 0x1p-100f ? 0.0f : 127.0f / largest;
      for (int64_t k = g; k < end; ++k) {
        q[static_cast<size_t>(k)] = std::nearbyint(x[i * ldx + k] * inverse);
        d[static_cast<size_t>(k)] = largest / 127.0f;
      }
    }
    for (int64_t n = 0; n < p.n; ++n) {
      double sum = p.bias ? bias[n] : 0, size = std::fabs(sum), sum8 = sum, size8 = size, slack = 0;
      for (int64_t k = 0; k < p.k; ++k) {
        const double s = scale_values[static_cast<size_t>(n * w.scale_stride + k / p.block)], v = x[i * ldx + k];
        const int c = code(n, k), z = zero(n, k / p.block), at = static_cast<int>(k);
        sum += v * s * (c - z);
        size += std::fabs(v * s) * (1 << p.bits);
        const double v8 = q[static_cast<size_t>(at)] * d[static_cast<size_t>(at)];
        sum8 += v8 * s * (c - z);
        size8 += std::fabs(v8 * s) * (1 << p.bits);
        slack += 0.501 * d[static_cast<size_t>(at)] * std::fabs(s * (c - z));
      }
      const size_t at = static_cast<size_t>(i * p.n + n);
      want[at] = sum, magnitude[at] = size, want8[at] = sum8, magnitude8[at] = size8, slack8[at] = slack;
    }
  }

  for (const Tier& t : all) {
    const bool power_of_two = (p.block & (p.block - 1)) == 0 && p.block >= t.smallest_block;
    if (t.smallest_block && !power_of_two && p.block < p.k) continue;
    const QuantGemm& g = t.tables[t.smallest_block == 0 ? 0 : p.bits == 2 ? 0 : p.bits == 4 ? 1 : 2];
    const size_t prepared_bytes = g.prepared_bytes(p.m, p.k), scratch_bytes = g.scratch_bytes(p.m, p.n, p.k);
    if (prepared_bytes % 64 != 0) describe(t.name, p, "prepared_bytes is not a multiple of 64");
    if (prepared_bytes > static_cast<size_t>(p.m) * g.prepared_bytes(1, p.k))
      describe(t.name, p, "the rows need more bytes than as many single ones");
    GuardedBytes prepared(prepared_bytes), scratch((scratch_bytes + 63) / 64 * 64);
    std::memset(prepared.data(), 0xa5, prepared.size());
    std::memset(scratch.data(), 0xff, scratch.size());
    const int64_t half_m = static_cast<int64_t>(below(static_cast<uint64_t>(p.m) + 1));
    g.prepare(x, ldx, p.m, p.k, half_m, p.m, prepared.data());
    g.prepare(x, ldx, p.m, p.k, 0, half_m, prepared.data());

    const float mark = -12345.5f;
    // Twice: the whole product, then in pieces as threads would do it; the bits must agree.
    std::vector<float> whole(static_cast<size_t>(p.m * ldy), mark), pieces = whole;
    g.multiply(w, prepared.data(), p.m, 0, p.m, 0, p.n, p.bias ? bias : nullptr, whole.data(), ldy, scratch.data());
    const int64_t split_m = static_cast<int64_t>(below(static_cast<uint64_t>(p.m) + 1));
    const int64_t split_n = std::min<int64_t>(p.n, below(4) == 0 ? static_cast<int64_t>(below(static_cast<uint64_t>(p.n) + 1)) : p.n / 2 / 32 * 32);
    for (int part = 0; part < 4; ++part)
      g.multiply(w, prepared.data(), p.m, part & 1 ? split_m : 0, part & 1 ? p.m : split_m, part & 2 ? split_n : 0, part & 2 ? p.n : split_n,
                 p.bias ? bias : nullptr, pieces.data(), ldy, scratch.data());
    if (std::memcmp(whole.data(), pieces.data(), whole.size() * 4) != 0) describe(t.name, p, "split ranges change the result");

    for (int64_t i = 0; i < p.m; ++i) {
      for (int64_t j = p.n; j < ldy; ++j)
        if (whole[static_cast<size_t>(i * ldy + j)] != mark) return describe(t.name, p, "wrote outside the range");
      for (int64_t j = 0; j < p.n; ++j) {
        const size_t at = static_cast<size_t>(i * p.n + j);
        const double got = whole[static_cast<size_t>(i * ldy + j)], expect = t.int8 ? want8[at] : want[at];
        if (!std::isfinite(want[at])) {  // a row with a NaN or an infinity, which it must show
          if (std::isfinite(got)) return describe(t.name, p, "a NaN or an infinity got lost");
          continue;
        }
        // Float sums in any order, codes and zeros summed apart: a few roundings of the largest partial sum. Exact inputs round nowhere.
        const double bound = exact(p) ? 0 : 1e-30 + 1e-6 * (t.int8 ? magnitude8[at] : magnitude[at]);
        if (!(std::fabs(got - expect) <= bound) || (t.int8 && !(std::fabs(got - want[at]) <= slack8[at] + 1e-6 * magnitude[at] + 1e-30))) {
          char what[160];
          std::snprintf(what, sizeof what, "y[%lld][%lld] is %.9g, want %.9g +- %.3g", static_cast<long long>(i), static_cast<long long>(j), got, expect, bound);
          return describe(t.name, p, what);
        }
      }
    }
  }
}

void check_selection() {
  QuantMatrix w;
  w.n = 64, w.k = 96;
  for (int bits : {2, 4, 8})
    for (int64_t block : {16, 32, 48, 64, 96, 128})
      for (bool int8 : {false, true}) {
        w.bits = bits, w.block = block;
        const QuantGemm& g = quant_gemm(int8, w);
        const std::string isa = quant_gemm_isa(int8, w);
        const bool is_scalar = &g == &kQuantF32Scalar || &g == &kQuantI8Scalar;
        const bool odd_block = block == 48;
        if (is_scalar != (isa == "scalar") || (odd_block && !is_scalar)) {
          std::printf("FAILED selection: bits %d block %lld gives %s\n", bits, static_cast<long long>(block), isa.c_str());
          ++failures;
        }
      }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "--bench") == 0) {
    bench_quant_gemm(argc > 2 ? argv[2] : "");
    return 0;
  }
  seed = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 600;
  const std::vector<Tier> all = tiers();
  check_selection();
  for (int round = 0; round < rounds; ++round, ++seed) {
    std::mt19937_64 rng(seed * 7919);
    auto below = [&](uint64_t n) { return static_cast<int64_t>(rng() % n); };
    Problem p;
    const int64_t ms[] = {1, 1, 2, 3, 4, 5, 7, 13, 1 + below(50)};
    p.m = ms[below(9)];
    p.n = 1 + below(below(3) ? 40 : 140);
    p.k = below(4) == 0 ? 1 + below(90) : below(3) ? 32 * (1 + below(20)) : 1 + below(1200);
    const int bits[] = {2, 4, 4, 8};
    p.bits = bits[below(4)];
    const int64_t blocks[] = {16, 32, 32, 64, 128, 256, 1024, 48, 96, p.k, 2 * p.k + 1};
    p.block = blocks[below(11)];
    const int types[] = {1, 1, 10, 16};
    p.scale_type = types[below(4)];
    p.zeros = below(2) != 0;
    p.zeros_along_n = p.zeros && p.block >= p.k && below(2) != 0;
    p.bias = below(2) != 0;
    p.inputs = static_cast<Inputs>(below(6));
    if (exact(p) && p.bits == 8) p.k = 1 + p.k % 400;  // keeps the sums below 2^24
    if (exact(p) && p.block < p.k && p.bits == 8 && p.zeros_along_n) p.zeros_along_n = false;
    check(all, p);
  }
  std::printf("%d rounds, %d failures; tiers:", rounds, failures);
  for (const Tier& t : all) std::printf(" [%s]", t.name);
  std::printf("\n");
  return failures ? 1 : 0;
}

// SPDX-License-Identifier: Apache-2.0
// Every level of minifloat products against float64; with exact inputs all levels give the same bits.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "base/dtype.h"
#include "cpu_avx/minifloat_gemm.h"
#include "guarded_bytes.h"

namespace {

using namespace hotset;
using namespace hotset::cpu;

// exact: integers and powers of two, so that no sum rounds. no_numbers: NaN codes, scales and activations among the others.
enum class Inputs { random, exact, no_numbers };

struct Problem {
  int bits = 4, scale_type = 17;
  int64_t m = 1, n = 1, k = 16, block = 16, scale_rows = 1;
  bool int8 = false, rounds = false, bias = false;
  Inputs inputs = Inputs::random;
};

uint64_t seed = 0;
int failures = 0;

void fail(const char* name, const Problem& p, const char* what) {
  std::printf("FAILED %s: %s; seed %llu bits %d scale_type %d m %d n %d k %d block %d scale_rows %d int8 %d rounds %d bias %d inputs %d\n",
              name, what, static_cast<unsigned long long>(seed), p.bits, p.scale_type, static_cast<int>(p.m), static_cast<int>(p.n),
              static_cast<int>(p.k), static_cast<int>(p.block), static_cast<int>(p.scale_rows), p.int8, p.rounds, p.bias,
              static_cast<int>(p.inputs));
  if (++failures > 20) std::exit(1);
}

// Written from the formats' definitions, not from the library.
double value_of_e2m1(int code) {
  const int e = code >> 1 & 3, m = code & 1;
  const double size = e == 0 ? 0.5 * m : std::ldexp(1 + 0.5 * m, e - 1);
  return code & 8 ? -size : size;
}
double value_of_e4m3(int code) {
  const int e = code >> 3 & 15, m = code & 7;
  const double size = e == 15 && m == 7 ? NAN : e == 0 ? std::ldexp(m, -9) : std::ldexp(8 + m, e - 10);
  return code & 128 ? -size : size;
}

struct Matrix {
  Matrix(const Problem& p, std::mt19937_64& rng)
      : blocks((p.k + p.block - 1) / p.block),
        used((p.k * p.bits + 7) / 8),
        row_bytes(used + static_cast<int64_t>(rng() % 4)),
        scale_size(p.scale_type == 1                          ? 4
                   : p.scale_type == 10 || p.scale_type == 16 ? 2
                                                              : 1),
        scale_stride(blocks + static_cast<int64_t>(rng() % 2)),
        codes(static_cast<size_t>((p.n - 1) * row_bytes + used)),
        scales(static_cast<size_t>(((p.n - 1) / p.scale_rows * scale_stride + blocks) * scale_size)) {
    for (size_t i = 0; i < codes.size(); ++i) {
      uint8_t c = static_cast<uint8_t>(rng());
      if (p.bits == 8 && p.inputs != Inputs::no_numbers && (c & 127) == 127) c ^= 1;
      if (p.bits == 8 && p.inputs == Inputs::no_numbers && rng() % 100) c &= 0xfe;
      if (p.bits == 8 && p.inputs == Inputs::exact) c = static_cast<uint8_t>((c & 0x8f) | 0x38);  // 1 to 1.875
      codes.data()[i] = c;
    }
    values.resize(scales.size() / static_cast<size_t>(scale_size));
    const float steps[] = {0.25f, 0.5f, 1, 2};
    for (size_t i = 0; i < values.size(); ++i) {
      const float s = p.inputs == Inputs::exact ? steps[rng() % 4] : (static_cast<float>(rng() % 1000) + 1) * (rng() % 2 ? 1e-3f : -1e-3f);
      if (p.scale_type == 1) {
        std::memcpy(scales.data() + 4 * i, &s, 4);
        values[i] = s;
      } else if (scale_size == 2) {
        const uint16_t h = p.scale_type == 10 ? f32_to_f16(s) : f32_to_bf16(s);
        std::memcpy(scales.data() + 2 * i, &h, 2);
        values[i] = p.scale_type == 10 ? f16_to_f32(h) : bf16_to_f32(h);
      } else if (p.scale_type == 17) {
        uint8_t b = p.inputs == Inputs::exact ? static_cast<uint8_t>(0x28 + 8 * (rng() % 4)) : static_cast<uint8_t>(rng());
        if ((b & 127) == 127 && (p.inputs == Inputs::random || rng() % 3)) b ^= 1;
        scales.data()[i] = b;
        values[i] = value_of_e4m3(b);
      } else {
        uint8_t b = static_cast<uint8_t>(125 + rng() % 4);
        if (p.inputs == Inputs::no_numbers && rng() % 8 == 0) b = 255;
        if (p.inputs == Inputs::random && p.k < 40) b = static_cast<uint8_t>(rng() % 3 ? rng() % 120 : rng() % 2);  // sizes down to 2^-127
        scales.data()[i] = b;
        values[i] = b == 255 ? NAN : std::ldexp(1, b - 127);
      }
    }
  }
  double weight(const Problem& p, int64_t n, int64_t k) {
    const uint8_t byte = codes.data()[n * row_bytes + k * p.bits / 8];
    const double value = p.bits == 4 ? value_of_e2m1(k % 2 ? byte >> 4 : byte & 15) : value_of_e4m3(byte);
    return p.scale_type == 0 ? value : value * values[static_cast<size_t>(n / p.scale_rows * scale_stride + k / p.block)];
  }

  int64_t blocks, used, row_bytes, scale_size, scale_stride;
  GuardedBytes codes, scales;
  std::vector<double> values;
};

void check(const Problem& p) {
  std::mt19937_64 rng(seed);
  const auto below = [&](uint64_t n) { return static_cast<int64_t>(rng() % n); };
  Matrix matrix(p, rng);
  MinifloatMatrix w;
  w.bits = p.bits;
  w.codes = matrix.codes.data();
  w.row_bytes = matrix.row_bytes;
  w.scales = matrix.scales.data();
  w.scale_stride = matrix.scale_stride;
  w.scale_rows = p.scale_rows;
  w.scale_type = p.scale_type;
  w.factor = p.inputs == Inputs::exact ? 0.5f : 0.7f;
  w.block = p.block;
  w.n = p.n;
  w.k = p.k;

  const int64_t ldx = p.k + below(3), ldy = p.n + below(5);
  GuardedBytes x_bytes(static_cast<size_t>((p.m - 1) * ldx + p.k) * 4), bias_bytes(static_cast<size_t>(p.n) * 4);
  float *const x = reinterpret_cast<float*>(x_bytes.data()), *const bias = reinterpret_cast<float*>(bias_bytes.data());
  std::uniform_real_distribution<float> real(-1, 1);
  for (int64_t i = 0; i < p.m; ++i)
    for (int64_t k = 0; k < p.k; ++k) {
      // The largest of a group is 127, so that its scale is 1.
      const float whole = k % 32 == 0 ? 127.0f : static_cast<float>(below(255) - 127);
      x[i * ldx + k] = p.inputs == Inputs::exact ? whole : real(rng);
      if (p.inputs == Inputs::no_numbers && below(static_cast<uint64_t>(4 * p.k)) == 0) x[i * ldx + k] = below(2) ? NAN : INFINITY;
    }
  for (int64_t n = 0; n < p.n; ++n) bias[n] = p.inputs == Inputs::exact ? static_cast<float>(below(64)) : real(rng);

  // x as its int8 groups keep it.
  std::vector<double> kept(static_cast<size_t>(p.m * p.k));
  for (int64_t i = 0; i < p.m; ++i)
    for (int64_t g = 0; g < p.k; g += 32) {
      const int64_t end = std::min(p.k, g + 32);
      float largest = 0;
      bool numbers = true;
      for (int64_t k = g; k < end; ++k)
        largest = std::max(largest, std::fabs(x[i * ldx + k])), numbers = numbers && std::isfinite(x[i * ldx + k]);
      for (int64_t k = g; k < end; ++k) {
        const double q = largest < 0x1p-100f ? 0 : std::nearbyint(x[i * ldx + k] * (127.0f / largest));
        kept[static_cast<size_t>(i * p.k + k)] = !(p.int8 || p.rounds) ? x[i * ldx + k] : numbers ? q * (largest / 127.0f) : NAN;
      }
    }
  std::vector<double> want(static_cast<size_t>(p.m * p.n)), size(want.size());
  for (int64_t i = 0; i < p.m; ++i)
    for (int64_t n = 0; n < p.n; ++n) {
      double sum = 0, sizes = 0;
      for (int64_t k = 0; k < p.k; ++k) {
        const double term = kept[static_cast<size_t>(i * p.k + k)] * matrix.weight(p, n, k);
        sum += term;
        sizes += std::fabs(term);
      }
      const double offset = p.bias ? bias[n] : 0;
      want[static_cast<size_t>(i * p.n + n)] = sum * w.factor + offset;
      size[static_cast<size_t>(i * p.n + n)] = sizes * w.factor + std::fabs(offset);
    }

  for (int level = 0; const MinifloatGemm* g = minifloat_gemm_at(p.int8, level); ++level) {
    const size_t bytes = g->prepared_bytes(p.bits, p.m, p.k);
    if (bytes % 64 != 0 || bytes != static_cast<size_t>(p.m) * g->prepared_bytes(p.bits, 1, p.k)) fail(g->name, p, "prepared_bytes");
    GuardedBytes prepared(bytes);
    std::memset(prepared.data(), 0xa5, bytes);
    const int64_t half_m = below(static_cast<uint64_t>(p.m) + 1);
    g->prepare(p.bits, p.rounds, x, ldx, p.k, half_m, p.m, prepared.data());
    g->prepare(p.bits, p.rounds, x, ldx, p.k, 0, half_m, prepared.data());
    const float mark = -12345.5f;
    std::vector<float> whole(static_cast<size_t>(p.m * ldy), mark), pieces = whole;
    g->multiply(w, prepared.data(), 0, p.m, 0, p.n, p.bias ? bias : nullptr, whole.data(), ldy);
    const int64_t split_m = below(static_cast<uint64_t>(p.m) + 1), split_n = below(static_cast<uint64_t>(p.n) + 1);
    for (int part = 0; part < 4; ++part)
      g->multiply(w, prepared.data(), part & 1 ? split_m : 0, part & 1 ? p.m : split_m, part & 2 ? split_n : 0, part & 2 ? p.n : split_n,
                  p.bias ? bias : nullptr, pieces.data(), ldy);
    if (std::memcmp(whole.data(), pieces.data(), whole.size() * 4) != 0) fail(g->name, p, "split ranges change the result");
    for (int64_t i = 0; i < p.m; ++i) {
      for (int64_t j = p.n; j < ldy; ++j)
        if (whole[static_cast<size_t>(i * ldy + j)] != mark) return fail(g->name, p, "wrote outside the range");
      for (int64_t n = 0; n < p.n; ++n) {
        const size_t at = static_cast<size_t>(i * p.n + n);
        const double got = whole[static_cast<size_t>(i * ldy + n)], expect = want[at];
        const double bound = p.inputs == Inputs::exact ? 0 : 1e-37 + 1e-6 * size[at];
        const bool good = std::isnan(expect)   ? std::isnan(got)
                          : std::isinf(expect) ? !std::isfinite(got)
                                               : std::fabs(got - expect) <= bound;
        if (good) continue;
        char what[160];
        std::snprintf(what, sizeof what, "y[%d][%d] is %.9g, want %.9g +- %.3g", static_cast<int>(i), static_cast<int>(n), got, expect,
                      bound);
        return fail(g->name, p, what);
      }
    }
  }
}

// The weights of all rows as floats: the same bits on every level, each within two roundings of the formula.
void check_to_floats(const Problem& p) {
  std::mt19937_64 rng(seed);
  Matrix matrix(p, rng);
  MinifloatMatrix w;
  w.bits = p.bits, w.codes = matrix.codes.data(), w.row_bytes = matrix.row_bytes, w.scales = matrix.scales.data();
  w.scale_stride = matrix.scale_stride, w.scale_rows = p.scale_rows, w.scale_type = p.scale_type, w.factor = 0.7f;
  w.block = p.block, w.n = p.n, w.k = p.k;
  std::vector<float> reference(static_cast<size_t>(p.k));
  GuardedBytes row(static_cast<size_t>(p.k) * 4);
  const float* got = reinterpret_cast<const float*>(row.data());
  for (int64_t n = 0; n < p.n; ++n) {
    for (int level = 0; const MinifloatGemm* g = minifloat_gemm_at(false, level); ++level) {
      g->to_floats(w, n, level == 0 ? reference.data() : reinterpret_cast<float*>(row.data()));
      for (int64_t k = 0; k < p.k; ++k) {
        const float first = reference[static_cast<size_t>(k)];
        const double want = matrix.weight(p, n, k) * static_cast<double>(0.7f);
        if (level == 0 && !(std::isnan(want) ? std::isnan(first) : std::fabs(first - want) <= 1e-38 + 1.3e-7 * std::fabs(want)))
          return fail(g->name, p, "to_floats is not the formula");
        if (level > 0 && std::memcmp(&got[k], &first, 4) != 0 && !(std::isnan(got[k]) && std::isnan(first)))
          return fail(g->name, p, "to_floats differs from the reference");
      }
    }
  }
}

// One code and one scale each: every value as its format says.
void check_every_code() {
  for (int type : {17, 24, 0}) {
    for (int bits : {4, 8}) {
      for (int scale = 0; scale < (type ? 256 : 1); ++scale) {
        for (int level = 0; const MinifloatGemm* g = minifloat_gemm_at(false, level); ++level) {
          const int64_t n = bits == 4 ? 16 : 256;
          std::vector<uint8_t> codes(static_cast<size_t>(n)), scales(static_cast<size_t>(n), static_cast<uint8_t>(scale));
          for (int64_t i = 0; i < n; ++i) codes[static_cast<size_t>(i)] = static_cast<uint8_t>(i);
          MinifloatMatrix w;
          w.bits = bits, w.scale_type = type, w.n = n, w.k = bits == 4 ? 2 : 1, w.row_bytes = 1, w.scale_stride = 1;
          w.codes = codes.data(), w.scales = scales.data();
          const float x[2] = {1, 0};
          alignas(64) uint8_t prepared[4096];
          g->prepare(bits, false, x, 2, w.k, 0, 1, prepared);
          float y[256];
          g->multiply(w, prepared, 0, 1, 0, n, nullptr, y, n);
          for (int i = 0; i < n; ++i) {
            const double s = type == 17 ? value_of_e4m3(scale) : type == 0 ? 1 : scale == 255 ? NAN : std::ldexp(1, scale - 127);
            const float want = static_cast<float>((bits == 4 ? value_of_e2m1(i) : value_of_e4m3(i)) * s);
            if (want == y[i] || (std::isnan(want) && std::isnan(y[i]))) continue;
            std::printf("FAILED %s: code %d of %d bits with scale byte %d of type %d is %g, want %g\n", g->name, i, bits, scale, type,
                        static_cast<double>(y[i]), static_cast<double>(want));
            ++failures;
          }
        }
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  seed = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 1000;
  check_every_code();
  for (int round = 0; round < rounds; ++round, ++seed) {
    std::mt19937_64 rng(seed * 7919);
    const auto below = [&](uint64_t n) { return static_cast<int64_t>(rng() % n); };
    Problem p;
    p.bits = below(2) ? 4 : 8;
    p.int8 = p.bits == 4 && below(2);
    p.rounds = p.bits == 8 && below(3) == 0;
    p.m = below(2) ? 1 : 1 + below(9);
    p.n = 1 + below(below(3) ? 12 : 80);
    p.k = below(3) == 0 ? 1 + below(90) : below(2) ? 32 * (1 + below(20)) : 1 + below(1200);
    if (p.bits == 4) p.k += p.k % 2;
    const int types[] = {0, 1, 10, 16, 17, 24};
    p.scale_type = types[below(6)];
    const int64_t blocks[] = {16, 16, 32, 32, 64, 128, 2048, p.k, p.k + 3};
    p.block = blocks[below(9)];
    p.scale_rows = below(2) ? 1 : 16 << below(3);
    p.bias = below(2) != 0;
    p.inputs = static_cast<Inputs>(below(3));
    if (p.inputs == Inputs::exact) p.k = std::min<int64_t>(p.k, 512);  // keeps the sums below 2^24
    check(p);
    if (!p.int8) check_to_floats(p);
  }
  std::printf("%d rounds, %d failures; levels:", rounds, failures);
  for (bool int8 : {false, true})
    for (int i = 0; const MinifloatGemm* g = minifloat_gemm_at(int8, i); ++i) std::printf(" [%s %s]", int8 ? "i8" : "f32", g->name);
  std::printf("\n");
  return failures ? 1 : 0;
}

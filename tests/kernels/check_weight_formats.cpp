// SPDX-License-Identifier: Apache-2.0
// Products with weights in every form of a model file against float64, exact and with int8 activations; with --bench, stored
// bytes a second from memory, at one and two threads, beside the read ceiling of the same threads.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "bench_quant_gemm.h"
#include "experts/weight_matrix.h"
#include "experts/weight_staging.h"
#include "guarded_bytes.h"

namespace {

using namespace hotset;
using namespace hotset::experts;

struct Case {
  const char* name;
  Storage storage;
  int bits;
  int64_t block;
  DType dtype;
  ZeroPoints zeros = ZeroPoints::middle;
};

constexpr Case kCases[] = {
    {"int4 block 32", Storage::raw, 4, 32, DType::f32},
    {"int4 block 128", Storage::raw, 4, 128, DType::f16},
    {"int3 block 32", Storage::raw, 3, 32, DType::f32},
    {"int3 block 64", Storage::raw, 3, 64, DType::f16},
    {"int3 block 128", Storage::raw, 3, 128, DType::f16, ZeroPoints::packed},
    {"int2 block 64", Storage::raw, 2, 64, DType::f16},
    {"int8 block 64", Storage::raw, 8, 64, DType::f16},
    {"sm80 int4 block 32", Storage::sm80, 4, 32, DType::f32},
    {"sm80 int4 block 128", Storage::sm80, 4, 128, DType::f16},
    {"sm80 int2 block 64", Storage::sm80, 2, 64, DType::f16},
    {"sm80 int8 block 64", Storage::sm80, 8, 64, DType::f16},
    {"mxfp4 along K", Storage::fp4_by_k, 0, 32, DType::f8e8m0},
    {"mxfp4 along N", Storage::fp4_by_n, 0, 32, DType::f8e8m0},
    {"nvfp4 along K", Storage::fp4_by_k, 0, 16, DType::f8e4m3fn},
    {"nvfp4 along N", Storage::fp4_by_n, 0, 16, DType::f8e4m3fn},
    {"fp8", Storage::fp8, 0, 0, DType::undefined},
    {"fp8 squares of 128", Storage::fp8, 0, 128, DType::f32},
    {"f16", Storage::dense, 0, 0, DType::f16},
    {"bf16", Storage::dense, 0, 0, DType::bf16},
    {"f32", Storage::dense, 0, 0, DType::f32},
};

MatrixForm form_of(const Case& c, int64_t n, int64_t k) {
  MatrixForm f;
  f.storage = c.storage;
  f.zero_points = c.zeros;
  f.bits = c.bits;
  f.dtype = c.dtype;
  f.n = n;
  f.k = k;
  f.block = c.block > 0 ? c.block : k;
  if (c.storage == Storage::fp8 && c.block > 0) f.scale_rows = c.block;
  f.row_bytes = stream_bytes(k, c.bits);
  return f;
}

// Random bytes with scales and floats of usual size.
void fill(const MatrixForm& f, uint8_t* weights, size_t weight_bytes, uint8_t* scales, size_t scale_bytes) {
  uint32_t state = 1;
  const auto next = [&] { return (state = state * 1664525u + 1013904223u) >> 8; };
  for (size_t i = 0; i < weight_bytes; ++i) weights[i] = static_cast<uint8_t>(next());
  const auto floats = [&](DType dtype, uint8_t* at, size_t bytes, float size) {
    const size_t step = static_cast<size_t>(dtype_bits(dtype)) / 8;
    for (size_t i = 0; i + step <= bytes; i += step) {
      const float value = (static_cast<float>(next() % 2001) - 1000) * 1e-3f * size;
      const uint16_t half = dtype == DType::f16 ? f32_to_f16(value) : f32_to_bf16(value);
      if (dtype == DType::f32)
        std::memcpy(at + i, &value, 4);
      else
        std::memcpy(at + i, &half, 2);
    }
  };
  if (f.storage == Storage::dense) floats(f.dtype, weights, weight_bytes, 1);
  if (f.storage == Storage::fp8)
    for (size_t i = 0; i < weight_bytes; ++i) weights[i] &= 0xbf;  // below 2 and never NaN
  if (f.dtype == DType::f8e8m0)
    for (size_t i = 0; i < scale_bytes; ++i) scales[i] = static_cast<uint8_t>(120 + next() % 6);
  else if (f.dtype == DType::f8e4m3fn)
    for (size_t i = 0; i < scale_bytes; ++i) scales[i] = static_cast<uint8_t>(0x20 + next() % 32);
  else if (f.dtype != DType::undefined)
    floats(f.dtype, scales, scale_bytes, 0.1f);
}

// ---- values, written from the descriptions of the formats ---------------------------------------------------------------------------

double e2m1(int code) {
  constexpr double kValues[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return code & 8 ? -kValues[code & 7] : kValues[code & 7];
}

int stream_code(const uint8_t* stream, int bits, int64_t i) {
  int code = 0;
  for (int b = 0; b < bits; ++b) code |= (stream[(i * bits + b) / 8] >> ((i * bits + b) % 8) & 1) << b;
  return code;
}

// Code (n, k) of the SM80 layout.
int sm80_code(const uint8_t* packed, int bits, int64_t n, int64_t k, int64_t k_total) {
  const int64_t e = 32 / bits, c = 16 / bits, v = 64 / e, h = e / 2, period = 4 * e;
  const int64_t r = k % 64, a = r % period / 8, m = r % 8, u = 4 * (r / period) + m / 2, slot = a + h * (m % 2);
  const int64_t word = n / c * c * (k_total / e) + k / 64 * c * v + n % c * v + u;
  return stream_code(packed + 4 * word, bits, slot);
}

double weight_at(const MatrixForm& f, const MatrixBytes& b, int64_t n, int64_t k) {
  if (f.storage == Storage::dense) {
    float value;
    uint16_t half;
    std::memcpy(&value, b.weights + (n * f.k + k) * (f.dtype == DType::f32 ? 4 : 0), 4);
    if (f.dtype == DType::f32) return value;
    std::memcpy(&half, b.weights + (n * f.k + k) * 2, 2);
    return f.dtype == DType::f16 ? f16_to_f32(half) : bf16_to_f32(half);
  }
  const int64_t at = n / f.scale_rows * f.blocks() + k / f.block;
  double scale = 1;
  if (f.dtype == DType::f8e8m0) scale = std::ldexp(1, b.scales[at] - 127);
  if (f.dtype == DType::f8e4m3fn) scale = f8e4m3fn_to_f32(b.scales[at]);
  if (f.dtype == DType::f32) {
    float value;
    std::memcpy(&value, b.scales + 4 * at, 4);
    scale = value;
  }
  if (f.dtype == DType::f16) {
    uint16_t half;
    std::memcpy(&half, b.scales + 2 * at, 2);
    scale = f16_to_f32(half);
  }
  const double global = b.global_scale;
  switch (f.storage) {
    case Storage::fp4_by_k:
      return e2m1(stream_code(b.weights + n * (f.k / 2), 4, k)) * scale * global;
    case Storage::fp4_by_n:
      return e2m1(stream_code(b.weights + k * (f.n / 2), 4, n)) * scale * global;
    case Storage::fp8:
      return f8e4m3fn_to_f32(b.weights[n * f.k + k]) * scale * global;
    default:
      break;
  }
  int zero = 1 << (f.bits - 1);
  if (f.zero_points == ZeroPoints::packed) zero = stream_code(b.zero_points + n * stream_bytes(f.blocks(), f.bits), f.bits, k / f.block);
  const int code =
      f.storage == Storage::sm80 ? sm80_code(b.weights, f.bits, n, k, f.k) : stream_code(b.weights + n * f.row_bytes, f.bits, k);
  return (code - zero) * scale;
}

// RMS of the error over RMS of the product, rows 1, 3, 12 and 40, columns in ranges; guarded memory behind every part.
double check(const Case& c, int64_t n, int64_t k, bool int8) {
  const MatrixForm form = form_of(c, n, k);
  const WeightMatrix w(form, int8);
  GuardedBytes weights(form.weight_bytes()), scales(form.scale_bytes()), zeros(form.zero_point_bytes());
  fill(form, weights.data(), weights.size(), scales.data(), scales.size());
  for (size_t i = 0; i < zeros.size(); ++i) zeros.data()[i] = static_cast<uint8_t>(i * 77 + 5);
  MatrixBytes bytes;
  bytes.weights = weights.data();
  bytes.scales = scales.data();
  bytes.zero_points = zeros.data();
  bytes.global_scale = form.is_fp4() || form.storage == Storage::fp8 ? 0.3f : 1.0f;
  std::vector<double> values(static_cast<size_t>(n * k));
  for (int64_t i = 0; i < n; ++i)
    for (int64_t p = 0; p < k; ++p) values[static_cast<size_t>(i * k + p)] = weight_at(form, bytes, i, p);

  double error = 0, size = 0;
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (int64_t m : {1, 3, 12, 40}) {
    std::vector<float> x(static_cast<size_t>(m * k)), y(static_cast<size_t>(m * n), 1e30f);
    for (float& v : x) v = normal(random);
    GuardedBytes prepared((w.prepared_bytes(m) + 63) / 64 * 64), scratch((w.scratch_bytes(m, n) + 63) / 64 * 64);
    w.prepare(x.data(), k, m, 0, m, prepared.data());
    const int64_t middle = std::min<int64_t>(n, 34), rows = m / 2;
    for (int64_t n0 : {int64_t{0}, middle})
      for (int64_t m0 : {int64_t{0}, rows}) {
        const int64_t n1 = n0 == 0 ? middle : n, m1 = m0 == 0 && rows > 0 ? rows : m;
        if (n0 < n1) w.multiply(bytes, prepared.data(), m, m0, m1, n0, n1, y.data() + m0 * n + n0, n, scratch.data());
      }
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) {
        double want = 0;
        for (int64_t p = 0; p < k; ++p) want += x[static_cast<size_t>(i * k + p)] * values[static_cast<size_t>(j * k + p)];
        const double got = y[static_cast<size_t>(i * n + j)];
        error += (got - want) * (got - want);
        size += want * want;
      }
  }
  return std::sqrt(error / size);
}

// Products of up to 8 rows with codes as the file has them against those with raw rows of the same codes: the same bits. One row has
// numbers beyond fixed point, one is not finite.
bool check_packed(const Case& c, int64_t n, int64_t k, bool int8) {
  const MatrixForm form = form_of(c, n, k);
  MatrixForm raw_form = form;
  raw_form.storage = Storage::raw;
  raw_form.bits = c.bits == 3 ? 4 : c.bits;
  raw_form.row_bytes = stream_bytes(k, raw_form.bits);
  const WeightMatrix packed(form, int8), raw(raw_form, int8);
  GuardedBytes weights(form.weight_bytes()), scales(form.scale_bytes()), raw_weights(raw_form.weight_bytes());
  fill(form, weights.data(), weights.size(), scales.data(), scales.size());
  MatrixBytes bytes, raw_bytes;
  bytes.weights = weights.data();
  bytes.scales = raw_bytes.scales = scales.data();
  raw_bytes.weights = raw_weights.data();
  std::memset(raw_weights.data(), 0, raw_weights.size());
  for (int64_t i = 0; i < n; ++i)
    for (int64_t p = 0; p < k; ++p) {
      const int value = c.storage == Storage::sm80 ? sm80_code(weights.data(), c.bits, i, p, k)
                                                   : stream_code(weights.data() + i * form.row_bytes, 3, p) + 4;
      raw_weights.data()[i * raw_form.row_bytes + p * raw_form.bits / 8] |= static_cast<uint8_t>(value << (p * raw_form.bits % 8));
    }
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (int64_t m = 1; m <= 8; ++m) {
    std::vector<float> x(static_cast<size_t>(m * k));
    for (float& v : x) v = normal(random);
    if (m > 2) x[static_cast<size_t>(2 * k + k / 2)] = 1e25f;
    if (m > 5) x[static_cast<size_t>(5 * k + k / 3)] = INFINITY;
    std::vector<float> y[2];
    for (int which = 0; which < 2; ++which) {
      const WeightMatrix& w = which ? raw : packed;
      GuardedBytes prepared((w.prepared_bytes(m) + 63) / 64 * 64), scratch((w.scratch_bytes(m, n) + 63) / 64 * 64);
      w.prepare(x.data(), k, m, 0, m, prepared.data());
      y[which].assign(static_cast<size_t>(m * n), 1e30f);
      for (int64_t n0 : {int64_t{0}, int64_t{6}, int64_t{20}}) {  // 6: within a tile
        const int64_t n1 = n0 == 0 ? 6 : n0 == 6 ? 20 : n;
        w.multiply(which ? raw_bytes : bytes, prepared.data(), m, 0, m, n0, n1, y[which].data() + n0, n, scratch.data());
      }
    }
    for (size_t i = 0; i < y[0].size(); ++i) {
      if (std::isnan(y[0][i]) && std::isnan(y[1][i])) continue;
      if (y[0][i] != y[1][i]) return false;
      if ((i / static_cast<size_t>(n) == 5) == std::isfinite(y[0][i])) return false;
    }
  }
  return true;
}

// ---- speed --------------------------------------------------------------------------------------------------------------------------

struct Aligned {
  explicit Aligned(size_t n) : bytes(n + 64) {}
  void* data() { return bytes.data() + (64 - reinterpret_cast<uintptr_t>(bytes.data()) % 64) % 64; }
  std::vector<uint8_t> bytes;
};

// Reads all bytes on n threads, as bench::read_all does on one.
double read_gbs(const std::vector<uint8_t>& memory, int threads) {
#if defined(__x86_64__)
  static volatile uint64_t sink;
  (void)sink;
  double best = 1e30;
  const size_t share = memory.size() / static_cast<size_t>(threads) / 128 * 128;
  for (int run = 0; run < 3; ++run)
    best = std::min(best, bench::seconds_on_threads(
                              threads, [&](int t) { sink = bench::read_all(memory.data() + static_cast<size_t>(t) * share, share); }));
  return static_cast<double>(share) * threads / best / 1e9;
#else
  (void)memory, (void)threads;
  return 0;
#endif
}

void bench_case(const Case& c, std::vector<uint8_t>& memory, int64_t n, int64_t k, int64_t m, bool int8, int threads, bool hot,
                const char* filter) {
  const MatrixForm form = form_of(c, n, k);
  const WeightMatrix w(form, int8);
  char name[160];
  std::snprintf(name, sizeof name, "%-20s %-4s %-10s K%-4d N%-4d M%-3d t%d %s", c.name, int8 ? "int8" : "f32", w.isa(), static_cast<int>(k),
                static_cast<int>(n), static_cast<int>(m), threads, hot ? "hot " : "cold");
  if (!std::strstr(name, filter)) return;
  const size_t matrix = form.weight_bytes() + form.scale_bytes() + form.zero_point_bytes(), step = (matrix + 63) / 64 * 64;
  const size_t copies = hot ? 1 : std::min(memory.size() / step, m == 1 ? size_t{1000} : size_t{4});
  const size_t repeats = hot ? 100 : 1;
  for (size_t i = 0; i < copies; ++i) {
    if (i == 0)
      fill(form, memory.data(), form.weight_bytes(), memory.data() + form.weight_bytes(), form.scale_bytes());
    else
      std::memcpy(memory.data() + i * step, memory.data(), step);
  }
  std::vector<float> x(static_cast<size_t>(m * k), 0.5f), y(static_cast<size_t>(m * n));
  Aligned prepared(w.prepared_bytes(m));
  std::vector<std::unique_ptr<Aligned>> scratch;
  for (int t = 0; t < threads; ++t) scratch.push_back(std::make_unique<Aligned>(w.scratch_bytes(m, 2 * w.columns_of_job(m))));
  w.prepare(x.data(), k, m, 0, m, prepared.data());
  const int64_t job = 2 * w.columns_of_job(m);  // as FC1 of a layer of experts takes them
  const int64_t share = ((n + threads - 1) / threads + 63) / 64 * 64;
  const double ceiling = read_gbs(memory, threads);
  double best = 1e30;
  for (int run = 0; run < 5; ++run)
    best = std::min(best, bench::seconds_on_threads(threads, [&](int t) {
                      for (size_t i = 0; i < copies * repeats; ++i) {
                        MatrixBytes bytes;
                        bytes.weights = memory.data() + i % copies * step;
                        bytes.scales = bytes.weights + form.weight_bytes();
                        bytes.zero_points = bytes.scales + form.scale_bytes();
                        const int64_t end = std::min(n, (t + 1) * share);
                        for (int64_t n0 = t * share; n0 < end; n0 += job)
                          w.multiply(bytes, prepared.data(), m, 0, m, n0, std::min(end, n0 + job), y.data() + n0, n,
                                     scratch[static_cast<size_t>(t)]->data());
                      }
                    }));
  const double each = best / static_cast<double>(copies * repeats), gbs = static_cast<double>(matrix) / each / 1e9;
  std::printf("%s  %9.1f us  %5.1f GB/s (%3.0f %% of %.1f read)  %6.1f GMAC/s\n", name, each * 1e6, gbs, 100 * gbs / ceiling, ceiling,
              static_cast<double>(m * n * k) / each / 1e9);
  std::fflush(stdout);
}

int bench_all(const char* filter) {
  std::vector<uint8_t> memory(size_t{256} << 20, 1);
  for (const Case& c : kCases)
    for (bool int8 : {false, true})
      for (int64_t m : {1, 4, 64})
        for (int threads : {1, 2})
          if (m == 1 || threads == 1) bench_case(c, memory, 2880, 2880, m, int8, threads, false, filter);
  for (const Case& c : kCases)
    for (bool int8 : {false, true}) bench_case(c, memory, 256, 2880, 1, int8, 1, true, filter);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "--bench") == 0) return bench_all(argc > 2 ? argv[2] : "");
  int failures = 0;
  for (const Case& c : kCases) {
    const bool odd = c.storage == Storage::fp8 || c.storage == Storage::raw;
    for (bool int8 : {false, true}) {
      for (int64_t k : {192, 2880, 100}) {
        if (k == 100 && !odd) continue;
        const int64_t n = k == 100 ? 37 : 144, depth = c.storage == Storage::sm80 && k % 64 ? 2048 : k;
        const bool is_exact = !int8 || c.storage == Storage::dense;
        const double error = check(c, n, depth, int8), bound = is_exact ? 1e-6 : 1.5e-2;
        if (argc > 1) std::printf("%-20s %-4s K %-5d error %.2e\n", c.name, int8 ? "int8" : "f32", static_cast<int>(depth), error);
        const bool has_raw = (c.storage == Storage::sm80 || c.bits == 3) && c.zeros == ZeroPoints::middle;
        if (has_raw && !check_packed(c, n, depth, int8)) {
          std::printf("FAILED %s, int8 %d, K %d: not the bits of raw rows\n", c.name, int8, static_cast<int>(depth));
          ++failures;
        }
        if (error <= bound && (is_exact || error > 1e-4)) continue;
        std::printf("FAILED %s, int8 %d, K %d: error %g, bound %g\n", c.name, int8, static_cast<int>(depth), error, bound);
        ++failures;
      }
    }
  }
  std::printf("%d failures\n", failures);
  return failures ? 1 : 0;
}

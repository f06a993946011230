// SPDX-License-Identifier: Apache-2.0
// Products with weights packed along N against the reference for weights along K on the transposed bytes: the same numbers where no sum
// rounds, NaN scales in their columns, any ranges of rows and columns.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "cpu_avx/minifloat_columns.h"
#include "cpu_avx/weight_rows.h"
#include "guarded_bytes.h"

namespace {

using namespace hotset::cpu;

int failures = 0;

// exact: integers and powers of two.
void check(const MinifloatColumns& g, bool int8, bool exact, int64_t m, int64_t n, int64_t k, int64_t block, bool is_e8m0,
           std::mt19937& random) {
  const auto fail = [&](const char* what) {
    std::printf("FAILED %s: %s; int8 %d exact %d m %d n %d k %d block %d e8m0 %d\n", g.name, what, int8, exact, static_cast<int>(m),
                static_cast<int>(n), static_cast<int>(k), static_cast<int>(block), is_e8m0);
    if (++failures > 20) std::exit(1);
  };
  const int64_t row_bytes = n / 2 + static_cast<int64_t>(random() % 3), blocks = k / block;
  GuardedBytes codes(static_cast<size_t>((k - 1) * row_bytes + n / 2)), scales(static_cast<size_t>(n * blocks));
  for (size_t i = 0; i < codes.size(); ++i) codes.data()[i] = static_cast<uint8_t>(random());
  for (size_t i = 0; i < scales.size(); ++i) {
    const uint8_t step = static_cast<uint8_t>(random() % 4);
    scales.data()[i] = static_cast<uint8_t>(is_e8m0 ? 125 + step : exact ? 0x28 + 8 * step : 0x20 + random() % 40);
  }
  if (!exact) scales.data()[random() % scales.size()] = is_e8m0 ? 255 : 0x7f;
  std::vector<float> x(static_cast<size_t>(m * k)), bias(static_cast<size_t>(n));
  std::uniform_real_distribution<float> real(-1, 1);
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = !exact                                 ? real(random)
           : i % static_cast<size_t>(k) % 32 == 0 ? 127.0f
                                                  : static_cast<float>(static_cast<int>(random() % 255) - 127);
  for (float& b : bias) b = static_cast<float>(static_cast<int>(random() % 64));

  MinifloatMatrix w;
  w.codes = codes.data();
  w.row_bytes = row_bytes;
  w.scales = scales.data();
  w.scale_stride = blocks;
  w.scale_type = is_e8m0 ? 24 : 17;
  w.factor = 0.5f;
  w.block = block;
  w.n = n;
  w.k = k;

  // The reference: rows along K.
  std::vector<uint8_t> along_k(static_cast<size_t>(n * k / 2));
  weight_rows_at(0)->transpose_nibbles(codes.data(), row_bytes, n, k, along_k.data(), k / 2);
  MinifloatMatrix plain = w;
  plain.codes = along_k.data();
  plain.row_bytes = k / 2;
  const MinifloatGemm& reference = *minifloat_gemm_at(int8, 0);
  GuardedBytes rows(reference.prepared_bytes(4, m, k));
  reference.prepare(4, false, x.data(), k, k, 0, m, rows.data());
  std::vector<float> want(static_cast<size_t>(m * n));
  reference.multiply(plain, rows.data(), 0, m, 0, n, bias.data(), want.data(), n);

  GuardedBytes prepared(g.prepared_bytes(m, k)), scratch(g.scratch_bytes(m, n));
  if (prepared.size() % 64 != 0 || prepared.size() != static_cast<size_t>(m) * g.prepared_bytes(1, k)) fail("prepared_bytes");
  std::memset(scratch.data(), 0xff, scratch.size());
  g.prepare(x.data(), k, k, 0, m, prepared.data());
  const int64_t ldy = n + static_cast<int64_t>(random() % 4);
  const float mark = -12345.5f;
  std::vector<float> y(static_cast<size_t>(m * ldy), mark);
  const int64_t middle = static_cast<int64_t>(random() % static_cast<uint32_t>(n / 2 + 1)) * 2,
                row = static_cast<int64_t>(random() % static_cast<uint32_t>(m + 1));
  for (int part = 0; part < 4; ++part)
    g.multiply(w, prepared.data(), part & 1 ? row : 0, part & 1 ? m : row, part & 2 ? middle : 0, part & 2 ? n : middle, bias.data(),
               y.data(), ldy, scratch.data());
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = n; j < ldy; ++j)
      if (y[static_cast<size_t>(i * ldy + j)] != mark) return fail("wrote outside the range");
    double size = 0;
    for (int64_t j = 0; j < n; ++j)
      if (std::isfinite(want[static_cast<size_t>(i * n + j)]))
        size = std::max(size, std::fabs(static_cast<double>(want[static_cast<size_t>(i * n + j)])));
    for (int64_t j = 0; j < n; ++j) {
      const float got = y[static_cast<size_t>(i * ldy + j)], expect = want[static_cast<size_t>(i * n + j)];
      const bool good = std::isnan(expect) ? std::isnan(got) : exact ? got == expect : std::fabs(got - expect) <= 1e-5 * size;
      if (!good) return fail("another number");
    }
  }
}

}  // namespace

int main() {
  std::mt19937 random(9);
  int levels = 0;
  for (bool int8 : {false, true}) {
    const MinifloatColumns* g = minifloat_columns(int8);
    if (!g) continue;
    ++levels;
    for (int round = 0; round < 200; ++round) {
      const bool is_e8m0 = random() % 2, exact = random() % 2;
      const int64_t block = is_e8m0 ? 32 : 16, m = 1 + random() % 5, n = 2 * (1 + random() % (random() % 4 ? 100 : 400));
      const int64_t k = block * (1 + random() % (random() % 8 ? 12 : exact ? 16 : 90));
      check(*g, int8, exact, m, n, k, block, is_e8m0, random);
    }
  }
  std::printf("%d kernels, %d failures\n", levels, failures);
  return failures ? 1 : 0;
}

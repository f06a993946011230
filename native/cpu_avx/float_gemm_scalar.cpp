// SPDX-License-Identifier: Apache-2.0
// Reference float products: any strides, plain loops that a compiler can vectorise over eight lanes.
#include <cstring>

#include "base/dtype.h"
#include "cpu_avx/float_gemm_isa.h"

namespace hotset::cpu {
namespace {

constexpr int kChunk = 64;

float get(const float* p) {
  float f;
  std::memcpy(&f, p, sizeof f);
  return f;
}

float element(const FloatMatrix& w, int64_t i) {
  if (w.dtype == 1) {
    float f;
    std::memcpy(&f, static_cast<const char*>(w.data) + 4 * i, 4);
    return f;
  }
  uint16_t h;
  std::memcpy(&h, static_cast<const char*>(w.data) + 2 * i, 2);
  return w.dtype == 10 ? f16_to_f32(h) : bf16_to_f32(h);
}

// Outputs one row of W at a time: chunks of it are widened once and used by every row of x.
void by_rows_of_w(const FloatMatrix& w, const float* x, int64_t ldx, int64_t m0, int64_t m1, int64_t n0, int64_t n1,
                  const float* bias, float* y, int64_t ldy) {
  for (int64_t n = n0; n < n1; ++n) {
    for (int64_t i = m0; i < m1; ++i) {
      float lanes[8] = {};
      const float* xi = x + i * ldx;
      int64_t k = 0;
      for (; k + 8 <= w.k; k += 8)
        for (int j = 0; j < 8; ++j) lanes[j] += get(xi + k + j) * element(w, n * w.stride_n + (k + j) * w.stride_k);
      for (; k < w.k; ++k) lanes[0] += get(xi + k) * element(w, n * w.stride_n + k * w.stride_k);
      const float sum = ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
      y[i * ldy + n] = sum + (bias ? get(bias + n) : 0.0f);
    }
  }
}

// Chunks of columns whose sums stay close while k runs.
void by_columns(const FloatMatrix& w, const float* x, int64_t ldx, int64_t m0, int64_t m1, int64_t n0, int64_t n1,
                const float* bias, float* y, int64_t ldy) {
  for (int64_t n = n0; n < n1; n += kChunk) {
    const int width = static_cast<int>(n1 - n < kChunk ? n1 - n : kChunk);
    for (int64_t i = m0; i < m1; ++i) {
      float sum[kChunk] = {};
      for (int64_t k = 0; k < w.k; ++k) {
        const float xk = get(x + i * ldx + k);
        const int64_t row = k * w.stride_k + n * w.stride_n;
        for (int j = 0; j < width; ++j) sum[j] += xk * element(w, row + j * w.stride_n);
      }
      for (int j = 0; j < width; ++j) y[i * ldy + n + j] = sum[j] + (bias ? get(bias + n + j) : 0.0f);
    }
  }
}

size_t scratch_bytes(int64_t, int64_t, int64_t) { return 0; }

void multiply(const FloatMatrix& w, const float* x, int64_t ldx, int64_t m0, int64_t m1, int64_t n0, int64_t n1, const float* bias,
              float* y, int64_t ldy, void*) {
  (w.stride_n == 1 && w.stride_k != 1 ? by_columns : by_rows_of_w)(w, x, ldx, m0, m1, n0, n1, bias, y, ldy);
}

}  // namespace

extern const FloatGemm kFloatGemmScalar = {"scalar", scratch_bytes, multiply};

}  // namespace hotset::cpu

// SPDX-License-Identifier: Apache-2.0
// Minifloat products without vector instructions: the reference of all other levels.
#include <cmath>
#include <cstring>

#include "base/dtype.h"
#include "cpu_avx/minifloat_gemm_isa.h"

namespace hotset::cpu {
namespace {

constexpr int kGroup = 32;  // activations that share one int8 scale
constexpr float kE2m1[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
constexpr int8_t kDoubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t round_up(int64_t a, int64_t b) { return (a + b - 1) / b * b; }

float scale_at(const MinifloatMatrix& w, int64_t n, int64_t j) {
  const int64_t i = n / w.scale_rows * w.scale_stride + j;
  const uint8_t* bytes = static_cast<const uint8_t*>(w.scales);
  uint16_t half;
  float value;
  switch (w.scale_type) {
    case 0:
      return 1;
    case 1:
      std::memcpy(&value, bytes + 4 * i, 4);
      return value;
    case 17:
      return f8e4m3fn_to_f32(bytes[i]);
    case 24:
      return f8e8m0_to_f32(bytes[i]);
    default:
      std::memcpy(&half, bytes + 2 * i, 2);
      return w.scale_type == 10 ? f16_to_f32(half) : bf16_to_f32(half);
  }
}

int nibble_at(const uint8_t* row, int64_t k) { return row[k / 2] >> (k % 2 * 4) & 15; }
float value_at(int bits, const uint8_t* row, int64_t k) { return bits == 4 ? kE2m1[nibble_at(row, k)] : f8e4m3fn_to_f32(row[k]); }

// ---- exact: prepared rows are a copy ------------------------------------------------------------------------------------------------

int64_t f32_row_bytes(int64_t k) { return round_up(4 * k, 64); }
size_t f32_prepared_bytes(int, int64_t m, int64_t k) { return static_cast<size_t>(m * f32_row_bytes(k)); }

void f32_prepare(int, bool rounds, const float* x, int64_t ldx, int64_t k, int64_t m0, int64_t m1, void* prepared) {
  for (int64_t i = m0; i < m1 && k > 0; ++i) {
    float* row = reinterpret_cast<float*>(static_cast<char*>(prepared) + i * f32_row_bytes(k));
    if (rounds)
      round_to_int8(x + i * ldx, k, row);
    else
      std::memcpy(row, x + i * ldx, static_cast<size_t>(k) * 4);
  }
}

void f32_multiply(const MinifloatMatrix& w, const void* prepared, int64_t m0, int64_t m1, int64_t n0, int64_t n1, const float* bias,
                  float* y, int64_t ldy) {
  for (int64_t i = m0; i < m1; ++i) {
    const float* x = reinterpret_cast<const float*>(static_cast<const char*>(prepared) + i * f32_row_bytes(w.k));
    for (int64_t n = n0; n < n1; ++n) {
      float sum = 0;
      for (int64_t k = 0, j = 0; k < w.k; k += w.block, ++j) {
        float block_sum = 0;
        for (int64_t p = k; p < smaller(w.k, k + w.block); ++p) block_sum += x[p] * value_at(w.bits, w.codes + n * w.row_bytes, p);
        sum += block_sum * scale_at(w, n, j);
      }
      y[i * ldy + n] = sum * w.factor + (bias ? bias[n] : 0.0f);
    }
  }
}

void to_floats(const MinifloatMatrix& w, int64_t n, float* out) {
  for (int64_t k = 0; k < w.k; ++k) out[k] = value_at(w.bits, w.codes + n * w.row_bytes, k) * scale_at(w, n, k / w.block) * w.factor;
}

// ---- int8: codes q of a row, then d of each group -----------------------------------------------------------------------------------

int64_t groups_of(int64_t k) { return (k + kGroup - 1) / kGroup; }
int64_t i8_row_bytes(int64_t k) { return round_up(groups_of(k) * (kGroup + 4), 64); }
size_t i8_prepared_bytes(int, int64_t m, int64_t k) { return static_cast<size_t>(m * i8_row_bytes(k)); }

void i8_prepare(int, bool, const float* x, int64_t ldx, int64_t k, int64_t m0, int64_t m1, void* prepared) {
  for (int64_t i = m0; i < m1; ++i) {
    int8_t* q = static_cast<int8_t*>(prepared) + i * i8_row_bytes(k);
    float* d = reinterpret_cast<float*>(q + groups_of(k) * kGroup);
    for (int64_t g = 0; g < groups_of(k); ++g) {
      const float* p = x + i * ldx + g * kGroup;
      const int64_t count = smaller(kGroup, k - g * kGroup);
      float largest = 0;
      bool is_number = true;
      for (int64_t j = 0; j < count; ++j) {
        largest = std::fabs(p[j]) > largest ? std::fabs(p[j]) : largest;
        is_number = is_number && std::isfinite(p[j]);
      }
      const float inverse = largest < 0x1p-100f || !is_number ? 0.0f : 127.0f / largest;
      d[g] = is_number ? largest / 127.0f : NAN;
      for (int64_t j = 0; j < kGroup; ++j)
        q[g * kGroup + j] = j < count && is_number ? static_cast<int8_t>(std::nearbyintf(p[j] * inverse)) : int8_t{0};
    }
  }
}

void i8_multiply(const MinifloatMatrix& w, const void* prepared, int64_t m0, int64_t m1, int64_t n0, int64_t n1, const float* bias,
                 float* y, int64_t ldy) {
  for (int64_t i = m0; i < m1; ++i) {
    const int8_t* q = static_cast<const int8_t*>(prepared) + i * i8_row_bytes(w.k);
    const float* d = reinterpret_cast<const float*>(q + groups_of(w.k) * kGroup);
    const int64_t run = smaller(w.block, kGroup);
    for (int64_t n = n0; n < n1; ++n) {
      float sum = 0;
      for (int64_t k = 0; k < w.k; k += run) {
        int dot = 0;
        for (int64_t p = k; p < smaller(w.k, k + run); ++p) dot += kDoubled[nibble_at(w.codes + n * w.row_bytes, p)] * q[p];
        sum += static_cast<float>(dot) * (scale_at(w, n, k / w.block) * d[k / kGroup]);
      }
      y[i * ldy + n] = sum * 0.5f * w.factor + (bias ? bias[n] : 0.0f);
    }
  }
}

}  // namespace

const MinifloatGemm kMinifloatF32Scalar = {"scalar", f32_prepared_bytes, f32_prepare, f32_multiply, to_floats};
const MinifloatGemm kMinifloatI8Scalar = {"scalar", i8_prepared_bytes, i8_prepare, i8_multiply, nullptr};

}  // namespace hotset::cpu

// SPDX-License-Identifier: Apache-2.0
// Quantised GEMM without vector instructions: the reference of all other tiers, for every block size.
#include <cmath>
#include <cstring>

#include "cpu_avx/quant_gemm_isa.h"

namespace hotset::cpu {
namespace {

constexpr int64_t kGroup = 32;  // activations that share one int8 scale

float float_of_half(uint16_t h) {
  const uint32_t sign = uint32_t{h & 0x8000u} << 16, exponent = (h >> 10) & 31u, mantissa = h & 0x3ffu;
  uint32_t bits;
  if (exponent == 31) {
    bits = sign | 0x7f800000u | (mantissa << 13);
  } else if (exponent != 0) {
    bits = sign | ((exponent + 112) << 23) | (mantissa << 13);
  } else {
    const float value = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -value : value;
  }
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

float scale_at(const QuantMatrix& w, int64_t n, int64_t j) {
  const int64_t i = n * w.scale_stride + j;
  if (w.scale_type == 1) {
    float value;
    std::memcpy(&value, static_cast<const char*>(w.scales) + 4 * i, 4);
    return value;
  }
  uint16_t half;
  std::memcpy(&half, static_cast<const char*>(w.scales) + 2 * i, 2);
  if (w.scale_type == 10) return float_of_half(half);
  const uint32_t bits = uint32_t{half} << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

int code_at(const uint8_t* stream, int bits, int64_t i) {
  return (stream[i * bits / 8] >> (i * bits % 8)) & ((1 << bits) - 1);
}

int zero_at(const QuantMatrix& w, int64_t n, int64_t j) {
  if (!w.zero_points) return 1 << (w.bits - 1);
  if (w.zero_stride == 0) return code_at(w.zero_points, w.bits, n);
  return code_at(w.zero_points + n * w.zero_stride, w.bits, j);
}

int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

size_t round_up_64(size_t bytes) { return (bytes + 63) & ~size_t{63}; }

size_t no_scratch(int64_t, int64_t, int64_t) { return 0; }

// ---- exact activations: prepared rows are a plain copy ----------------------------------------------------------------------------

size_t f32_prepared_bytes(int64_t m, int64_t k) { return round_up_64(static_cast<size_t>(m * k) * sizeof(float)); }

void f32_prepare(const float* x, int64_t ldx, int64_t, int64_t k, int64_t m0, int64_t m1, void* prepared) {
  float* rows = static_cast<float*>(prepared);
  for (int64_t i = m0; i < m1 && k > 0; ++i) std::memcpy(rows + i * k, x + i * ldx, static_cast<size_t>(k) * sizeof(float));
}

void f32_multiply(const QuantMatrix& w, const void* prepared, int64_t, int64_t m0, int64_t m1, int64_t n0, int64_t n1,
                  const float* bias, float* y, int64_t ldy, void*) {
  for (int64_t i = m0; i < m1; ++i) {
    const float* x = static_cast<const float*>(prepared) + i * w.k;
    for (int64_t n = n0; n < n1; ++n) {
      const uint8_t* codes = w.codes + n * w.row_bytes;
      float sum = 0;
      for (int64_t k = 0, j = 0; k < w.k; k += w.block, ++j) {
        const int zero = zero_at(w, n, j);
        const int64_t end = smaller(w.k - k, w.block) + k;
        float block_sum = 0;
        for (int64_t p = k; p < end; ++p) block_sum += x[p] * static_cast<float>(code_at(codes, w.bits, p) - zero);
        sum += block_sum * scale_at(w, n, j);
      }
      y[i * ldy + n] = sum + (bias ? bias[n] : 0.0f);
    }
  }
}

// ---- int8 activations: a row is its group scales, then its codes ------------------------------------------------------------------

int64_t groups_of(int64_t k) { return (k + kGroup - 1) / kGroup; }

size_t i8_row_bytes(int64_t k) { return static_cast<size_t>(groups_of(k)) * (sizeof(float) + kGroup); }

size_t i8_prepared_bytes(int64_t m, int64_t k) { return round_up_64(static_cast<size_t>(m) * i8_row_bytes(k)); }

void i8_prepare(const float* x, int64_t ldx, int64_t, int64_t k, int64_t m0, int64_t m1, void* prepared) {
  for (int64_t i = m0; i < m1; ++i) {
    char* row = static_cast<char*>(prepared) + static_cast<size_t>(i) * i8_row_bytes(k);
    float* d = reinterpret_cast<float*>(row);
    int8_t* q = reinterpret_cast<int8_t*>(d + groups_of(k));
    for (int64_t g = 0; g * kGroup < k; ++g) {
      const float* group = x + i * ldx + g * kGroup;
      const int64_t count = smaller(kGroup, k - g * kGroup);
      uint32_t largest_bits = 0;  // bits of |x| order like the numbers, and NaN comes last
      for (int64_t p = 0; p < count; ++p) {
        uint32_t bits;
        std::memcpy(&bits, group + p, 4);
        bits &= 0x7fffffffu;
        if (bits > largest_bits) largest_bits = bits;
      }
      float largest;
      std::memcpy(&largest, &largest_bits, 4);
      // Below 2^-100 the reciprocal could overflow and the products would vanish anyway.
      const float inverse = largest < 0x1p-100f ? 0.0f : 127.0f / largest;
      d[g] = largest / 127.0f;
      for (int64_t p = 0; p < kGroup; ++p) {
        const float scaled = p < count ? group[p] * inverse : 0.0f;
        q[g * kGroup + p] = static_cast<int8_t>(scaled >= -127.0f && scaled <= 127.0f ? std::nearbyint(scaled)
                                                : scaled > 127.0f                     ? 127
                                                : scaled < -127.0f                    ? -127
                                                                                      : 0);
      }
    }
  }
}

void i8_multiply(const QuantMatrix& w, const void* prepared, int64_t, int64_t m0, int64_t m1, int64_t n0, int64_t n1,
                 const float* bias, float* y, int64_t ldy, void*) {
  for (int64_t i = m0; i < m1; ++i) {
    const char* row = static_cast<const char*>(prepared) + static_cast<size_t>(i) * i8_row_bytes(w.k);
    const float* d = reinterpret_cast<const float*>(row);
    const int8_t* q = reinterpret_cast<const int8_t*>(d + groups_of(w.k));
    for (int64_t n = n0; n < n1; ++n) {
      const uint8_t* codes = w.codes + n * w.row_bytes;
      float sum = 0;
      // A run ends where a group of activations or a block of weights ends.
      for (int64_t k = 0; k < w.k;) {
        const int64_t g = k / kGroup, j = k / w.block;
        const int64_t end = smaller(w.k, smaller((g + 1) * kGroup, j + 1 < (w.k + w.block - 1) / w.block ? (j + 1) * w.block : w.k));
        const int zero = zero_at(w, n, j);
        int32_t run = 0;
        for (; k < end; ++k) run += q[k] * (code_at(codes, w.bits, k) - zero);
        sum += static_cast<float>(run) * d[g] * scale_at(w, n, j);
      }
      y[i * ldy + n] = sum + (bias ? bias[n] : 0.0f);
    }
  }
}

}  // namespace

const QuantGemm kQuantF32Scalar = {f32_prepared_bytes, f32_prepare, no_scratch, f32_multiply};
const QuantGemm kQuantI8Scalar = {i8_prepared_bytes, i8_prepare, no_scratch, i8_multiply};

}  // namespace hotset::cpu

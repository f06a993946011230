// SPDX-License-Identifier: Apache-2.0
// Minifloat products for NEON without dot products.
#include <arm_neon.h>

// At most 12 * 127 a product: two of them fit 16 bits.
#define HOTSET_DOT8(sum, a, b) \
  vaddq_s32(sum, vpaddq_s32(vpaddlq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b))), vpaddlq_s16(vmull_high_s8(a, b))))
#include "cpu_avx/minifloat_gemm_neon_body.h"

namespace hotset::cpu {
namespace {

void f32_multiply(const MinifloatMatrix& w, const void* prepared, int64_t m0, int64_t m1, int64_t n0, int64_t n1, const float* bias,
                  float* y, int64_t ldy) {
  if (w.bits == 4)
    multiply_as<4, false>(w, prepared, m0, m1, n0, n1, bias, y, ldy);
  else
    multiply_as<8, false>(w, prepared, m0, m1, n0, n1, bias, y, ldy);
}

// A run of 16 weights a step, in order.
void to_floats(const MinifloatMatrix& w, int64_t n, float* out) {
  const int shift = shift_of(w);
  const uint8_t* const codes = w.codes + n * w.row_bytes;
  const int64_t bytes_in_row = (w.k * w.bits + 7) / 8;
  for (int64_t k0 = 0; k0 < w.k; k0 += kStretch) {
    float runs[kRuns];
    run_scales(w, n, k0, shift, runs);
    for (int64_t k = k0; k < smaller(w.k, k0 + kStretch); k += 16) {
      const int64_t at = k * w.bits / 8;
      const uint8x16_t bytes = load_codes(codes + at, smaller(bytes_in_row - at, 2 * w.bits));
      float32x4_t value[4];
      if (w.bits == 4) {
        const uint8x16_t even = vandq_u8(bytes, vdupq_n_u8(15)), odd = vshrq_n_u8(bytes, 4);
        const uint8x16_t high = half_bytes_of_e2m1(vzip1q_u8(even, odd));
        const uint16x8_t halves[2] = {vshll_n_u8(vget_low_u8(high), 8), vshll_n_u8(vget_high_u8(high), 8)};
        for (int i = 0; i < 2; ++i) value[2 * i] = low_floats(halves[i]), value[2 * i + 1] = high_floats(halves[i]);
      } else {
        for (int i = 0; i < 2; ++i) {
          const uint8x8_t eight = i ? vget_high_u8(bytes) : vget_low_u8(bytes);
          const uint16x8_t halves = halves_of_e4m3(eight);
          uint32x4_t nan[2];
          nan_masks(eight, nan);
          value[2 * i] = or_bits(vmulq_n_f32(low_floats(halves), 256.0f), nan[0]);
          value[2 * i + 1] = or_bits(vmulq_n_f32(high_floats(halves), 256.0f), nan[1]);
        }
      }
      float sixteen[16];
      for (int i = 0; i < 4; ++i) vst1q_f32(sixteen + 4 * i, vmulq_n_f32(vmulq_n_f32(value[i], runs[(k - k0) / 16]), w.factor));
      memcpy(out + k, sixteen, (size_t)smaller(16, w.k - k) * sizeof(float));
    }
  }
}

}  // namespace

const MinifloatGemm kMinifloatF32Neon = {"neon", f32_prepared_bytes, f32_prepare, f32_multiply, to_floats};
const MinifloatGemm kMinifloatI8Neon = {"neon", i8_prepared_bytes, i8_prepare, multiply_as<4, true>, nullptr};

}  // namespace hotset::cpu

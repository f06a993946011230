// SPDX-License-Identifier: Apache-2.0
// Attention with NEON: register tile of 6 rows x 16 columns, 24 of 32 registers.
#include <arm_neon.h>
#include <string.h>

#include "cpu_avx/attention.h"

namespace hotset::cpu {
namespace {

using V = float32x4_t;
constexpr int kLanes = 4, kMr = 6, kNv = 4;
constexpr float kExpLowest = -87.33f;  // below, exp is taken as 0: 2^n must stay normal

inline V vload(const float* p) { return vld1q_f32(p); }
inline void vstore(float* p, V v) { vst1q_f32(p, v); }
inline V vset(float x) { return vdupq_n_f32(x); }
inline V vadd(V a, V b) { return vaddq_f32(a, b); }
inline V vsub(V a, V b) { return vsubq_f32(a, b); }
inline V vmul(V a, V b) { return vmulq_f32(a, b); }
inline V vdiv(V a, V b) { return vdivq_f32(a, b); }
inline V vfma(V a, V b, V c) { return vfmaq_f32(c, a, b); }
inline V vmax(V a, V b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }  // b if either is NaN, as vmin
inline V vmin(V a, V b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
inline V vround(V a) { return vrndnq_f32(a); }
inline V vldexp(V p, V n, V x) {
  const V power = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127)), 23));
  const uint32x4_t zero = vcltq_f32(x, vdupq_n_f32(kExpLowest));
  return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(vmulq_f32(p, power)), zero));
}
inline float vfirst(V v) { return vgetq_lane_f32(v, 0); }
inline float vsum(V v) { return vaddvq_f32(v); }
inline float vmax_lanes(V v) {
  float lane[4], most;
  vst1q_f32(lane, v);
  most = lane[0];
  for (int i = 1; i < 4; ++i) most = lane[i] > most ? lane[i] : most;
  return most;
}
// Lanes [lo, hi) of v, x elsewhere.
inline V vkeep(V v, int lo, int hi, float x) {
  const int32_t numbers[4] = {0, 1, 2, 3};
  const int32x4_t lane = vld1q_s32(numbers);
  const uint32x4_t keep = vandq_u32(vcgeq_s32(lane, vdupq_n_s32(lo)), vcltq_s32(lane, vdupq_n_s32(hi)));
  return vbslq_f32(keep, v, vdupq_n_f32(x));
}
// small where |x| < bound, else large.
inline V vselect_small(V x, float bound, V small, V large) { return vbslq_f32(vcltq_f32(vabsq_f32(x), vdupq_n_f32(bound)), small, large); }
inline uint16x4_t halves(const unsigned char* p) { return vld1_u16(reinterpret_cast<const uint16_t*>(p)); }
inline uint8x8_t bytes4(const unsigned char* p) {
  uint32_t word;
  memcpy(&word, p, 4);
  return vreinterpret_u8_u32(vdup_n_u32(word));
}
inline V signed_bytes(int8x8_t b) { return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(b)))); }
inline V vload_f16(const unsigned char* p) { return vcvt_f32_f16(vreinterpret_f16_u16(halves(p))); }
inline V vload_bf16(const unsigned char* p) { return vreinterpretq_f32_u32(vshll_n_u16(halves(p), 16)); }
inline V vload_i8(const unsigned char* p) { return signed_bytes(vreinterpret_s8_u8(bytes4(p))); }
inline V vload_i4(const unsigned char* p) {
  uint16_t word;
  memcpy(&word, p, 2);
  const uint8x8_t b = vreinterpret_u8_u16(vdup_n_u16(word));
  const uint8x8_t u = vzip1_u8(vand_u8(b, vdup_n_u8(15)), vshr_n_u8(b, 4));
  return signed_bytes(vsub_s8(vreinterpret_s8_u8(u), vdup_n_s8(8)));
}
// As float16 bits the exponent is 8 too small, subnormals included.
inline V vload_f8(const unsigned char* p) {
  const uint16x4_t u = vget_low_u16(vmovl_u8(bytes4(p))), low = vdup_n_u16(0x7f), magnitude = vand_u16(u, low);
  const uint16x4_t sign = vshl_n_u16(vbic_u16(u, low), 8), nan = vand_u16(vceq_u16(magnitude, low), vdup_n_u16(0x7e00));
  const uint16x4_t half = vorr_u16(vorr_u16(sign, vshl_n_u16(magnitude, 7)), nan);
  return vmulq_f32(vcvt_f32_f16(vreinterpret_f16_u16(half)), vdupq_n_f32(256.0f));
}
inline void vtranspose(V* v) {
  const float64x2_t a = vreinterpretq_f64_f32(vtrn1q_f32(v[0], v[1])), b = vreinterpretq_f64_f32(vtrn2q_f32(v[0], v[1]));
  const float64x2_t c = vreinterpretq_f64_f32(vtrn1q_f32(v[2], v[3])), d = vreinterpretq_f64_f32(vtrn2q_f32(v[2], v[3]));
  v[0] = vreinterpretq_f32_f64(vtrn1q_f64(a, c));
  v[1] = vreinterpretq_f32_f64(vtrn1q_f64(b, d));
  v[2] = vreinterpretq_f32_f64(vtrn2q_f64(a, c));
  v[3] = vreinterpretq_f32_f64(vtrn2q_f64(b, d));
}
// Lane i: sum of the lanes of v[i].
inline V vsum_each(const V* v) { return vpaddq_f32(vpaddq_f32(v[0], v[1]), vpaddq_f32(v[2], v[3])); }
inline void vstore_halves(float* low, float* high, V v) {
  vst1_f32(low, vget_low_f32(v));
  vst1_f32(high, vget_high_f32(v));
}

#include "cpu_avx/attention_body.h"

}  // namespace

void attention_kernels_neon(AttentionKernels* k) { *k = {attend, rotate, scale, quantize}; }

}  // namespace hotset::cpu

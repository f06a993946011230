// SPDX-License-Identifier: Apache-2.0
// Elementwise loops with NEON.
#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

#include "cpu_avx/elementwise_isa.h"

namespace hotset::cpu {
namespace {
#include "cpu_avx/vector_neon.h"

inline V lower(V a, V b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
inline V higher(V a, V b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
inline V divide(V a, V b) { return vdivq_f32(a, b); }
inline V round(V v) { return vrndnq_f32(v); }
inline V root(V v) { return vsqrtq_f32(v); }
// In two halves, each a normal power of two.
inline V scale(V p, V n) {
  const int32x4_t i = vcvtnq_s32_f32(n), half = vshrq_n_s32(i, 1), rest = vsubq_s32(i, half), bias = vdupq_n_s32(127);
  const V a = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(half, bias), 23));
  const V b = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(rest, bias), 23));
  return vmulq_f32(vmulq_f32(p, a), b);
}
inline V magnitude(V v) { return vabsq_f32(v); }
inline V with_sign(V a, V s) { return vbslq_f32(vdupq_n_u32(0x80000000u), s, a); }
inline V below(V a, V b, V yes, V no) { return vbslq_f32(vcltq_f32(a, b), yes, no); }
template <int D>
inline float first_element(const void* p) {
  return vgetq_lane_f32(load_first_as<D>(p, 0, 1), 0);
}
#include "cpu_avx/elementwise_body.h"
}  // namespace

extern const ElementwiseKernels kElementwiseNeon = kTable;

}  // namespace hotset::cpu

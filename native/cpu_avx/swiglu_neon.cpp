// SPDX-License-Identifier: Apache-2.0
// The gated unit with NEON.
#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

#include "cpu_avx/swiglu_isa.h"

namespace hotset::cpu {
namespace {
#include "cpu_avx/vector_neon.h"

inline V lower(V a, V b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
inline V higher(V a, V b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
inline V divide(V a, V b) { return vdivq_f32(a, b); }
inline V round(V v) { return vrndnq_f32(v); }
inline V scale(V p, V n) { return vmulq_f32(p, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127)), 23))); }
inline void split(const float* p, V* even, V* odd) {
  const float32x4x2_t both = vld2q_f32(p);
  *even = both.val[0];
  *odd = both.val[1];
}
#include "cpu_avx/swiglu_body.h"
}  // namespace

void swiglu_neon(const Swiglu& unit, const float* gate, const float* value, int64_t n, float* out) { run(unit, gate, value, n, out); }

}  // namespace hotset::cpu

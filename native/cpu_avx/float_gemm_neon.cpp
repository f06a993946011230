// SPDX-License-Identifier: Apache-2.0
// Float products with NEON: four lanes. The packed tile is 12 x 8: 24 sums, one broadcast, two weights of 32 registers.
#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

#include "cpu_avx/float_gemm_isa.h"

namespace hotset::cpu {
namespace {
#include "cpu_avx/vector_neon.h"

constexpr int kMr = 12, kDotRows = 4;

inline void transpose(V r[4]) {
  const float64x2_t a = vreinterpretq_f64_f32(vtrn1q_f32(r[0], r[1])), b = vreinterpretq_f64_f32(vtrn2q_f32(r[0], r[1]));
  const float64x2_t c = vreinterpretq_f64_f32(vtrn1q_f32(r[2], r[3])), d = vreinterpretq_f64_f32(vtrn2q_f32(r[2], r[3]));
  r[0] = vreinterpretq_f32_f64(vtrn1q_f64(a, c));
  r[1] = vreinterpretq_f32_f64(vtrn1q_f64(b, d));
  r[2] = vreinterpretq_f32_f64(vtrn2q_f64(a, c));
  r[3] = vreinterpretq_f32_f64(vtrn2q_f64(b, d));
}

#include "cpu_avx/float_gemm_body.h"
}  // namespace

extern const FloatGemm kFloatGemmNeon = {"neon", scratch_bytes, multiply};

}  // namespace hotset::cpu

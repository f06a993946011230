// SPDX-License-Identifier: Apache-2.0
// Minifloat products with int8 activations for NEON with dot products.
#include <arm_neon.h>

#define HOTSET_DOT8 vdotq_s32
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"  // of exact activations
#include "cpu_avx/minifloat_gemm_neon_body.h"
#pragma GCC diagnostic pop

namespace hotset::cpu {

const MinifloatGemm kMinifloatI8NeonDot = {"neondot", i8_prepared_bytes, i8_prepare, multiply_as<4, true>, nullptr};

}  // namespace hotset::cpu

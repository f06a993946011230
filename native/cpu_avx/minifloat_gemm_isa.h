// SPDX-License-Identifier: Apache-2.0
// The tables of minifloat products, one a CPU level, and what the files of all levels share.
#pragma once
#include <stdint.h>

#include "cpu_avx/minifloat_gemm.h"

namespace hotset::cpu {

extern const MinifloatGemm kMinifloatF32Scalar, kMinifloatI8Scalar;
#if defined(__x86_64__)
extern const MinifloatGemm kMinifloatF32Avx2, kMinifloatI8Avx2;
extern const MinifloatGemm kMinifloatF32Avx512, kMinifloatI8Avx512Vnni;
#elif defined(__aarch64__)
extern const MinifloatGemm kMinifloatF32Neon, kMinifloatI8Neon, kMinifloatI8NeonDot;
#endif

}  // namespace hotset::cpu

// SPDX-License-Identifier: Apache-2.0
// The tables that quant_gemm() chooses from: private to the quant_gemm files and their test.
#pragma once
#include "cpu_avx/quant_gemm.h"

namespace hotset::cpu {

// The scalar tables serve every matrix.
extern const QuantGemm kQuantF32Scalar;
extern const QuantGemm kQuantI8Scalar;

// Indexed by code width: [0] 2 bits, [1] 4 bits, [2] 8 bits. They serve blocks that are a power of two of at least 16 (F32) or 32 (I8)
// codes, or that cover the whole row; Block16: of at least 16 codes, slower.
#if defined(__x86_64__)
extern const QuantGemm kQuantF32Avx2[3], kQuantF32Avx512[3];
extern const QuantGemm kQuantF32Avx512Vnni[3];  // blocks of at least 32 codes
extern const QuantGemm kQuantI8Avx2[3], kQuantI8Avx2Block16[3];
extern const QuantGemm kQuantI8Avx2Vnni[3], kQuantI8Avx2VnniBlock16[3];
extern const QuantGemm kQuantI8Avx512Vnni[3];
extern const QuantGemm kQuantI8Amx[3], kQuantI8AmxBlock16[3];
// Few rows by packed codes, whose rows of x are those of the AVX-512 VNNI tables. [2]: 4 and 8 bits; 3-bit codes need AVX-512 VBMI, too.
extern const QuantGemmPacked kQuantF32Sm80Avx512Vnni[2], kQuantI8Sm80Avx512Vnni[2];
extern const QuantGemmPacked kQuantF32Stream3Avx512Vbmi, kQuantI8Stream3Avx512Vbmi;
#elif defined(__aarch64__)
extern const QuantGemm kQuantF32Neon[3];
extern const QuantGemm kQuantI8Neon[3], kQuantI8NeonBlock16[3];
extern const QuantGemm kQuantI8NeonDot[3], kQuantI8NeonDotBlock16[3];
extern const QuantGemm kQuantI8NeonI8mm[3], kQuantI8NeonI8mmBlock16[3];
#endif

}  // namespace hotset::cpu

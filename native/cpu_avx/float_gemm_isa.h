// SPDX-License-Identifier: Apache-2.0
// One table of float products an instruction set.
#pragma once
#include "cpu_avx/float_gemm.h"

namespace hotset::cpu {

extern const FloatGemm kFloatGemmScalar, kFloatGemmAvx2, kFloatGemmAvx512, kFloatGemmAmx, kFloatGemmNeon;

// From this number of rows on the weights are packed into panels that all rows share.
inline constexpr int64_t kPackedRows = 12;

}  // namespace hotset::cpu

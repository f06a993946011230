// SPDX-License-Identifier: Apache-2.0
// The bfloat16 products of AMX on emulated tiles.
#include "kernels/emulated_tiles.h"

#define kFloatGemmAmx kFloatGemmEmulatedAmx
#include "cpu_avx/float_gemm_amx.cpp"

// SPDX-License-Identifier: Apache-2.0
// The int8 products of AMX on emulated tiles.
#include "kernels/emulated_tiles.h"

#define kQuantI8Amx kQuantI8EmulatedAmx
#define kQuantI8AmxBlock16 kQuantI8EmulatedAmxBlock16
#include "cpu_avx/quant_gemm_i8_amx.cpp"

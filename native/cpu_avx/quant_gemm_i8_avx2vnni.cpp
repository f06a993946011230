// SPDX-License-Identifier: Apache-2.0
// Quantised GEMM with int8 activations for AVX-VNNI, the dot products of AVX-512 VNNI in VEX coding: vpdpbusd adds four products of an
// unsigned byte (code) and a signed byte (activation) to each of 8 lanes, without saturation.
#include "cpu_avx/quant_gemm_avx2.h"

namespace hotset::cpu {
namespace {

constexpr int kMr = 3;

#include "cpu_avx/quant_gemm_i8_avx2_body.h"

}  // namespace

const QuantGemm kQuantI8Avx2Vnni[3] = HOTSET_TABLES(32);
const QuantGemm kQuantI8Avx2VnniBlock16[3] = HOTSET_TABLES(16);

}  // namespace hotset::cpu

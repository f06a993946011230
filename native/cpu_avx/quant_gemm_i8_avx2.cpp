// SPDX-License-Identifier: Apache-2.0
// Quantised GEMM with int8 activations for AVX2.
//
// vpmaddubsw: 16 lanes, each adds two products of an unsigned and a signed byte with saturation at 16 bits. Codes below 16 cannot
// saturate: eight of them add up to 8 * 2 * 15 * 127 = 30480. 8-bit codes are taken as two halves, code = low + 16 * high, and
// vpmaddwd, which makes 32-bit lanes, multiplies the high half by 16.
#include "cpu_avx/quant_gemm_avx2.h"

namespace hotset::cpu {
namespace {

constexpr int kMr = 3;  // 6 sums, 6 integer sums, and what 16 registers leave

#include "cpu_avx/quant_gemm_i8_avx2_body.h"

}  // namespace

const QuantGemm kQuantI8Avx2[3] = HOTSET_TABLES(32);
const QuantGemm kQuantI8Avx2Block16[3] = HOTSET_TABLES(16);

}  // namespace hotset::cpu

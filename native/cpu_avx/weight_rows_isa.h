// SPDX-License-Identifier: Apache-2.0
// The functions that the levels fill weight_rows.h with. Each overwrites what it does better.
#pragma once
#include "cpu_avx/weight_rows.h"

namespace hotset::cpu {

void weight_rows_scalar(WeightRows* rows);
void weight_rows_avx2(WeightRows* rows);
void weight_rows_avx512(WeightRows* rows);
void weight_rows_avx512vbmi(WeightRows* rows);
void weight_rows_neon(WeightRows* rows);

// For the ends of vector loops.
void widen_3_to_4_scalar(const uint8_t* src, int64_t count, uint8_t* dst);
void transpose_nibbles_scalar(const uint8_t* src, ptrdiff_t src_stride, int64_t columns, int64_t k, uint8_t* dst, ptrdiff_t dst_stride);

}  // namespace hotset::cpu

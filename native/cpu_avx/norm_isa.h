// SPDX-License-Identifier: Apache-2.0
// Normalisation of rows, one function an instruction set.
#pragma once
#include "cpu_avx/norm.h"

namespace hotset::cpu {

void norm_rows_scalar(const NormRows& rows, int64_t r0, int64_t r1, float* temp);
void norm_rows_avx2(const NormRows& rows, int64_t r0, int64_t r1, float* temp);
void norm_rows_avx512(const NormRows& rows, int64_t r0, int64_t r1, float* temp);
void norm_rows_neon(const NormRows& rows, int64_t r0, int64_t r1, float* temp);

}  // namespace hotset::cpu

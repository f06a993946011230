// SPDX-License-Identifier: Apache-2.0
// Products of few activation rows with E2M1 weights that are packed along N, read in the bytes of the model file.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "cpu_avx/minifloat_gemm.h"

namespace hotset::cpu {

// The matrix is a MinifloatMatrix of 4 bits whose `codes` are [k][n / 2], even n in the low half of a byte, and whose row_bytes lead
// from k to k + 1. block is 16 or 32 and divides k, scale_type 17 (E4M3) or 24 (E8M0), scale_rows 1, scales [n][scale_stride].
// Numbers and threads are as in minifloat_gemm.h.
struct MinifloatColumns {
  const char* name;
  // Bytes of m prepared rows, m times those of one; a multiple of 64.
  size_t (*prepared_bytes)(int64_t m, int64_t k);
  void (*prepare)(const float* x, int64_t ldx, int64_t k, int64_t m0, int64_t m1, void* prepared);
  // Bytes of scratch (64-byte aligned) for calls of up to m rows and n columns; a multiple of 64.
  size_t (*scratch_bytes)(int64_t m, int64_t n);
  // Rows [m0, m1), columns [n0, n1); n0 and n1 are even.
  void (*multiply)(const MinifloatMatrix& w, const void* prepared, int64_t m0, int64_t m1, int64_t n0, int64_t n1, const float* bias,
                   float* y, int64_t ldy, void* scratch);
};

// The kernel of this CPU, null when it has none: then columns are transposed first.
const MinifloatColumns* minifloat_columns(bool int8_activations);

#if defined(__x86_64__)
extern const MinifloatColumns kMinifloatColumnsF32Avx512, kMinifloatColumnsI8Avx512Vnni;
#endif

}  // namespace hotset::cpu

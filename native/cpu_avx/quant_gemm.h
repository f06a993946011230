// SPDX-License-Identifier: Apache-2.0
// Products of activations with block-quantised integer weights, read in the bytes of the model file.
#pragma once
#include <cstddef>
#include <cstdint>

namespace hotset::cpu {

// One weight matrix W[N][K] of unsigned b-bit codes, w = (code - zero) * scale (spec: raw layout of QMoE and MatMulNBits).
// Nothing here is aligned: mapped files put tensors at any byte.
struct QuantMatrix {
  const uint8_t* codes = nullptr;        // row n at codes + n * row_bytes, codes low bits first along K
  ptrdiff_t row_bytes = 0;
  const void* scales = nullptr;          // scale of (row n, block j) is element n * scale_stride + j
  ptrdiff_t scale_stride = 0;            // in elements
  int scale_type = 1;                    // ONNX element type: 1 float32, 10 float16, 16 bfloat16
  const uint8_t* zero_points = nullptr;  // packed low bits first along the blocks of a row; null: zero = 2^(bits-1)
  ptrdiff_t zero_stride = 0;             // bytes from row to row
  int bits = 4;                          // 2, 4 or 8
  int block = 32;                        // codes a scale covers: a multiple of 16, or >= K for one scale a row
  int64_t n = 0, k = 0;                  // the last block of a row may be short
};

// Activations prepared once and shared by all rows of W.
//   exact: float32 rows in the order that the decode loop of this CPU wants
//   int8:  q = rne(x / d), d = max|x| / 127 over each group of 32 elements of K; groups never cross a block of W
struct PreparedRows;  // layout is private to the kernel family; lives in caller memory, 64-byte aligned

struct QuantGemm {
  // Bytes that `prepare` writes for m rows of length k.
  size_t (*prepared_bytes)(int64_t m, int64_t k);
  // x: m rows of k float32, row i at x + i * ldx. Rows [m0, m1) only, so that threads can share the work.
  void (*prepare)(const float* x, int64_t ldx, int64_t m, int64_t k, int64_t m0, int64_t m1, void* prepared);
  // Bytes of scratch one thread needs in `multiply` (64-byte aligned).
  size_t (*scratch_bytes)(int64_t m, int64_t n, int64_t k);
  // y[i * ldy + j] = dot(x_i, W_j) + (bias ? bias[j] : 0) for rows i in [m0, m1) and columns j in [n0, n1).
  void (*multiply)(const QuantMatrix& w, const void* prepared, int64_t m, int64_t m0, int64_t m1, int64_t n0, int64_t n1,
                   const float* bias, float* y, int64_t ldy, void* scratch);
};

}  // namespace hotset::cpu

// SPDX-License-Identifier: Apache-2.0
// Products of few activation rows with weights that are 4-bit (E2M1) or 8-bit (E4M3) floats, read in the bytes of the model file.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace hotset::cpu {

// One weight matrix W[N][K], w = value(code) * scale * factor. No alignment; nothing is read past the last code or scale of a row.
struct MinifloatMatrix {
  int bits = 4;                    // 4: E2M1, even k in the low half of a byte; 8: E4M3 (the form without infinities)
  const uint8_t* codes = nullptr;  // row n at codes + n * row_bytes
  ptrdiff_t row_bytes = 0;
  const void* scales = nullptr;  // of (row n, block j): element n / scale_rows * scale_stride + j
  ptrdiff_t scale_stride = 0;    // in elements
  int64_t scale_rows = 1;        // rows of W that share their scales
  int scale_type = 0;            // ONNX element type: 1 float32, 10 float16, 16 bfloat16, 17 E4M3, 24 E8M0; 0: every scale is 1
  float factor = 1;
  int64_t block = 16;    // codes a scale covers, from k = 0: a power of two of at least 16, or >= k
  int64_t n = 0, k = 0;  // k is even with 4 bits
};

// A kernel for one instruction set and one kind of activations:
//   exact: float32 activations, products and sums in float32.
//   int8:  E2M1 only. q and d of each group of 32 elements as in quant_gemm.h; sums of 2 * value * q inside a group and a block are
//          integers, the same on every instruction set; y = factor / 2 * sum of scale * d * (sum of 2 * value * q).
// A NaN or infinity in x, a code or scale that is no number: no number in the outputs of that row or column.
// Kernels never allocate and keep no state.
struct MinifloatGemm {
  const char* name;
  // Bytes of m prepared rows, m times those of one; a multiple of 64. The layout belongs to the table and to `bits`.
  size_t (*prepared_bytes)(int bits, int64_t m, int64_t k);
  // Rows [m0, m1) of x; row i at x + i * ldx. `prepared` is 64-byte aligned. round_to_int8 (exact tables): x becomes the float
  // q * d of the int8 groups first.
  void (*prepare)(int bits, bool round_to_int8, const float* x, int64_t ldx, int64_t k, int64_t m0, int64_t m1, void* prepared);
  // y[i * ldy + j] = dot(x_i, W_j) + (bias ? bias[j] : 0), rows [m0, m1), columns [n0, n1). The bits of y do not depend on how
  // rows and columns are split. Every eight rows of x read W anew.
  void (*multiply)(const MinifloatMatrix& w, const void* prepared, int64_t m0, int64_t m1, int64_t n0, int64_t n1, const float* bias,
                   float* y, int64_t ldy);
  // The k weights of row n, (value * scale) * factor, the same on every instruction set. Exact tables only, else null.
  void (*to_floats)(const MinifloatMatrix& w, int64_t n, float* out);
};

// The fastest of this CPU.
const MinifloatGemm& minifloat_gemm(bool int8_activations);
// All that this CPU can run, the reference first; null past the end.
const MinifloatGemm* minifloat_gemm_at(bool int8_activations, int i);

// x becomes q * d, d = max|x| / 127, q = rne(x * 127 / max|x|) over groups of 32: what int8 activations keep of x.
void round_to_int8(const float* x, int64_t k, float* out);

}  // namespace hotset::cpu

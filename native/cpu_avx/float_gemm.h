// SPDX-License-Identifier: Apache-2.0
// Products of float32 rows with float weights that stay in the bytes and the order of the model file.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace hotset::cpu {

// Weights of N outputs and K inputs: element (n, k) is number n * stride_n + k * stride_k of `data`.
//   W[N][K] (experts, y = x W^T): stride_n = ld, stride_k = 1.     B[K][N] (MatMul): stride_n = 1, stride_k = ld.
// Other strides work, slowly. Nothing need be aligned: mapped files put weights and biases at any byte.
struct FloatMatrix {
  const void* data = nullptr;
  int dtype = 1;  // ONNX element type: 1 float32, 10 float16, 16 bfloat16
  int64_t n = 0, k = 0;
  int64_t stride_n = 0, stride_k = 0;  // in elements
};

struct FloatGemm {
  const char* name;
  // Bytes of scratch that one thread needs in `multiply` (64-byte aligned) for up to m rows.
  size_t (*scratch_bytes)(int64_t m, int64_t n, int64_t k);
  // y[i * ldy + j] = dot(x_i, w_j) + (bias ? bias[j] : 0) for rows i in [m0, m1) and columns j in [n0, n1).
  // x: float32 rows, row i at x + i * ldx. Sums are float32. A value does not depend on how columns are split, and for
  // a given number of rows m1 - m0 not on how they are grouped: threads may share the work in any way.
  void (*multiply)(const FloatMatrix& w, const float* x, int64_t ldx, int64_t m0, int64_t m1, int64_t n0, int64_t n1,
                   const float* bias, float* y, int64_t ldy, void* scratch);
};

// What this CPU does best.
const FloatGemm& float_gemm();
// All that this CPU can run, the reference first; null past the end.
const FloatGemm* float_gemm_at(int i);

}  // namespace hotset::cpu

// SPDX-License-Identifier: Apache-2.0
// Parameters of the dense matrix product kernels, for host and device code.
#pragma once
#include <cstdint>

namespace hotset::cuda {

// C[z][i][j] = alpha * sum over k of A[z][i][k] * B[z][k][j] + beta * addend[i][j], summed in float32 and rounded once.
struct MatMulParams {
  const void* a;
  const void* b;
  void* c;
  const void* addend;                      // or null
  std::int64_t a_row, a_column;            // strides in elements of A[i][k]; one of them is 1
  std::int64_t b_row, b_column;            // of B[k][j]; one of them is 1
  std::int64_t ldc;                        // of C[i][j] along i; 1 along j
  std::int64_t a_batch, b_batch, c_batch;  // along z
  std::int64_t addend_row, addend_column;
  std::int32_t m, n, k, batch;
  std::int32_t addend_type;  // ONNX element type
  float alpha, beta;
  std::int32_t b_ready;  // 1: B does not come from the kernel before this one (a constant)
  // GEMV of B [k, n] alone:
  std::int32_t lanes_shift;    // log2 of the threads side by side along n
  std::int32_t parts, k_part;  // blocks of a cluster, and rows of B that each of them takes
};

}  // namespace hotset::cuda

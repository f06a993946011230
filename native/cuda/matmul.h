// SPDX-License-Identifier: Apache-2.0
// Dense matrix products on a device: float32, float16, bfloat16.
#pragma once
#include "base/dtype.h"
#include "cuda/device.h"

namespace hotset::cuda {

// C = alpha * A B + beta * bias, dense row-major matrices of one type. Sums are float32, rounded once; float32 operands keep float32
// accuracy on tensor cores too.
struct MatMulCall {
  DType type = DType::f32;
  const void* a = nullptr;  // [batch][m, k], with trans_a [batch][k, m]
  const void* b = nullptr;  // [batch][k, n], with trans_b [batch][n, k]
  void* c = nullptr;        // [batch][m, n], rows ldc elements apart
  const void* bias = nullptr;
  DType bias_type = DType::undefined;
  int64_t bias_row = 0, bias_column = 1;  // strides of bias[i][j] in elements; 0: the same for all
  int64_t m = 0, n = 0, k = 0, batch = 1;
  int64_t a_batch = 0, b_batch = 0;  // elements from one matrix of the batch to the next; 0: the same for all
  int64_t ldc = 0;                   // 0: n
  bool trans_a = false, trans_b = false;
  bool b_ready = false;  // B is a constant: it may be read before the kernels in front of this one are through
  bool library = false;  // cuBLASLt may serve a large product where it is on the machine
  float alpha = 1, beta = 1;
};

enum class MatMulForm {
  any,   // a thread a result: every form
  gemv,  // few rows: bound by the memory rate of B
  gemm,  // tensor cores
};
MatMulForm matmul_form(const Gpu& gpu, const MatMulCall& call);

Status launch_matmul(Gpu& gpu, Stream stream, const MatMulCall& call);
// The same in a given form, for tests.
Status launch_matmul_as(MatMulForm form, Gpu& gpu, Stream stream, const MatMulCall& call);

}  // namespace hotset::cuda

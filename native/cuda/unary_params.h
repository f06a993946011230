// SPDX-License-Identifier: Apache-2.0
// Parameters of the elementwise kernel of one operand, for host and device code.
#pragma once
#include <cstdint>

namespace hotset::cuda {

enum class Unary : std::int32_t {
  copy,  // a conversion of types
  neg,
  abs,
  exp,
  log,
  sqrt,
  reciprocal,
  sin,
  cos,
  tanh,
  erf,
  sigmoid,
  swish,  // x * sigmoid(alpha * x)
  softplus,
  relu,
  gelu,
  gelu_tanh,
};

// y[i] = op(x[i]), computed in float32 and rounded once; integers are converted by `copy` alone.
struct UnaryParams {
  const void* x;
  void* y;
  std::int64_t n;
  Unary op;
  std::int32_t x_type, y_type;  // ONNX element types: float, float16, bfloat16, int32, int64
  float alpha;
};

}  // namespace hotset::cuda

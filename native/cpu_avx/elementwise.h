// SPDX-License-Identifier: Apache-2.0
// Elementwise loops that a vector unit makes several times faster. The plain loops of the operators are the reference.
#pragma once
#include <stdint.h>

namespace hotset::cpu {

enum class Arithmetic { add, sub, mul, div };
// swish: x / (1 + exp(-p[0] x)). gelu_tanh: the approximation with tanh.
enum class Function { exp, sigmoid, swish, tanh, gelu_tanh, erf, gelu, relu, sqrt };
inline constexpr int kArithmetics = 4, kFunctions = 9;

// out[i] = a[i] op b[i]; an operand with `one` set is a single element.
using ArithmeticLoop = void (*)(const void* a, bool a_one, const void* b, bool b_one, void* out, int64_t n);
// out[i] = f(in[i], p), at most 3 units in the last place of float32 off before the result is rounded to its type.
using FunctionLoop = void (*)(const void* in, void* out, int64_t n, const float* p);
// out = exp(in - max(in)) / sum; `out` may be `in`.
using SoftmaxRow = void (*)(const float* in, float* out, int64_t n);

// Second index: 0 float32, 1 float16, 2 bfloat16. `out` may be an operand of the same type. Nothing need be aligned.
struct ElementwiseKernels {
  ArithmeticLoop arithmetic[kArithmetics][3];
  FunctionLoop function[kFunctions][3];
  SoftmaxRow softmax;
};

// Null where the CPU has nothing better than the plain loops.
const ElementwiseKernels* elementwise_kernels();
const char* elementwise_isa();  // of those kernels; "scalar": none

}  // namespace hotset::cpu

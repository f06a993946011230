// SPDX-License-Identifier: Apache-2.0
// Activation functions.
#include <cmath>

#include "ops/unary.h"

namespace hotset::ops {
namespace {

// exp of a non-positive number only: no overflow on either side.
template <class T>
T sigmoid(T x) {
  const T e = std::exp(-std::fabs(x));
  return (x >= 0 ? T(1) : e) / (T(1) + e);
}

struct SigmoidOp {
  template <class T>
  static T apply(T x, const float*) {
    return x == x ? sigmoid(x) : x;
  }
};
struct TanhOp {
  template <class T>
  static T apply(T x, const float*) {
    return std::tanh(x);
  }
};
struct SoftplusOp {
  template <class T>
  static T apply(T x, const float*) {
    return (x > 0 ? x : T(0)) + std::log1p(std::exp(-std::fabs(x)));
  }
};
struct GeluOp {
  template <class T>
  static T apply(T x, const float*) {
    return T(0.5) * x * (T(1) + std::erf(x * T(0.70710678118654752440)));
  }
};
struct GeluTanhOp {
  template <class T>
  static T apply(T x, const float*) {
    return T(0.5) * x * (T(1) + std::tanh(T(0.79788456080286535588) * (x + T(0.044715) * x * x * x)));
  }
};
// x * sigmoid(alpha * x)
struct SwishOp {
  template <class T>
  static T apply(T x, const float* p) {
    return x * sigmoid(static_cast<T>(p[0]) * x);
  }
};
struct ReluOp {
  template <class T>
  static T apply(T x, const float*) {
    return x < 0 ? T(0) : x;  // NaN stays
  }
};
struct LeakyReluOp {
  template <class T>
  static T apply(T x, const float* p) {
    return x < 0 ? x * static_cast<T>(p[0]) : x;
  }
};
struct EluOp {
  template <class T>
  static T apply(T x, const float* p) {
    return x < 0 ? static_cast<T>(p[0]) * std::expm1(x) : x;
  }
};
struct HardSigmoidOp {
  template <class T>
  static T apply(T x, const float* p) {
    const T y = static_cast<T>(p[0]) * x + static_cast<T>(p[1]);
    return y < 0 ? T(0) : y > 1 ? T(1) : y;
  }
};

Result<std::unique_ptr<Kernel>> make_relu(const OpContext& c) {
  static const UnaryTable table = [] {
    UnaryTable t = with_vectors(kFloatTable<ReluOp>, cpu::Function::relu);
    t[static_cast<size_t>(DType::i8)] = unary_loop<ReluOp, int8_t>;
    t[static_cast<size_t>(DType::i16)] = unary_loop<ReluOp, int16_t>;
    t[static_cast<size_t>(DType::i32)] = unary_loop<ReluOp, int32_t>;
    t[static_cast<size_t>(DType::i64)] = unary_loop<ReluOp, int64_t>;
    return t;
  }();
  return make_kernel<UnaryKernel>(c, table, DType::undefined, 0.0f, 0.0f);
}

Result<std::unique_ptr<Kernel>> make_gelu(const OpContext& c) {
  const std::string approximate = c.node().get_string("approximate", "none");
  if (approximate == "none") return make_vector_unary<GeluOp, cpu::Function::gelu>(c);
  if (approximate == "tanh") return make_vector_unary<GeluTanhOp, cpu::Function::gelu_tanh>(c);
  return c.fail(Code::invalid_model, "approximate '%s', expected none or tanh", approximate.c_str());
}

template <class Op>
Result<std::unique_ptr<Kernel>> make_with(const OpContext& c, float alpha, float beta = 0) {
  return make_kernel<UnaryKernel>(c, kFloatTable<Op>, DType::undefined, c.node().get_float("alpha", alpha), c.node().get_float("beta", beta));
}

Result<std::unique_ptr<Kernel>> make_swish(const OpContext& c, float alpha) {
  return make_kernel<UnaryKernel>(c, vector_table<SwishOp, cpu::Function::swish>(), DType::undefined, c.node().get_float("alpha", alpha), 0.0f);
}

}  // namespace

HOTSET_OPS(activation,
           {"", "Sigmoid", 6, kLatest, make_vector_unary<SigmoidOp, cpu::Function::sigmoid>, {1, 1}},
           {"", "Tanh", 6, kLatest, make_vector_unary<TanhOp, cpu::Function::tanh>, {1, 1}},
           {"", "Softplus", 1, kLatest, make_unary<kFloatTable<SoftplusOp>>, {1, 1}},
           {"", "Relu", 6, kLatest, make_relu, {1, 1}},
           {"", "Gelu", 20, kLatest, make_gelu, {1, 1}},
           {"com.microsoft", "Gelu", 1, kLatest, make_vector_unary<GeluOp, cpu::Function::gelu>, {1, 1}},
           {"", "Swish", 24, kLatest, [](const OpContext& c) { return make_swish(c, 1.0f); }, {1, 1}},
           {"com.microsoft", "QuickGelu", 1, kLatest, [](const OpContext& c) { return make_swish(c, 1.702f); }, {1, 1}},
           {"", "LeakyRelu", 6, kLatest, [](const OpContext& c) { return make_with<LeakyReluOp>(c, 0.01f); }, {1, 1}},
           {"", "Elu", 6, kLatest, [](const OpContext& c) { return make_with<EluOp>(c, 1.0f); }, {1, 1}},
           {"", "HardSigmoid", 6, kLatest, [](const OpContext& c) { return make_with<HardSigmoidOp>(c, 0.2f, 0.5f); }, {1, 1}});

}  // namespace hotset::ops

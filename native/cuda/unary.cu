// SPDX-License-Identifier: Apache-2.0
// Elementwise operators of one operand, and conversions of types. A block owns kPerThread * 256 neighbours, a thread every 256th.
#include "cuda/float_types.cuh"
#include "cuda/unary_params.h"

namespace hotset::cuda::unary {
namespace {

constexpr int kPerThread = 4;

// exp of a non-positive number only: no overflow on either side.
__device__ float sigmoid(float x) {
  const float e = expf(-fabsf(x));
  return (x >= 0 ? 1.0f : e) / (1.0f + e);
}

__device__ float apply(Unary op, float x, float alpha) {
  switch (op) {
    case Unary::copy:
      return x;
    case Unary::neg:
      return -x;
    case Unary::abs:
      return fabsf(x);
    case Unary::exp:
      return expf(x);
    case Unary::log:
      return logf(x);
    case Unary::sqrt:
      return sqrtf(x);
    case Unary::reciprocal:
      return 1.0f / x;
    case Unary::sin:
      return sinf(x);
    case Unary::cos:
      return cosf(x);
    case Unary::tanh:
      return tanhf(x);
    case Unary::erf:
      return erff(x);
    case Unary::sigmoid:
      return x == x ? sigmoid(x) : x;
    case Unary::swish:
      return x * sigmoid(alpha * x);
    case Unary::softplus:
      return (x > 0 ? x : 0.0f) + log1pf(expf(-fabsf(x)));
    case Unary::relu:
      return x < 0 ? 0.0f : x;  // NaN stays
    case Unary::gelu:
      return 0.5f * x * (1.0f + erff(x * 0.70710678118654752440f));
    case Unary::gelu_tanh:
      return 0.5f * x * (1.0f + tanhf(0.79788456080286535588f * (x + 0.044715f * x * x * x)));
  }
  return 0;
}

template <class X, class Y>
__device__ Y converted(Unary op, X x, float alpha) {
  if constexpr (sizeof(Y) == sizeof(X) && __is_same(X, Y) && (__is_same(X, std::int32_t) || __is_same(X, std::int64_t)))
    return x;
  else if constexpr (__is_same(Y, std::int32_t) || __is_same(Y, std::int64_t)) {
    if constexpr (__is_same(X, std::int32_t) || __is_same(X, std::int64_t))
      return static_cast<Y>(x);
    else
      return static_cast<Y>(to_float(x));
  } else if constexpr (__is_same(X, std::int32_t) || __is_same(X, std::int64_t)) {
    return from_float<Y>(static_cast<float>(x));
  } else {
    return from_float<Y>(apply(op, to_float(x), alpha));
  }
}

template <class X, class Y>
__device__ void elements(const UnaryParams& p) {
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * blockDim.x * kPerThread + threadIdx.x;
#pragma unroll
  for (int k = 0; k < kPerThread; ++k) {
    const std::int64_t i = first + static_cast<std::int64_t>(k) * blockDim.x;
    if (i < p.n) static_cast<Y*>(p.y)[i] = converted<X, Y>(p.op, static_cast<const X*>(p.x)[i], p.alpha);
  }
}

template <class X>
__device__ void elements_to(const UnaryParams& p) {
  release_successor();
  wait_for_predecessor();
  switch (p.y_type) {
    case 1:
      return elements<X, float>(p);
    case 6:
      return elements<X, std::int32_t>(p);
    case 7:
      return elements<X, std::int64_t>(p);
    case 10:
      return elements<X, Half>(p);
    case 16:
      return elements<X, Bfloat>(p);
  }
}

}  // namespace
}  // namespace hotset::cuda::unary

#define HOTSET_UNARY(X, suffix)                                                                                \
  extern "C" __global__ void __launch_bounds__(256) hotset_unary_##suffix(const hotset::cuda::UnaryParams p) { \
    hotset::cuda::unary::elements_to<X>(p);                                                                    \
  }
HOTSET_UNARY(hotset::cuda::Half, f16)
HOTSET_UNARY(hotset::cuda::Bfloat, bf16)
HOTSET_UNARY(float, f32)
HOTSET_UNARY(std::int32_t, i32)
HOTSET_UNARY(std::int64_t, i64)

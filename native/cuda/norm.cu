// SPDX-License-Identifier: Apache-2.0
// RMS and layer normalisation of rows, with the residual sum before it. One block a row.
#include "cuda/float_types.cuh"
#include "cuda/norm_params.h"

namespace hotset::cuda::norm {
namespace {

constexpr int kHeld = 4;  // vectors of a row that a thread keeps in registers

__device__ void statistics(const NormParams& p, std::int64_t row, float mean, float inverse) {
  if (threadIdx.x != 0) return;
  if (p.mean) p.mean[row] = mean;
  if (p.inverse) p.inverse[row] = inverse;
}

// Everything has type T and lies at multiples of 16 bytes; a row is at most kHeld vectors a thread. It is read once.
template <class T>
__device__ void rows_in_registers(const NormParams& p) {
  constexpr int kSize = Vector<T>::kSize;
  __shared__ float shared[32];
  const int vectors = static_cast<int>(p.width / kSize);
  const std::int64_t row = blockIdx.x, at = row * p.width;
  if (!p.ready) wait_for_predecessor();
  Vector<T> gamma[kHeld], beta[kHeld];
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    const int v = threadIdx.x + h * blockDim.x;
    if (v >= vectors) break;
    gamma[h] = load_vector(static_cast<const T*>(p.gamma) + v * kSize);
    if (p.beta) beta[h] = load_vector(static_cast<const T*>(p.beta) + v * kSize);
  }
  release_successor();
  wait_for_predecessor();
  float s[kHeld][kSize];
  float sum = 0;
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    const int v = threadIdx.x + h * blockDim.x;
    if (v >= vectors) break;
    const Vector<T> x = load_vector(static_cast<const T*>(p.x) + at + v * kSize);
#pragma unroll
    for (int i = 0; i < kSize; ++i) s[h][i] = to_float(x.at[i]);
    if (p.skip) {
      const Vector<T> skip = load_vector(static_cast<const T*>(p.skip) + row % p.skip_rows * p.width + v * kSize);
#pragma unroll
      for (int i = 0; i < kSize; ++i) s[h][i] += to_float(skip.at[i]);
      if (p.bias) {
        const Vector<T> bias = load_vector(static_cast<const T*>(p.bias) + v * kSize);
#pragma unroll
        for (int i = 0; i < kSize; ++i) s[h][i] += to_float(bias.at[i]);
      }
    }
    if (p.sum) {
      Vector<T> out;
#pragma unroll
      for (int i = 0; i < kSize; ++i) out.at[i] = from_float<T>(s[h][i]);
      store_vector(static_cast<T*>(p.sum) + at + v * kSize, out);
    }
#pragma unroll
    for (int i = 0; i < kSize; ++i) sum += p.center ? s[h][i] : s[h][i] * s[h][i];
  }
  const float size = static_cast<float>(p.width);
  float mean = 0;
  sum = block_sum(sum, shared);
  if (p.center) {
    mean = sum / size;
    sum = 0;
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      if (threadIdx.x + h * blockDim.x >= vectors) break;
#pragma unroll
      for (int i = 0; i < kSize; ++i) sum += (s[h][i] - mean) * (s[h][i] - mean);
    }
    sum = block_sum(sum, shared);
  }
  const float inverse = 1.0f / sqrtf(sum / size + p.epsilon);
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    const int v = threadIdx.x + h * blockDim.x;
    if (v >= vectors) break;
    Vector<T> out;
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      float y = (s[h][i] - mean) * inverse * to_float(gamma[h].at[i]);
      if (p.beta) y += to_float(beta[h].at[i]);
      out.at[i] = from_float<T>(y);
    }
    store_vector(static_cast<T*>(p.y) + at + v * kSize, out);
  }
  statistics(p, row, mean, inverse);
}

// Any types, widths and places; the row is formed again in each pass.
template <class T>
__device__ void rows_of_any(const NormParams& p) {
  __shared__ float shared[32];
  release_successor();
  wait_for_predecessor();
  const std::int64_t row = blockIdx.x, at = row * p.width, skip_at = p.skip ? row % p.skip_rows * p.width : 0;
  const auto element = [&](std::int64_t i) {
    float s = to_float(static_cast<const T*>(p.x)[at + i]);
    if (p.skip) s += load_typed(p.skip, p.skip_type, skip_at + i);
    if (p.skip && p.bias) s += load_typed(p.bias, p.bias_type, i);
    return s;
  };
  const float size = static_cast<float>(p.width);
  float sum = 0, mean = 0;
  for (std::int64_t i = threadIdx.x; i < p.width; i += blockDim.x) {
    const float s = element(i);
    sum += p.center ? s : s * s;
  }
  sum = block_sum(sum, shared);
  if (p.center) {
    mean = sum / size;
    sum = 0;
    for (std::int64_t i = threadIdx.x; i < p.width; i += blockDim.x) {
      const float s = element(i) - mean;
      sum += s * s;
    }
    sum = block_sum(sum, shared);
  }
  const float inverse = 1.0f / sqrtf(sum / size + p.epsilon);
  for (std::int64_t i = threadIdx.x; i < p.width; i += blockDim.x) {
    const float s = element(i);
    float y = (s - mean) * inverse * load_typed(p.gamma, p.gamma_type, i);
    if (p.beta) y += load_typed(p.beta, p.beta_type, i);
    if (p.sum) static_cast<T*>(p.sum)[at + i] = from_float<T>(s);
    static_cast<T*>(p.y)[at + i] = from_float<T>(y);
  }
  statistics(p, row, mean, inverse);
}

}  // namespace
}  // namespace hotset::cuda::norm

#define HOTSET_NORM(T, suffix)                                                                                   \
  extern "C" __global__ void __launch_bounds__(512) hotset_norm_##suffix(const hotset::cuda::NormParams p) {     \
    hotset::cuda::norm::rows_in_registers<T>(p);                                                                 \
  }                                                                                                              \
  extern "C" __global__ void __launch_bounds__(512) hotset_norm_any_##suffix(const hotset::cuda::NormParams p) { \
    hotset::cuda::norm::rows_of_any<T>(p);                                                                       \
  }
HOTSET_NORM(hotset::cuda::Half, f16)
HOTSET_NORM(hotset::cuda::Bfloat, bf16)
HOTSET_NORM(float, f32)

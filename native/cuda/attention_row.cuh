// SPDX-License-Identifier: Apache-2.0
// Attention of one query row of one head by one block: the plain way, for any head size and format, against which the others
// are checked and to which they come back when values that only other rows of a tile may see are not finite.
#pragma once
#include "cuda/attention_device.cuh"

namespace hotset::cuda::attn {

constexpr int kRowChunk = 128;      // keys between two updates of the softmax state
constexpr int kRowChannels = 1024;  // head sizes up to this; 128 threads or more
constexpr int kRowSharedFloats = kRowChannels + kRowChunk + 64;

// Largest (or sum) of one value a thread.
template <bool kSum>
__device__ inline float over_block(float x, float* shared) {
  for (int offset = 16; offset; offset >>= 1) {
    const float y = __shfl_xor_sync(0xffffffffu, x, offset);
    x = kSum ? x + y : fmaxf(x, y);
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  x = shared[0];
  for (int i = 1; i < static_cast<int>(blockDim.x) / 32; ++i) x = kSum ? x + shared[i] : fmaxf(x, shared[i]);
  return x;
}

// Logits of keys [j0, j0 + n) to x; one warp a key.
template <class T>
__device__ inline void row_logits(const AttentionParams& p, const KeyRows& k, const float* q, const T* bias, int j0, int n, float* x) {
  const int lane = threadIdx.x % 32;
  const float scale = p.scale * (p.k_scale && !p.k_per_channel ? as<float>(p.k_scale)[0] : 1.0f);
  for (int i = threadIdx.x / 32; i < n; i += blockDim.x / 32) {
    const char* const row = k.at(j0 + i);
    float sum = 0;
    for (int c = lane; c < p.d; c += 32) sum += q[c] * cache_element<T>(p.format, row, c);
    for (int offset = 16; offset; offset >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (lane == 0) x[i] = !k.has(j0 + i) ? -kInf : cap(sum * scale, p.softcap) + (bias ? to_float(bias[j0 + i]) : 0.0f);
  }
  __syncthreads();
}

// Output (and qk) of row s of head h; zeros for rows of padding. All threads of the block; `shared`: kRowSharedFloats.
template <class T>
__device__ __noinline__ void attend_row(const AttentionParams& p, const Step& e, int b, int h, int s, float* shared) {
  float *const q = shared, *const x = shared + kRowChannels, *const scratch = x + kRowChunk;
  const int g = h / (p.heads / p.kv_heads), threads = blockDim.x;
  const bool valid = s < e.rows;
  const int lo = valid ? first_visible(p, e, s) : 0, hi = valid ? end_visible(p, e, s) : 0;
  const KeyRows k = k_rows(p, e, b, g), v = v_rows(p, e, b, g);
  const T* const bias = p.bias ? as<T>(p.bias) + b * p.bias_b + h * p.bias_h + s * p.bias_s : nullptr;
  T* const qk = p.qk ? reinterpret_cast<T*>(p.qk) + ((static_cast<std::int64_t>(b) * p.heads + h) * p.rows + s) * p.columns : nullptr;
  __syncthreads();
  for (int c = threadIdx.x; valid && c < p.d; c += threads) {
    const float scale = p.k_scale && p.k_per_channel ? as<float>(p.k_scale)[g * p.d + c] : 1.0f;
    q[c] = to_float(reinterpret_cast<const T*>(row_at(p.q, b, h, e.first_row + s))[c]) * scale;
  }
  if (qk)
    for (int j = threadIdx.x; j < p.columns; j += threads)
      if (j < lo || j >= hi) qk[j] = from_float<T>(0.0f);
  __syncthreads();

  float m = -kInf, l = 0, acc[kRowChannels / 128] = {};
  for (int j0 = lo; j0 < hi; j0 += kRowChunk) {
    const int n = min(kRowChunk, hi - j0);
    row_logits(p, k, q, bias, j0, n, x);
    float top = -kInf;
    for (int i = threadIdx.x; i < n; i += threads) top = fmaxf(top, x[i]);
    top = fmaxf(m, over_block<false>(top, scratch));
    const float base = top == -kInf ? 0.0f : top, factor = expf(m - base);
    m = top;
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += threads) {
      if (qk && p.qk_output == 1) qk[j0 + i] = from_float<T>(x[i]);
      sum += x[i] = expf(x[i] - base);
    }
    l = l * factor + over_block<true>(sum, scratch);
    for (int i = 0; i * threads + static_cast<int>(threadIdx.x) < p.dv; ++i) {
      const int c = i * threads + threadIdx.x;
      float a = acc[i] * factor;
      for (int j = 0; j < n; ++j)
        if (v.has(j0 + j)) a += x[j] * cache_element<T>(p.format, v.at(j0 + j), c);
      acc[i] = a;
    }
    __syncthreads();
  }
  float z;
  const bool has_sink = sink_of<T>(p, h, &z);
  const float top = has_sink ? fmaxf(m, z) : m, base = top == -kInf ? 0.0f : top;
  const float sum = l * expf(m - base) + (has_sink ? expf(z - base) : 0.0f);
  T* const out = reinterpret_cast<T*>(row_at(p.output, b, h, e.first_row + s));
  for (int i = 0; i * threads + static_cast<int>(threadIdx.x) < p.dv; ++i) {
    const int c = i * threads + threadIdx.x;
    out[c] = from_float<T>(sum == 0.0f || !valid ? 0.0f : acc[i] * (expf(m - base) / sum) * v_scale_of(p, g, c));
  }
  for (int j0 = lo; qk && p.qk_output == 2 && j0 < hi; j0 += kRowChunk) {
    const int n = min(kRowChunk, hi - j0);
    row_logits(p, k, q, bias, j0, n, x);
    for (int i = threadIdx.x; i < n; i += threads) qk[j0 + i] = from_float<T>(sum == 0.0f ? 0.0f : expf(x[i] - base) / sum);
    __syncthreads();
  }
}

}  // namespace hotset::cuda::attn

// SPDX-License-Identifier: Apache-2.0
// Softmax states of 16 query rows over a part of the keys, and what becomes of several: the output of all keys.
#pragma once
#include "cuda/attention_mma.cuh"
#include "cuda/attention_row.cuh"

namespace hotset::cuda::attn {

constexpr int kRowsOfTile = 16;

// A lane's part of the softmax states of rows lane / 4 (i = 0) and lane / 4 + 8 (i = 1).
template <int DP>
struct RowsState {
  float m[2] = {-kInf, -kInf}, l[2] = {0, 0};
  float acc[DP / 64][8][4] = {};  // add_pv16
};

// States lie as m[16] l[16] acc[16][DP], float32; lanes put theirs into one.
template <int DP>
__device__ inline void put_state(RowsState<DP>& state, int lane, float* to) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = lane / 4 + 8 * i;
    state.l[i] += __shfl_xor_sync(0xffffffffu, state.l[i], 1);
    state.l[i] += __shfl_xor_sync(0xffffffffu, state.l[i], 2);
    if (lane % 4 == 0) {
      to[row] = state.m[i];
      to[kRowsOfTile + row] = state.l[i];
    }
    float* const acc = to + 2 * kRowsOfTile + row * DP + lane % 4 * 16;
#pragma unroll
    for (int u = 0; u < DP / 64; ++u)
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        const int c = part % 2 * 4, k = 2 * i + part / 2;  // channels c .. c + 3 of unit 2 q (+ 1)
        *reinterpret_cast<float4*>(acc + 64 * u + part / 2 * 8 + c) =
            make_float4(state.acc[u][c][k], state.acc[u][c + 1][k], state.acc[u][c + 2][k], state.acc[u][c + 3][k]);
      }
  }
}

// Other blocks' results come from the L2 cache.
template <bool kShared>
__device__ inline float state_at(const float* from) {
  return kShared ? *from : __ldcg(from);
}

// Merges n states that lie `stride` floats apart: factors[i * 16 + row] become what state i of a row counts, so that
// acc = sum of factor * acc. m and l of the merged state go to m_l[row], m_l[16 + row]. `factors` has 16 n floats.
template <bool kShared>
__device__ inline void merge_factors(const float* states, int n, std::int64_t stride, float* factors, float* m_l) {
  const int lane = threadIdx.x % 16;  // 16 lanes a row
  for (int row = threadIdx.x / 16; row < kRowsOfTile; row += blockDim.x / 16) {
    constexpr int kMost = 8;  // states of a lane: 128 splits
    float m[kMost], l[kMost], top = -kInf, sum = 0;
#pragma unroll
    for (int k = 0; k < kMost; ++k) {
      const float* const state = states + min(lane + 16 * k, n - 1) * stride + row;
      m[k] = lane + 16 * k < n ? state_at<kShared>(state) : -kInf;
      l[k] = lane + 16 * k < n ? state_at<kShared>(state + kRowsOfTile) : 0.0f;
    }
#pragma unroll
    for (int k = 0; k < kMost; ++k) top = fmaxf(top, m[k]);
    for (int offset = 8; offset; offset >>= 1) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, offset));
    const float base = top == -kInf ? 0.0f : top;
#pragma unroll
    for (int k = 0; k < kMost; ++k) {
      const float f = exp2_approx(m[k] - base);
      if (lane + 16 * k < n) factors[(lane + 16 * k) * kRowsOfTile + row] = f;
      sum += f * l[k];
    }
    for (int offset = 8; offset; offset >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (lane == 0) {
      m_l[row] = top;
      m_l[kRowsOfTile + row] = sum;
    }
  }
  __syncthreads();
}

// Output of a tile from n states and what merge_factors made of them. `scratch`: kRowSharedFloats, may be where factors are.
template <bool kShared, class Tile, class T, int DP>
__device__ inline void write_rows(const Tile& tile, const float* states, int n, std::int64_t stride, const float* factors, const float* m_l,
                                  bool redo, float* scratch) {
  const AttentionParams& p = tile.p;
  bool bad = false;
  for (int i = 4 * threadIdx.x; i < tile.n_rows * DP; i += 4 * blockDim.x) {
    const int row = i / DP, c = i % DP, h = tile.h_of(row);
    if (c >= p.d) continue;
    float acc[4] = {};
#pragma unroll 16
    for (int k = 0; k < n; ++k) {
      const float4* const from = reinterpret_cast<const float4*>(states + k * stride + 2 * kRowsOfTile + i);
      const float4 x = kShared ? *from : __ldcg(from);
      const float f = factors[k * kRowsOfTile + row];
      acc[0] += f * x.x, acc[1] += f * x.y, acc[2] += f * x.z, acc[3] += f * x.w;
    }
    float z;
    const bool has_sink = sink_of<T>(p, h, &z);
    z *= kLog2e;
    const float m = m_l[row], top = has_sink ? fmaxf(m, z) : m, base = top == -kInf ? 0.0f : top;
    const float f = exp2_approx(m - base), sum = m_l[kRowsOfTile + row] * f + (has_sink ? exp2_approx(z - base) : 0.0f);
    T* const out = reinterpret_cast<T*>(row_at(p.output, tile.b, h, tile.e.first_row + tile.s_of(row))) + c;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float y = sum == 0.0f ? 0.0f : acc[j] * (f / sum);
      bad = bad || !(fabsf(y) < kInf);
      out[j] = from_float<T>(y * v_scale_of(p, tile.g, c + j));
    }
  }
  // A weight of 0 does not hide a NaN or infinity of a value row that only other rows see, and an infinity has no low part.
  if (__syncthreads_or(bad && redo))
    for (int row = 0; row < tile.n_rows; ++row) attend_row<T>(p, tile.e, tile.b, tile.h_of(row), tile.s_of(row), scratch);
}

}  // namespace hotset::cuda::attn

// SPDX-License-Identifier: Apache-2.0
// 16 query rows of a warp in prefill: their softmax states, and what is done to the accumulators of tensor-core products.
#pragma once
#include "cuda/attention_mma.cuh"
#include "cuda/attention_row.cuh"

namespace hotset::cuda::attn {

constexpr int kTileKeys = 64;

// Of a lane: rows lane / 4 (r = 0) and lane / 4 + 8 (r = 1); accumulators hold columns 8 j + lane % 4 * 2 + c % 2 of row r = c / 2.
struct Piece {
  int lo[2], hi[2];  // visible keys
  float m[2], l[2];  // largest logit before the scale, this lane's part of the sum

  // `first`: of the piece among the rows of the batch entry; rows behind `last` see what it sees.
  __device__ void begin(const AttentionParams& p, const Step& e, int first, int last) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int s = min(first + static_cast<int>(threadIdx.x % 32 / 4) + 8 * r, last);
      lo[r] = first_visible(p, e, s);
      hi[r] = end_visible(p, e, s);
      m[r] = -kInf;
      l[r] = 0;
    }
  }

  // Logits of keys from `base` on become weights; change[r] is what older weights are multiplied with. `scale` takes logits to
  // base 2.
  __device__ void add(const AttentionParams& p, const KeyRows& k, int base, bool masked, float scale, float (&x)[kTileKeys / 8][4],
                      float (&change)[2]) {
    if (p.softcap > 0.0f) {
#pragma unroll
      for (int j = 0; j < kTileKeys / 8; ++j)
#pragma unroll
        for (int c = 0; c < 4; ++c) x[j][c] = cap(x[j][c] * p.scale, p.softcap);
    }
    if (masked) {
#pragma unroll
      for (int j = 0; j < kTileKeys / 8; ++j)
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const int key = base + 8 * j + static_cast<int>(threadIdx.x % 4) * 2 + c % 2;
          if (key < lo[c / 2] || key >= hi[c / 2] || !k.has(key)) x[j][c] = -kInf;
        }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = m[r];
#pragma unroll
      for (int j = 0; j < kTileKeys / 8; ++j) top = fmaxf(top, fmaxf(x[j][2 * r], x[j][2 * r + 1]));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
      const float offset = top == -kInf ? 0.0f : top * scale;
      change[r] = exp2_approx(m[r] * scale - offset);
      m[r] = top;
      float sum = 0;
#pragma unroll
      for (int j = 0; j < kTileKeys / 8; ++j)
#pragma unroll
        for (int c = 2 * r; c < 2 * r + 2; ++c) {
          x[j][c] = exp2_approx(x[j][c] * scale - offset);
          sum += x[j][c];
        }
      l[r] = l[r] * change[r] + sum;
    }
  }

  // Writes the rows that exist; sets bits of bad_rows for those that are not finite. `first`: of the piece in the tile that begins
  // at row tile_row and has n_rows.
  template <class T, int DP>
  __device__ void write(const AttentionParams& p, const Step& e, int b, int h, int tile_row, int first, int n_rows, float scale,
                        const float (&o)[DP / 8][4], std::uint32_t* bad_rows) {
    const int lane = threadIdx.x % 32;
    float z;
    const bool has_sink = sink_of<T>(p, h, &z);
    z *= kLog2e;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      l[r] += __shfl_xor_sync(0xffffffffu, l[r], 1);
      l[r] += __shfl_xor_sync(0xffffffffu, l[r], 2);
      const int row = first + lane / 4 + 8 * r;
      if (row >= n_rows) continue;
      const float own = m[r] * scale, top = has_sink ? fmaxf(own, z) : own, offset = top == -kInf ? 0.0f : top;
      const float change = exp2_approx(own - offset), sum = l[r] * change + (has_sink ? exp2_approx(z - offset) : 0.0f);
      const float factor = sum == 0.0f ? 0.0f : change / sum;
      T* const out = reinterpret_cast<T*>(row_at(p.output, b, h, e.first_row + tile_row + row));
      bool bad = false;
#pragma unroll
      for (int j = 0; j < DP / 8; ++j) {
        const int c = 8 * j + lane % 4 * 2;
        const float y0 = o[j][2 * r] * factor, y1 = o[j][2 * r + 1] * factor;
        bad = bad || !(fabsf(y0) < kInf) || !(fabsf(y1) < kInf);
        if (c < p.d) *reinterpret_cast<std::uint32_t*>(out + c) = pack<T>(y0, y1);
      }
      if (bad) atomicOr(&bad_rows[row / 32], 1u << row % 32);
    }
  }
};

// A block's tile of query rows of one head. Tiles with most keys come first.
struct RowTile {
  int b, h, g, first_row, n_rows, begin, end;  // rows that exist; keys that one of them sees
  __device__ RowTile(const AttentionParams& p, const Step& e, int rows)
      : b(blockIdx.y),
        h(blockIdx.x % p.heads),
        g(h / (p.heads / p.kv_heads)),
        first_row((gridDim.x / p.heads - 1 - blockIdx.x / p.heads) * rows),
        n_rows(min(e.rows - first_row, rows)) {
    begin = n_rows > 0 ? first_visible(p, e, first_row) : 0;
    end = n_rows > 0 ? end_visible(p, e, first_row + n_rows - 1) : 0;
  }
  // Rows of padding among `rows`.
  template <class T>
  __device__ void clear_padding(const AttentionParams& p, const Step& e, int rows) const {
    for (int i = max(n_rows, 0) * p.d + threadIdx.x; i < min(e.all_rows - first_row, rows) * p.d; i += blockDim.x)
      reinterpret_cast<T*>(row_at(p.output, b, h, e.first_row + first_row + i / p.d))[i % p.d] = from_float<T>(0.0f);
  }
};

}  // namespace hotset::cuda::attn

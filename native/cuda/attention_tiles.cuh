// SPDX-License-Identifier: Apache-2.0
// Attention of many query rows (prefill) in float16 or bfloat16 with mma.sync.
//
// A block is (batch entry, query head, kTileRows rows), four warps of 16 * kM rows each. Tiles of 64 keys of K and V come to shared
// memory two deep by cp.async; 16-byte pieces of a row lie XORed with the row so that ldmatrix meets no bank twice. Keys that no
// row of the block sees are never loaded, a warp leaves out tiles that its own rows do not see.
//   1. Q to shared memory   2. per tile: S = Q * K, cap, mask, online softmax in base 2, O += P * V   3. sink, division, rounding
//   4. rows whose result is not finite are taken alone: a weight of 0 does not hide a NaN that only other rows see
#pragma once
#include "cuda/attention_piece.cuh"

namespace hotset::cuda::attn {

constexpr int kTileWarps = 4;

// DP: head sizes up to it; M: 16-row pieces of a warp, so that a fragment of K or V serves M products.
template <class T, int DP, int M>
struct TilesShape {
  static constexpr int kRows = kTileWarps * 16 * M;
  static constexpr int kKeys = kTileKeys;
  static constexpr int kPieces = DP / 8;  // of 16 bytes in a row
  static constexpr int kTileBytes = kKeys * DP * 2;
  static constexpr int kQBytes = kRows * DP * 2;
  static constexpr bool kKeepsQ = M * DP <= 128;  // fragments of Q stay in registers
};

__device__ inline void ldmatrix(std::uint32_t (&r)[4], std::uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(from)
               : "memory");
}
__device__ inline void ldmatrix_transposed(std::uint32_t (&r)[4], std::uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(from)
               : "memory");
}

// Byte of piece `piece` of row `row` in a tile.
template <int DP>
__device__ inline std::uint32_t piece_at(int row, int piece) {
  return static_cast<std::uint32_t>(row * DP * 2 + ((piece ^ (row & 7)) << 4));
}

template <class T, int DP, int M>
__device__ inline void attend_tiles(const AttentionParams& p) {
  using Shape = TilesShape<T, DP, M>;
  constexpr int kKeys = Shape::kKeys, kPieces = Shape::kPieces, kThreads = 32 * kTileWarps;
  extern __shared__ __align__(128) char shared[];
  __shared__ std::uint32_t bad_rows[Shape::kRows / 32];
  wait_for_predecessor();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Step e = step_of(p, blockIdx.y);
  const RowTile rows(p, e, Shape::kRows);
  rows.clear_padding<T>(p, e, Shape::kRows);
  const int b = rows.b, h = rows.h, first_row = rows.first_row, n_rows = rows.n_rows, begin = rows.begin, end = rows.end;
  if (n_rows <= 0) return;
  const KeyRows k_from = k_rows(p, e, b, rows.g), v_from = v_rows(p, e, b, rows.g);
  const std::uint32_t q_tile = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  const std::uint32_t kv_tiles = q_tile + Shape::kQBytes;  // K, V, K, V
  const int n_tiles = (end - begin + kKeys - 1) / kKeys;

  const int piece = threadIdx.x % kPieces;
  const bool real_piece = piece * 8 < p.d;
  const auto load = [&](int tile) {
    const std::uint32_t to = kv_tiles + tile % 2 * 2 * Shape::kTileBytes;
#pragma unroll
    for (int i = 0; i < kKeys * kPieces / kThreads; ++i) {
      const int row = threadIdx.x / kPieces + i * (kThreads / kPieces), key = begin + tile * kKeys + row;
      const int at = min(key, end - 1);
      const bool real = real_piece && key < end && k_from.has(key);
      const int byte = real ? piece * 16 : 0;
      copy_async<16>(to + piece_at<DP>(row, piece), k_from.at(at) + byte, real);
      copy_async<16>(to + Shape::kTileBytes + piece_at<DP>(row, piece), v_from.at(at) + byte, real);
    }
    end_copy_group();
  };
#pragma unroll
  for (int i = 0; i < Shape::kRows * kPieces / kThreads; ++i) {
    const int row = threadIdx.x / kPieces + i * (kThreads / kPieces);
    const bool real = real_piece && row < n_rows;
    copy_async<16>(q_tile + piece_at<DP>(row, piece),
                   row_at(p.q, b, h, e.first_row + first_row + (row < n_rows ? row : 0)) + (real ? piece * 16 : 0), real);
  }
  if (n_tiles > 0) load(0);
  if (threadIdx.x < Shape::kRows / 32) bad_rows[threadIdx.x] = 0;

  const int warp_row = warp * 16 * M;
  Piece piece_of[M];
  float o[M][DP / 8][4];
#pragma unroll
  for (int i = 0; i < M; ++i) {
    piece_of[i].begin(p, e, first_row + warp_row + 16 * i, first_row + n_rows - 1);
#pragma unroll
    for (int j = 0; j < DP / 8; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) o[i][j][c] = 0;
  }
  const int warp_last = first_row + min(warp_row + 16 * M, n_rows) - 1;
  const int all_from = first_visible(p, e, warp_last), none_from = end_visible(p, e, warp_last);
  const int all_to = end_visible(p, e, first_row + min(warp_row, n_rows - 1)),
            none_to = first_visible(p, e, first_row + min(warp_row, n_rows - 1));
  const bool idle = warp_row >= n_rows;
  const float scale = p.softcap > 0.0f ? kLog2e : p.scale * kLog2e;

  std::uint32_t q[Shape::kKeepsQ ? M : 1][Shape::kKeepsQ ? DP / 16 : 1][4];
  for (int t = 0; t < n_tiles; ++t) {
    wait_copy_groups<0>();
    __syncthreads();
    if (t + 1 < n_tiles) load(t + 1);
    if constexpr (Shape::kKeepsQ) {
      if (t == 0) {
#pragma unroll
        for (int i = 0; i < M; ++i)
#pragma unroll
          for (int c = 0; c < DP / 16; ++c) ldmatrix(q[i][c], q_tile + piece_at<DP>(warp_row + 16 * i + lane % 16, 2 * c + lane / 16));
      }
    }
    const int base = begin + t * kKeys;
    if (idle || base >= none_from || base + kKeys <= none_to) continue;
    const std::uint32_t k_tile = kv_tiles + t % 2 * 2 * Shape::kTileBytes, v_tile = k_tile + Shape::kTileBytes;

    float x[M][kKeys / 8][4] = {};
#pragma unroll
    for (int c = 0; c < DP / 16; ++c) {
      std::uint32_t q_read[M][4];
      if constexpr (!Shape::kKeepsQ) {
#pragma unroll
        for (int i = 0; i < M; ++i) ldmatrix(q_read[i], q_tile + piece_at<DP>(warp_row + 16 * i + lane % 16, 2 * c + lane / 16));
      }
#pragma unroll
      for (int j = 0; j < kKeys / 16; ++j) {
        std::uint32_t k[4];
        ldmatrix(k, k_tile + piece_at<DP>(16 * j + lane / 16 * 8 + lane % 8, 2 * c + lane / 8 % 2));
#pragma unroll
        for (int i = 0; i < M; ++i) {
          const std::uint32_t (&a)[4] = Shape::kKeepsQ ? q[Shape::kKeepsQ ? i : 0][Shape::kKeepsQ ? c : 0] : q_read[i];
          mma_16816<T>(x[i][2 * j], a[0], a[1], a[2], a[3], k[0], k[1]);
          mma_16816<T>(x[i][2 * j + 1], a[0], a[1], a[2], a[3], k[2], k[3]);
        }
      }
    }

    const bool masked = base < all_from || base + kKeys > all_to || k_from.table;
#pragma unroll
    for (int i = 0; i < M; ++i) {
      float change[2];
      piece_of[i].add(p, k_from, base, masked, scale, x[i], change);
#pragma unroll
      for (int j = 0; j < DP / 8; ++j)
#pragma unroll
        for (int c = 0; c < 4; ++c) o[i][j][c] *= change[c / 2];
    }
#pragma unroll
    for (int c = 0; c < kKeys / 16; ++c) {
      std::uint32_t w[M][4];
#pragma unroll
      for (int i = 0; i < M; ++i) {
        w[i][0] = pack<T>(x[i][2 * c][0], x[i][2 * c][1]);
        w[i][1] = pack<T>(x[i][2 * c][2], x[i][2 * c][3]);
        w[i][2] = pack<T>(x[i][2 * c + 1][0], x[i][2 * c + 1][1]);
        w[i][3] = pack<T>(x[i][2 * c + 1][2], x[i][2 * c + 1][3]);
      }
#pragma unroll
      for (int j = 0; j < DP / 16; ++j) {
        std::uint32_t v[4];
        ldmatrix_transposed(v, v_tile + piece_at<DP>(16 * c + lane % 16, 2 * j + lane / 16));
#pragma unroll
        for (int i = 0; i < M; ++i) {
          mma_16816<T>(o[i][2 * j], w[i][0], w[i][1], w[i][2], w[i][3], v[0], v[1]);
          mma_16816<T>(o[i][2 * j + 1], w[i][0], w[i][1], w[i][2], w[i][3], v[2], v[3]);
        }
      }
    }
  }
  release_successor();

#pragma unroll
  for (int i = 0; i < M; ++i) piece_of[i].template write<T, DP>(p, e, b, h, first_row, warp_row + 16 * i, n_rows, scale, o[i], bad_rows);
  __syncthreads();
  for (int row = 0; row < n_rows; ++row)
    if (bad_rows[row / 32] >> row % 32 & 1) attend_row<T>(p, e, b, h, first_row + row, reinterpret_cast<float*>(shared));
}

}  // namespace hotset::cuda::attn

// Kernels hotset_attention_tiles_<name>_<64|128|256>; grid (N * row tiles, B), block 128.
#define HOTSET_ATTENTION_TILES_OF(name, T, DP, M, blocks)                                             \
  extern "C" __global__ void __launch_bounds__(128, blocks)                                           \
      hotset_attention_tiles_##name##_##DP(const __grid_constant__ hotset::cuda::AttentionParams p) { \
    hotset::cuda::attn::attend_tiles<T, DP, M>(p);                                                    \
  }
#define HOTSET_ATTENTION_TILES(name, T)         \
  HOTSET_ATTENTION_TILES_OF(name, T, 64, 2, 2)  \
  HOTSET_ATTENTION_TILES_OF(name, T, 128, 2, 2) \
  HOTSET_ATTENTION_TILES_OF(name, T, 256, 1, 1)

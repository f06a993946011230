// SPDX-License-Identifier: Apache-2.0
// Attention of many query rows (prefill) in float16 or bfloat16 on sm_90a, with warpgroup products.
//
// A block is (batch entry, query head, 128 rows): two warpgroups of 64 rows, Q in registers, K and V in shared memory two tiles deep.
// A tile's weights are made while the tensor cores multiply those of the tile before it with V:
//   1. wait for K of tile t + 1 and V of tile t; start loading K of t + 2 and V of t + 1
//   2. start x = Q * K of t + 1 and O += P * V of t   3. wait for x, softmax   4. wait for O, bring it to the new maximum, P = x
// The rest is that of attention_tiles.cuh.
#pragma once
#include "cuda/attention_tiles.cuh"
#include "cuda/wgmma.cuh"

namespace hotset::cuda::attn {

__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// What other instructions wrote to shared memory is there for the tensor cores.
__device__ inline void fence_for_wgmma() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Shared memory matrix descriptor (PTX ISA, "Matrix Descriptor Format"), 128-byte swizzle: groups of 8 rows are 1024 bytes apart;
// `leading`: bytes between blocks of 64 columns of a matrix that is read by columns.
__device__ inline std::uint64_t wgmma_descriptor(std::uint32_t address, std::uint32_t leading) {
  return static_cast<std::uint64_t>(1) << 62 | static_cast<std::uint64_t>(1024 >> 4) << 32 |
         static_cast<std::uint64_t>(leading >> 4) << 16 | (address & 0x3ffff) >> 4;
}

// The same number in every lane, told to the compiler: products of a warpgroup must not lie behind branches that could diverge.
__device__ inline int uniform(int x) { return __shfl_sync(0xffffffffu, x, 0); }

constexpr int kWgmmaRows = 128;

// A tile of 64 keys is DP / 64 blocks of rows of 128 bytes.
template <class T, int DP>
__device__ inline void attend_wgmma(const AttentionParams& p) {
  constexpr int kKeys = kTileKeys, kPieces = DP / 8, kThreads = 256, kTileBytes = kKeys * DP * 2, kBlockBytes = kKeys * 128;
  constexpr bool kBf16 = sizeof(T) == 2 && !__is_same(T, __half);
  extern __shared__ __align__(1024) char shared[];
  __shared__ std::uint32_t bad_rows[kWgmmaRows / 32];
  wait_for_predecessor();
  const Step e = step_of(p, blockIdx.y);
  const RowTile rows(p, e, kWgmmaRows);
  rows.clear_padding<T>(p, e, kWgmmaRows);
  if (rows.n_rows <= 0) return;
  const int lane = threadIdx.x % 32, begin = rows.begin, end = rows.end, n_rows = rows.n_rows;
  const KeyRows k_from = k_rows(p, e, rows.b, rows.g), v_from = v_rows(p, e, rows.b, rows.g);
  const std::uint32_t base_address = (static_cast<std::uint32_t>(__cvta_generic_to_shared(shared)) + 1023) & ~1023u;
  const std::uint32_t k_tiles = base_address, v_tiles = base_address + 2 * kTileBytes;  // Q lies where V will
  const int n_tiles = uniform((end - begin + kKeys - 1) / kKeys);

  const int piece = threadIdx.x % kPieces;
  const bool real_piece = piece * 8 < p.d;
  const auto byte_of = [&](int row, int rows_of_block) {
    return static_cast<std::uint32_t>(piece / 8 * rows_of_block * 128 + row * 128 + ((piece % 8 ^ (row & 7)) << 4));
  };
  const auto load = [&](const KeyRows& from, std::uint32_t tiles, int tile) {
    if (tile >= n_tiles) return;
#pragma unroll
    for (int i = 0; i < kKeys * kPieces / kThreads; ++i) {
      const int row = threadIdx.x / kPieces + i * (kThreads / kPieces), key = begin + tile * kKeys + row;
      const bool real = real_piece && key < end && k_from.has(key);
      copy_async<16>(tiles + tile % 2 * kTileBytes + byte_of(row, kKeys), from.at(min(key, end - 1)) + (real ? piece * 16 : 0), real);
    }
  };
#pragma unroll
  for (int i = 0; i < kWgmmaRows * kPieces / kThreads; ++i) {
    const int row = threadIdx.x / kPieces + i * (kThreads / kPieces);
    const bool real = real_piece && row < n_rows;
    copy_async<16>(v_tiles + byte_of(row, kWgmmaRows),
                   row_at(p.q, rows.b, rows.h, e.first_row + rows.first_row + (row < n_rows ? row : 0)) + (real ? piece * 16 : 0), real);
  }
  load(k_from, k_tiles, 0);
  end_copy_group();
  if (threadIdx.x < kWgmmaRows / 32) bad_rows[threadIdx.x] = 0;
  wait_copy_groups<0>();
  fence_for_wgmma();
  __syncthreads();

  const int warp_row = static_cast<int>(threadIdx.x / 32) * 16, group_row = static_cast<int>(threadIdx.x / 128) * 64;
  std::uint32_t q[DP / 16][4];
#pragma unroll
  for (int c = 0; c < DP / 16; ++c) {
    const int row = warp_row + lane % 16, at = 2 * c + lane / 16;
    ldmatrix(q[c], v_tiles + at / 8 * kWgmmaRows * 128 + row * 128 + ((at % 8 ^ (row & 7)) << 4));
  }
  __syncthreads();
  load(v_from, v_tiles, 0);
  load(k_from, k_tiles, 1);
  end_copy_group();

  Piece state;
  state.begin(p, e, rows.first_row + warp_row, rows.first_row + n_rows - 1);
  float o[DP / 8][4], x[kKeys / 8][4] = {};
#pragma unroll
  for (int j = 0; j < DP / 8; ++j)
#pragma unroll
    for (int c = 0; c < 4; ++c) o[j][c] = 0;
  // What the rows of the warpgroup see: tiles [first, last), with every key of [all_from, all_to).
  const bool idle = group_row >= n_rows;
  const int first_s = rows.first_row + min(group_row, n_rows - 1), last_s = rows.first_row + min(group_row + 64, n_rows) - 1;
  const int all_from = first_visible(p, e, last_s), all_to = end_visible(p, e, first_s);
  const int first = uniform(idle ? n_tiles : (first_visible(p, e, first_s) - begin) / kKeys);
  const int last = uniform(idle ? 0 : (end_visible(p, e, last_s) - begin + kKeys - 1) / kKeys);
  const float scale = p.softcap > 0.0f ? kLog2e : p.scale * kLog2e;

  const auto start_logits = [&](int t) {
    wgmma_fence();
    const std::uint64_t k = wgmma_descriptor(k_tiles + t % 2 * kTileBytes, 16);
    Wgmma<kKeys, kBf16, false, false>::run(&x[0][0], q[0], k);
#pragma unroll
    for (int c = 1; c < DP / 16; ++c) Wgmma<kKeys, kBf16>::run(&x[0][0], q[c], k + (c / 4 * kBlockBytes + c % 4 * 32) / 16);
    wgmma_commit();
  };
  std::uint32_t w[kKeys / 16][4];
  float change[2];
  const auto make_weights = [&](int t) {
    const int base = begin + t * kKeys;
    state.add(p, k_from, base, base < all_from || base + kKeys > all_to || k_from.table, scale, x, change);
  };
  const auto take_weights = [&] {
#pragma unroll
    for (int j = 0; j < DP / 8; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) o[j][c] *= change[c / 2];
#pragma unroll
    for (int c = 0; c < kKeys / 16; ++c) {
      w[c][0] = pack<T>(x[2 * c][0], x[2 * c][1]);
      w[c][1] = pack<T>(x[2 * c][2], x[2 * c][3]);
      w[c][2] = pack<T>(x[2 * c + 1][0], x[2 * c + 1][1]);
      w[c][3] = pack<T>(x[2 * c + 1][2], x[2 * c + 1][3]);
    }
  };
  const auto add_values = [&](int t) {
    wgmma_fence();
    const std::uint64_t v = wgmma_descriptor(v_tiles + t % 2 * kTileBytes, kBlockBytes);
#pragma unroll
    for (int c = 0; c < kKeys / 16; ++c) Wgmma<DP, kBf16, true>::run(&o[0][0], w[c], v + c * 16 * 128 / 16);
    wgmma_commit();
  };
  // All warpgroups turn over all tiles together: K of t + 1 and V of t are there afterwards.
  const auto turn = [&](int t) {
    wait_copy_groups<0>();
    fence_for_wgmma();
    asm volatile("bar.sync 0, 256;" ::: "memory");
    load(k_from, k_tiles, t + 2);
    load(v_from, v_tiles, t + 1);
    end_copy_group();
  };
  int t = 0;
  for (; t < first; ++t) turn(t);
  if (first < last) {
    start_logits(first);
    wgmma_wait<0>();
    make_weights(first);
    take_weights();
    for (; t < last - 1; ++t) {
      turn(t);
      start_logits(t + 1);
      add_values(t);
      wgmma_wait<1>();
      make_weights(t + 1);
      wgmma_wait<0>();
      take_weights();
    }
    turn(t);
    add_values(t);
    wgmma_wait<0>();
    ++t;
  }
  for (; t < n_tiles; ++t) turn(t);
  release_successor();

  state.write<T, DP>(p, e, rows.b, rows.h, rows.first_row, warp_row, n_rows, scale, o, bad_rows);
  __syncthreads();
  for (int row = 0; row < n_rows; ++row)
    if (bad_rows[row / 32] >> row % 32 & 1) attend_row<T>(p, e, rows.b, rows.h, rows.first_row + row, reinterpret_cast<float*>(shared));
}

}  // namespace hotset::cuda::attn

// SPDX-License-Identifier: Apache-2.0
// Dense products of few rows, and of any form.
#include "cuda/float_types.cuh"
#include "cuda/matmul_params.h"

namespace hotset::cuda::dense {
namespace {

__device__ float finish(const MatMulParams& p, float sum, std::int64_t i, std::int64_t j) {
  sum *= p.alpha;
  if (p.addend) sum += p.beta * load_typed(p.addend, p.addend_type, i * p.addend_row + j * p.addend_column);
  return sum;
}

// 16 x 16 results a block, through shared tiles of 16 x 16 operands.
template <class T>
__device__ void product_any(const MatMulParams& p) {
  __shared__ float tile_a[16][17], tile_b[16][17];
  release_successor();
  wait_for_predecessor();
  const int x = threadIdx.x % 16, y = threadIdx.x / 16;
  const T* const a = static_cast<const T*>(p.a) + blockIdx.z * p.a_batch;
  const T* const b = static_cast<const T*>(p.b) + blockIdx.z * p.b_batch;
  const std::int64_t i0 = static_cast<std::int64_t>(blockIdx.y) * 16, j0 = static_cast<std::int64_t>(blockIdx.x) * 16;
  float sum = 0;
  for (int k0 = 0; k0 < p.k; k0 += 16) {
    // Neighbours in memory by neighbouring threads.
    const int ai = p.a_column == 1 ? y : x, ak = p.a_column == 1 ? x : y, bk = p.b_column == 1 ? y : x, bj = p.b_column == 1 ? x : y;
    tile_a[ai][ak] = i0 + ai < p.m && k0 + ak < p.k ? to_float(a[(i0 + ai) * p.a_row + (k0 + ak) * p.a_column]) : 0.0f;
    tile_b[bk][bj] = j0 + bj < p.n && k0 + bk < p.k ? to_float(b[(k0 + bk) * p.b_row + (j0 + bj) * p.b_column]) : 0.0f;
    __syncthreads();
#pragma unroll
    for (int k = 0; k < 16; ++k) sum = fmaf(tile_a[y][k], tile_b[k][x], sum);
    __syncthreads();
  }
  const std::int64_t i = i0 + y, j = j0 + x;
  if (i < p.m && j < p.n) static_cast<T*>(p.c)[blockIdx.z * p.c_batch + i * p.ldc + j] = from_float<T>(finish(p, sum, i, j));
}

// B [k, n]. A block owns 2^lanes_shift vectors of 16 bytes along n; its threads go down k side by side. Blocks of a cluster (sm_90)
// share the columns and take k_part rows of B each. Sums are added in a fixed order: within a warp by shuffles, then over the warps,
// then over the blocks. kUnroll loads of a thread are on their way before it waits for the kernel before this one.
//
// shared:  activations [rows][k_part] as float32 | sums [warps][rows][lanes * kSize] | totals [rows][lanes * kSize]
constexpr int kUnroll = 8;

__device__ void meet_cluster(int blocks) {
#if __CUDA_ARCH__ >= 900
  if (blocks > 1) asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
// A float in the shared memory of another block of the cluster.
__device__ float read_block(const float* at, int block) {
  float x = 0;
#if __CUDA_ARCH__ >= 900
  unsigned address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(address)
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(at))), "r"(block));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(address) : "memory");
#endif
  return x;
}

template <class T, int rows>
__device__ void columns(const MatMulParams& p) {
  constexpr int kSize = Vector<T>::kSize;
  extern __shared__ float shared[];
  const int lanes = 1 << p.lanes_shift, lane = threadIdx.x & (lanes - 1), strip = threadIdx.x >> p.lanes_shift,
            strips = blockDim.x >> p.lanes_shift;
  const int part = blockIdx.x % p.parts, k0 = part * p.k_part, k1 = min(p.k, k0 + p.k_part), first = k0 + strip;
  const std::int64_t group = blockIdx.x / p.parts, j0 = (group * lanes + lane) * kSize, step = strips * p.b_row;
  const T* b = static_cast<const T*>(p.b) + (j0 < p.n ? j0 : 0) + first * p.b_row;
  if (!p.b_ready) wait_for_predecessor();
  uint4 w[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    if (first + u * strips < k1) w[u] = load_packed(b + u * step);
  }
  release_successor();
  wait_for_predecessor();
  const T* const a = static_cast<const T*>(p.a);
  float* const sums = shared + rows * p.k_part;
#pragma unroll
  for (int r = 0; r < rows; ++r) {
    for (int k = threadIdx.x; k < k1 - k0; k += blockDim.x) shared[r * p.k_part + k] = r < p.m ? to_float(a[r * p.a_row + k0 + k]) : 0.0f;
  }
  __syncthreads();
  float sum[rows][kSize] = {};
  for (int k = first; k < k1; k += kUnroll * strips) {
    b += kUnroll * step;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int at = k + u * strips;
      if (at >= k1) break;
      float now[kSize];
      unpack<T>(w[u], now);
#pragma unroll
      for (int r = 0; r < rows; ++r) {
        const float x = shared[r * p.k_part + at - k0];
#pragma unroll
        for (int i = 0; i < kSize; ++i) sum[r][i] = fmaf(x, now[i], sum[r][i]);
      }
      // Last, into the registers that are free now: a copy of a register would wait for its load.
      if (at + kUnroll * strips < k1) w[u] = load_packed(b + u * step);
    }
  }
  const int width = lanes * kSize, warp = threadIdx.x / 32, warps = blockDim.x / 32;
#pragma unroll
  for (int r = 0; r < rows; ++r) {
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      for (int distance = 16; distance >= lanes; distance /= 2) sum[r][i] += __shfl_xor_sync(~0u, sum[r][i], distance);
      if (threadIdx.x % 32 < lanes) sums[(warp * rows + r) * width + lane * kSize + i] = sum[r][i];
    }
  }
  __syncthreads();
  float* const totals = sums + warps * rows * width;
  for (int e = threadIdx.x; e < p.m * width; e += blockDim.x) {
    float total = 0;
    for (int s = 0; s < warps; ++s) total += sums[s * rows * width + e];
    totals[e] = total;
  }
  if (p.parts > 1)
    meet_cluster(p.parts);
  else
    __syncthreads();
  if (part == 0) {
    for (int e = threadIdx.x; e < p.m * width; e += blockDim.x) {
      float total = totals[e];
      for (int other = 1; other < p.parts; ++other) total += read_block(totals + e, other);
      const std::int64_t r = e / width, j = group * width + e % width;
      if (j < p.n) static_cast<T*>(p.c)[r * p.ldc + j] = from_float<T>(finish(p, total, r, j));
    }
  }
  meet_cluster(p.parts);  // nobody leaves before its totals are read
}

// B [n, k]: a warp owns one n, its lanes vectors along k.
template <class T, int rows>
__device__ void dots(const MatMulParams& p) {
  constexpr int kSize = Vector<T>::kSize;
  const int lane = threadIdx.x % 32;
  const std::int64_t j = static_cast<std::int64_t>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  const bool inside = j < p.n;
  const T* const b = static_cast<const T*>(p.b) + (inside ? j : 0) * p.b_column;
  if (!p.b_ready) wait_for_predecessor();
  uint4 w[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    if ((lane + u * 32) * kSize < p.k) w[u] = load_packed(b + (lane + u * 32) * kSize);
  }
  release_successor();
  wait_for_predecessor();
  if (!inside) return;
  const T* const a = static_cast<const T*>(p.a);
  float sum[rows] = {};
  for (int k0 = lane * kSize; k0 < p.k; k0 += kUnroll * 32 * kSize) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int at = k0 + u * 32 * kSize;
      if (at < p.k) {
        float now[kSize];
        unpack<T>(w[u], now);
#pragma unroll
        for (int r = 0; r < rows; ++r) {
          if (r < p.m) {
            float x[kSize];
            unpack<T>(load_packed(a + r * p.a_row + at), x);
#pragma unroll
            for (int i = 0; i < kSize; ++i) sum[r] = fmaf(x[i], now[i], sum[r]);
          }
        }
      }
      const int next = at + kUnroll * 32 * kSize;
      if (next < p.k) w[u] = load_packed(b + next);
    }
  }
#pragma unroll
  for (int r = 0; r < rows; ++r) {
    const float total = warp_sum(sum[r]);
    if (lane == 0 && r < p.m) static_cast<T*>(p.c)[r * p.ldc + j] = from_float<T>(finish(p, total, r, j));
  }
}

}  // namespace
}  // namespace hotset::cuda::dense

#define HOTSET_MATMUL_ROWS(T, suffix, rows)                                                                                        \
  extern "C" __global__ void __launch_bounds__(256) hotset_matmul_columns_##suffix##_m##rows(const hotset::cuda::MatMulParams p) { \
    hotset::cuda::dense::columns<T, rows>(p);                                                                                      \
  }                                                                                                                                \
  extern "C" __global__ void __launch_bounds__(256) hotset_matmul_dots_##suffix##_m##rows(const hotset::cuda::MatMulParams p) {    \
    hotset::cuda::dense::dots<T, rows>(p);                                                                                         \
  }
#define HOTSET_MATMUL(T, suffix)                                                                                     \
  extern "C" __global__ void __launch_bounds__(256) hotset_matmul_any_##suffix(const hotset::cuda::MatMulParams p) { \
    hotset::cuda::dense::product_any<T>(p);                                                                          \
  }                                                                                                                  \
  HOTSET_MATMUL_ROWS(T, suffix, 1)                                                                                   \
  HOTSET_MATMUL_ROWS(T, suffix, 2)                                                                                   \
  HOTSET_MATMUL_ROWS(T, suffix, 4)                                                                                   \
  HOTSET_MATMUL_ROWS(T, suffix, 8)
HOTSET_MATMUL(hotset::cuda::Half, f16)
HOTSET_MATMUL(hotset::cuda::Bfloat, bf16)
HOTSET_MATMUL(float, f32)

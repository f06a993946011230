// SPDX-License-Identifier: Apache-2.0
// Routing of rows to experts, the sorting of routes by expert, and x in the form that FC1 takes. The rules are those of
// experts/router.h.
//
// hotset_moe_route: a warp a row. One block with a warp a row also sorts the routes (few rows), or several blocks of 8 rows leave
// that to hotset_moe_group. The blocks behind `router_blocks` of them prepare x.
#include "cuda/moe_common.cuh"

namespace {

using namespace hotset::cuda;
using namespace hotset::cuda::moe;

constexpr float kJitter = 0.01f;       // of the sparse mixer
constexpr float kSmallestSum = 1e-6f;  // softmax weights with a smaller sum are not divided by it
constexpr uint32_t kAll = 0xffffffffu;

__device__ float rank_key(float logit) { return logit == logit ? logit + 0.0f : -INFINITY; }
// Rises with x; 0 is below every float.
__device__ uint32_t ordered(float x) {
  const uint32_t u = __float_as_uint(x);
  return u >> 31 ? ~u : u | 0x80000000u;
}

__device__ float warp_sum(float x) {
  for (int step = 16; step; step /= 2) x += __shfl_xor_sync(kAll, x, step);
  return x;
}

// Of the logits that no lane has marked in `taken` (bit i: expert lane + 32 i), the largest, the lower id on ties.
__device__ uint32_t select_next(const float* logits, uint32_t n, uint32_t lane, uint32_t taken) {
  uint32_t best = 0, best_id = kAll;
  for (uint32_t e = lane, i = 0; e < n; e += 32, ++i) {
    if (taken >> i & 1) continue;
    const uint32_t key = ordered(rank_key(logits[e]));
    if (best_id == kAll || key > best) {
      best = key;
      best_id = e;
    }
  }
  const uint32_t top = __reduce_max_sync(kAll, best_id == kAll ? 0 : best);
  return __reduce_min_sync(kAll, best == top && best_id != kAll ? best_id : kAll);
}

// The k largest of up to 32 * kHeld logits, which stay in registers: key i of a lane belongs to expert lane + 32 i, 0 is none.
constexpr int kHeld = 8;
__device__ void select_held(const float* logits, uint32_t n, uint32_t k, uint32_t lane, int32_t* ids) {
  uint32_t keys[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) keys[i] = lane + 32 * i < n ? ordered(rank_key(logits[lane + 32 * i])) : 0;
  for (uint32_t j = 0; j < k; ++j) {
    uint32_t best = keys[0], place = 0;
#pragma unroll
    for (int i = 1; i < kHeld; ++i) {
      if (keys[i] > best) {
        best = keys[i];
        place = i;
      }
    }
    const uint32_t top = __reduce_max_sync(kAll, best), id = __reduce_min_sync(kAll, best == top ? lane + 32 * place : kAll);
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      if (id == lane + 32 * i) keys[i] = 0;
    if (lane == 0) ids[j] = static_cast<int32_t>(id);
  }
}

__device__ void mix_sparsely(const float* logits, uint32_t n, uint32_t lane, int32_t* ids, float* weights) {
  uint32_t taken = 0, first = kAll;
  for (int j = 0; j < 2; ++j) {
    const uint32_t best = select_next(logits, n, lane, taken);
    const float top = logits[best];
    float sum = 0;
    for (uint32_t e = lane; e < n; e += 32) {
      const float size = fabsf(logits[e]);
      const bool far = top - logits[e] > 2 * kJitter * (size < top ? top : size);
      if (!far && e != first) sum += expf(logits[e] - top);
    }
    sum = warp_sum(sum);
    if (best % 32 == lane) taken |= 1u << best / 32;
    first = best;
    if (lane == 0) {
      ids[j] = static_cast<int32_t>(best);
      weights[j] = expf(top - top) / sum;  // top - top: NaN when top is not finite
    }
  }
}

// One row by one warp. `logits`: [n] in shared memory, `ids` [k] too. Weights go to global memory.
__device__ void route_row(const MoeRouterParams& p, uint32_t t, uint32_t lane, float* logits, int32_t* ids, float* shared_weights) {
  const uint32_t n = p.n_experts, k = p.k;
  for (uint32_t e = lane; e < n; e += 32) logits[e] = load_as_float(p.type, p.logits, static_cast<uint64_t>(t) * n + e);
  __syncwarp();
  float* const weights = shared_weights;
  if (p.sparse_mixer) {
    mix_sparsely(logits, n, lane, ids, weights);
    __syncwarp();
  } else {
    if (n <= 32 * kHeld) {
      select_held(logits, n, k, lane, ids);
    } else {
      uint32_t taken = 0;
      for (uint32_t j = 0; j < k; ++j) {
        const uint32_t best = select_next(logits, n, lane, taken);
        if (best % 32 == lane) taken |= 1u << best / 32;
        if (lane == 0) ids[j] = static_cast<int32_t>(best);
      }
    }
    __syncwarp();
    if (p.given) {
      for (uint32_t j = lane; j < k; j += 32) weights[j] = load_as_float(p.given_type, p.given, static_cast<uint64_t>(t) * n + ids[j]);
    } else {
      const float top = rank_key(logits[ids[0]]);
      float sum = 0;
      for (uint32_t e = lane; e < n; e += 32) sum += expf(logits[e] - top);
      sum = warp_sum(sum);
      for (uint32_t j = lane; j < k; j += 32) weights[j] = expf(logits[ids[j]] - top) / sum;
    }
    __syncwarp();
    if (p.normalize) {
      float sum = 0;
      for (uint32_t j = 0; j < k; ++j) sum += weights[j];  // in the order of routes
      __syncwarp();
      for (uint32_t j = lane; j < k; j += 32) {
        if (p.given)
          weights[j] = sum == 0 ? 0.0f : weights[j] / sum;
        else if (sum > kSmallestSum)
          weights[j] /= sum;
      }
      __syncwarp();
    }
  }
  for (uint32_t j = lane; j < k; j += 32) {
    p.ids[static_cast<uint64_t>(t) * k + j] = ids[j];
    p.weights[static_cast<uint64_t>(t) * k + j] = weights[j];
  }
}

// Sorts routes by expert: `ids` [routes] in any memory, `counts` [2 n_experts] in shared memory. All threads of one block.
__device__ void sort_routes(const MoeRouterParams& p, const int32_t* ids, uint32_t routes, uint32_t* counts) {
  const uint32_t n = p.n_experts, thread = threadIdx.x;
  uint32_t* const first = counts + n;
  for (uint32_t e = thread; e < n; e += blockDim.x) counts[e] = 0;
  __syncthreads();
  for (uint32_t r = thread; r < routes; r += blockDim.x) atomicAdd(&counts[ids[r]], 1u);
  __syncthreads();
  if (thread < 32) {
    uint32_t row = 0, group = 0, tile = 0;
    for (uint32_t base = 0; base < n; base += 32) {
      const uint32_t e = base + thread, rows = e < n ? counts[e] : 0, tiles = p.tiles ? (rows + p.tile_rows - 1) / p.tile_rows : 0;
      uint32_t rows_to = rows, tiles_to = tiles;  // inclusive sums
      for (int step = 1; step < 32; step *= 2) {
        const uint32_t a = __shfl_up_sync(kAll, rows_to, step), b = __shfl_up_sync(kAll, tiles_to, step);
        if (thread >= step) {
          rows_to += a;
          tiles_to += b;
        }
      }
      const uint32_t used = __ballot_sync(kAll, rows > 0), g = group + __popc(used & ((1u << thread) - 1));
      if (e < n) first[e] = row + rows_to - rows;
      if (e < n && p.offsets) p.offsets[e] = static_cast<int32_t>(row + rows_to - rows);
      if (rows) {
        p.groups[g] = {e, row + rows_to - rows, rows, 0};
        for (uint32_t i = 0; i < tiles; ++i) p.tiles[tile + tiles_to - tiles + i] = g | i << 16;
      }
      row += __shfl_sync(kAll, rows_to, 31);
      tile += __shfl_sync(kAll, tiles_to, 31);
      group += __popc(used);
    }
    if (thread == 0) {
      p.counts[0] = group;
      p.counts[1] = tile;
      if (p.offsets) p.offsets[n] = static_cast<int32_t>(row);
    }
  }
  __syncthreads();
}

__device__ void prepare_x(const MoeRouterParams& p) {
  const uint64_t n = static_cast<uint64_t>(p.n_tokens) * p.hidden, stride = static_cast<uint64_t>(gridDim.x - p.router_blocks) * blockDim.x;
  for (uint64_t i = static_cast<uint64_t>(blockIdx.x - p.router_blocks) * blockDim.x + threadIdx.x; i < n; i += stride)
    store_row_element(p.rows, p.x_type, p.prepared, i / p.hidden, p.hidden, static_cast<uint32_t>(i % p.hidden),
                      load_as_float(p.x_type, p.x, i));
}

}  // namespace

// Dynamic shared memory: logits [warps][E] | ids [warps][k] | weights [warps][k] | counts [2 E].
extern "C" __global__ void hotset_moe_route(const __grid_constant__ MoeRouterParams p) {
  extern __shared__ float shared[];
  wait_for_predecessor();
  release_successor();
  if (blockIdx.x >= p.router_blocks) return prepare_x(p);
  const uint32_t warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32, t = blockIdx.x * warps + warp;
  int32_t* const ids = reinterpret_cast<int32_t*>(shared + warps * p.n_experts);
  float* const weights = reinterpret_cast<float*>(ids + warps * p.k);
  if (t < p.n_tokens) route_row(p, t, lane, shared + warp * p.n_experts, ids + warp * p.k, weights + warp * p.k);
  if (!p.counts) return;
  __syncthreads();
  const uint32_t routes = p.n_tokens * p.k;
  if (p.n_tokens == 1) {
    for (uint32_t j = threadIdx.x; j < routes; j += blockDim.x) {
      p.groups[j] = {static_cast<uint32_t>(ids[j]), j, 1, 0};
      p.order[j] = static_cast<int32_t>(j);
    }
    if (threadIdx.x == 0) p.counts[0] = routes;
    return;
  }
  uint32_t* const counts = reinterpret_cast<uint32_t*>(weights + warps * p.k);
  sort_routes(p, ids, routes, counts);
  for (uint32_t r = threadIdx.x; r < routes; r += blockDim.x) {
    uint32_t before = 0;
    for (uint32_t i = 0; i < r; ++i) before += ids[i] == ids[r];
    p.order[counts[p.n_experts + ids[r]] + before] = static_cast<int32_t>(r);
  }
}

// Many rows, one block. Dynamic shared memory: counts [2 E]. Rows of a group come in no certain order: no result depends on it.
extern "C" __global__ void hotset_moe_group(const __grid_constant__ MoeRouterParams p) {
  extern __shared__ float shared[];
  wait_for_predecessor();
  release_successor();
  uint32_t* const counts = reinterpret_cast<uint32_t*>(shared);
  const uint32_t routes = p.n_tokens * p.k;
  sort_routes(p, p.ids, routes, counts);
  for (uint32_t r = threadIdx.x; r < routes; r += blockDim.x) {
    const uint32_t place = atomicAdd(&counts[p.n_experts + p.ids[r]], 1u);
    p.order[place] = static_cast<int32_t>(r);
    p.places[r] = static_cast<int32_t>(place);
    p.sorted_rows[place] = static_cast<int32_t>(r / p.k);
  }
}

// y = the weighted sum of the rows of each token, in the order of routes, products and sums rounded as the CPU does it (no fused
// multiply-add). A thread owns `width` neighbours of a row of y.
template <int width>
__device__ void sum_rows(const MoeSumParams& p) {
  const uint32_t c = (blockIdx.y * blockDim.x + threadIdx.x) * width, t = blockIdx.x;
  if (c >= p.n) return;
  float sum[width];
  for (uint32_t j = 0; j < p.k; ++j) {
    const uint64_t route = static_cast<uint64_t>(t) * p.k + j, at = (p.places ? p.places[route] : route) * static_cast<uint64_t>(p.n) + c;
    const float weight = p.weights[route];
    const MoePlace* const fc2 = p.bias_type == MoeType::none ? nullptr : &p.experts[p.ids[route]].fc[1];
    alignas(16) uint16_t row[width];
    if (width == 8) *reinterpret_cast<uint4*>(row) = *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(p.rows) + at);
#pragma unroll
    for (int i = 0; i < width; ++i) {
      float x = width == 8 ? load_as_float(p.type, row, i) : load_as_float(p.type, p.rows, at + i);
      if (fc2) x += bias_at(p.bias_type, *fc2, c + i);
      const float share = __fmul_rn(weight, x);
      sum[i] = j == 0 ? share : __fadd_rn(sum[i], share);
    }
  }
  if constexpr (width == 1) {
    store_as(p.type, p.y, static_cast<uint64_t>(t) * p.n + c, sum[0]);
  } else {
    alignas(16) uint16_t out[width];
#pragma unroll
    for (int i = 0; i < width; ++i) store_as(p.type, out, i, sum[i]);
    *reinterpret_cast<uint4*>(static_cast<uint16_t*>(p.y) + static_cast<uint64_t>(t) * p.n + c) = *reinterpret_cast<const uint4*>(out);
  }
}

extern "C" __global__ void hotset_moe_sum(const __grid_constant__ MoeSumParams p) {
  wait_for_predecessor();
  release_successor();
  sum_rows<1>(p);
}
// Types of 16 bits, n a multiple of 8, y at a multiple of 16.
extern "C" __global__ void hotset_moe_sum_by_8(const __grid_constant__ MoeSumParams p) {
  wait_for_predecessor();
  release_successor();
  sum_rows<8>(p);
}

// SPDX-License-Identifier: Apache-2.0
// Grouped products of a prompt's rows with int4 expert weights on sm_90a.
//
// The weights are the A operand of wgmma: a thread loads 16 bytes of codes of each of its two rows straight from global memory and
// makes float16 or bfloat16 of them in registers; no weight goes through shared memory. The rows of x are the B operand, brought by
// the copy engine. That order of operands makes the tile's wide side the tokens of one expert:
//
//     tile   128 rows of W (two warpgroups of 64)  x  up to 192 tokens, a multiple of 32
//     chunk  128 columns of the inner size: 8 steps of 16
//
// Both operands name the columns of a chunk in the same order, chunk_column(), so their sum is that of the natural order.
// Blocks are persistent: block b computes tiles b, b + blocks, ... of a list that every block derives from the row counts.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/moe_wgmma_params.h"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "cuda/moe_wgmma_operands.cuh"
#include "cuda/sm90.cuh"
#include "cuda/wgmma.cuh"
#define HOTSET_HAS_WGMMA 1
#endif

namespace hotset::cuda {
namespace {

constexpr int kConsumers = 256;             // threads of the two warpgroups that compute
constexpr int kThreads = kConsumers + 128;  // and of the one that copies
constexpr int kMaxTokens = 192;             // of a tile
constexpr int kStages = 4;
[[maybe_unused]] constexpr int kHalfRow = 64;  // elements of a row of 128 bytes
constexpr int kStageBytes = kMaxTokens * kWgmmaChunk * 2;
constexpr int kPatchBytes = 32 * 32;         // a warp's results of 32 tokens on their way out
[[maybe_unused]] constexpr int kRows = 128;  // of W in a tile

struct Shared {
  alignas(1024) unsigned char stage[kStages][kStageBytes];
  unsigned char patch[kConsumers / 32][kPatchBytes];
  alignas(8) std::uint64_t full[kStages], empty[kStages];
  std::int32_t first_tile[kWgmmaMaxExperts + 1];
  std::int32_t partial[kThreads / 32];
};

#ifdef HOTSET_HAS_WGMMA

__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

__device__ __forceinline__ float activate(const MoeWgmmaParams& p, float gate, float value) {
  if (p.activation == 1) {  // tanh form
    const float inner = 0.7978845608f * (gate + 0.044715f * gate * gate * gate);
    return 0.5f * gate * (1.0f + tanhf(inner)) * value;
  }
  float g = p.limit_after ? gate : gate > p.limit ? p.limit : gate;  // NaN stays
  g *= sigmoid(p.alpha * g);
  if (p.limit_after && g > p.limit) g = p.limit;
  const float l = value > p.limit ? p.limit : value < -p.limit ? -p.limit : value;
  return g * (l + p.beta);
}

struct Tile {
  int expert, row_tile, first_row, tokens, n_tokens;  // tokens: of this tile; n_tokens: rounded up to 32
};

// Tokens of an expert are split into equal tiles of at most 192.
__device__ __forceinline__ int token_tiles(int rows) { return (rows + kMaxTokens - 1) / kMaxTokens; }

__device__ __forceinline__ Tile find_tile(const MoeWgmmaParams& p, const std::int32_t* first_tile, int row_tiles, int index) {
  int low = 0, high = p.experts;  // first_tile[low] <= index < first_tile[high]
  while (high - low > 1) {
    const int middle = (low + high) >> 1;
    (first_tile[middle] <= index ? low : high) = middle;
  }
  const int begin = p.offsets[low], rows = p.offsets[low + 1] - begin;
  const int tiles = token_tiles(rows), within = index - first_tile[low];
  const int token_tile = within / row_tiles;
  const int share = ((rows + tiles - 1) / tiles + 31) & ~31;
  const int from = min(token_tile * share, rows);
  const int count = min(share, rows - from);
  return {low, within - token_tile * row_tiles, begin + from, count, (count + 31) & ~31};
}

// first_tile[e]: number of tiles of the experts before e.
__device__ void list_tiles(const MoeWgmmaParams& p, Shared& shared, int row_tiles) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  int carry = 0;
  for (int base = 0; base < p.experts; base += kThreads) {
    const int e = base + static_cast<int>(threadIdx.x);
    int mine = e < p.experts ? token_tiles(p.offsets[e + 1] - p.offsets[e]) * row_tiles : 0;
    int sum = mine;
    for (int d = 1; d < 32; d <<= 1) {
      const int other = __shfl_up_sync(~0u, sum, d);
      if (lane >= d) sum += other;
    }
    if (lane == 31) shared.partial[warp] = sum;
    __syncthreads();
    int before = carry, all = carry;
    for (int w = 0; w < kThreads / 32; ++w) {
      if (w < warp) before += shared.partial[w];
      all += shared.partial[w];
    }
    if (e < p.experts) shared.first_tile[e] = before + sum - mine;
    carry = all;
    __syncthreads();
  }
  if (threadIdx.x == 0) shared.first_tile[p.experts] = carry;
  __syncthreads();
}

// Position of the ring of stages; copier and consumers walk it alike.
struct Ring {
  int stage = 0, parity = 0;
  __device__ __forceinline__ void next() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// The rows of x of a tile, chunk by chunk, through the ring: one thread.
__device__ __forceinline__ void copy_tile(const MoeWgmmaParams& p, const TensorMap* map, Shared& shared, const Tile& tile, Ring& ring) {
  const int chunks = (p.k + kWgmmaChunk - 1) / kWgmmaChunk;
  for (int chunk = 0; chunk < chunks; ++chunk, ring.next()) {
    barrier_wait(&shared.empty[ring.stage], ring.parity ^ 1);
    barrier_expect(&shared.full[ring.stage], tile.n_tokens * kWgmmaChunk * 2);
    unsigned char* to = shared.stage[ring.stage];
    for (int half = 0; half < 2; ++half)
      for (int row = 0; row < tile.n_tokens; row += 32)
        copy_box(to + (half * tile.n_tokens + row) * 128, map, &shared.full[ring.stage], chunk * kWgmmaChunk + half * kHalfRow,
                 tile.first_row + row);
  }
}

__device__ __forceinline__ void copy_tiles(const MoeWgmmaParams& p, const TensorMap* map, Shared& shared, int row_tiles, int tiles) {
  Ring ring;
  for (int t = static_cast<int>(blockIdx.x); t < tiles; t += static_cast<int>(gridDim.x)) {
    const Tile tile = find_tile(p, shared.first_tile, row_tiles, t);
    if (tile.n_tokens) copy_tile(p, map, shared, tile, ring);
  }
}

// A bias is added to the product rounded to T.
template <class T>
__device__ __forceinline__ float biased(float sum, float bias) {
  return static_cast<float>(T(sum)) + bias;
}

template <class T, bool kGated, int N>
__device__ __forceinline__ void store_tile(const MoeWgmmaParams& p, const Tile& tile, unsigned char* patch, const float* d, int position,
                                           bool valid, float bias0, float bias1) {
  const int lane = threadIdx.x & 31;
  constexpr int kRowBytes = kGated ? 16 : 32;  // a warp's results of one token
  T* const out = static_cast<T*>(p.out);
#pragma unroll
  for (int j = 0; j < N / 8; j += 4) {  // 32 tokens
    if constexpr (kGated) {
      std::uint32_t r[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* v = d + 4 * (j + i);
        const float a = activate(p, biased<T>(v[0], bias0), biased<T>(v[2], bias1));
        const float b = activate(p, biased<T>(v[1], bias0), biased<T>(v[3], bias1));
        r[i] = valid ? Pair<T>::round(a, b) : 0;
      }
      store_turned(shared_address(patch + lane * kRowBytes), r);
    } else {
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const float* v = d + 4 * (j + i);
        const std::uint32_t r[4] = {Pair<T>::round(v[0], v[1]), Pair<T>::round(v[2], v[3]), Pair<T>::round(v[4], v[5]),
                                    Pair<T>::round(v[6], v[7])};
        // Matrices: rows 0-7 and 8-15 of tokens 8 (j + i), then of the next eight.
        const int token = 8 * (i + (lane >> 4)) + (lane & 7);
        store_turned(shared_address(patch + token * kRowBytes + (lane >> 3 & 1) * 16), r);
      }
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kRowBytes / 16; ++i) {
      const int piece = i * 32 + lane;
      const int token = kGated ? piece : piece >> 1, part = kGated ? 0 : piece & 1;
      const uint4 v = *reinterpret_cast<const uint4*>(patch + piece * 16);
      const int row = 8 * j + token, column = position + part * 8;
      if (row < tile.tokens && column < p.out_columns)
        *reinterpret_cast<uint4*>(out + static_cast<std::int64_t>(tile.first_row + row) * p.out_columns + column) = v;
    }
    __syncwarp();
  }
}

// A tile as one consumer thread sees it, and the first two chunks of its rows of W on their way to registers.
template <class T, bool kGated>
struct Work {
  Tile tile;
  int position;  // first output of the warp
  bool valid;    // whether this thread's output exists
  int row0, row1;
  Row<T> first, second;
  Codes<T> now0, now1, next0, next1;

  __device__ __forceinline__ void begin(const MoeWgmmaParams& p, const Tile& of) {
    tile = of;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    // The two rows of W of this thread: gate and value of one output, or two outputs eight apart.
    if constexpr (kGated) {
      position = tile.row_tile * (kRows / 2) + warp * 8;
      const int at = position + (lane >> 2);
      const int n = (at & ~(kWgmmaChunk - 1)) + chunk_column(at & (kWgmmaChunk - 1));
      valid = n < p.n;
      row0 = (valid ? n : 0) * p.row_step;
      row1 = p.value_row + row0;
    } else {
      position = tile.row_tile * kRows + warp * 16;
      valid = true;
      row0 = min(position + (lane >> 2), p.n - 1);
      row1 = min(position + (lane >> 2) + 8, p.n - 1);
    }
    const bool separate = kGated && p.value_weights;
    first.find(p, p.weights, p.scales, p.zeros, tile.expert, row0);
    second.find(p, separate ? p.value_weights : p.weights, separate ? p.value_scales : p.scales, separate ? p.value_zeros : p.zeros,
                tile.expert, row1);
    const int column = 32 * (lane & 3);
    now0.load(first, p, column);
    now1.load(second, p, column);
    next0.load(first, p, kWgmmaChunk + column);
    next1.load(second, p, kWgmmaChunk + column);
  }
};

// Steps S and S + 1 of a chunk as one group of products. Returns when the group before it is done.
template <int S, int N, class T>
__device__ __forceinline__ void step_pair(float* d, std::uint32_t* a, const Factors<T>& row0, const Factors<T>& row1, std::uint64_t b) {
  constexpr bool kBf16 = Pair<T>::kOffset == 128;
  constexpr std::uint64_t kHalf = static_cast<std::uint64_t>(N * 128) >> 4;
  operand_of<S>(a, row0, row1);
  operand_of<S + 1>(a + 4, row0, row1);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  Wgmma<N, kBf16>::run(d, a, b + (S >> 2) * kHalf + (S & 3) * 2);
  Wgmma<N, kBf16>::run(d, a + 4, b + (S >> 2) * kHalf + ((S + 1) & 3) * 2);
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
}

template <class T, bool kGated>
__device__ __forceinline__ void load_next(Work<T, kGated>& w, const MoeWgmmaParams& p, int chunk, int column) {
  w.next0.load(w.first, p, (chunk + 2) * kWgmmaChunk + column);
  w.next1.load(w.second, p, (chunk + 2) * kWgmmaChunk + column);
}

template <class T, bool kGated, int N>
__device__ __forceinline__ void multiply(const MoeWgmmaParams& p, Shared& shared, Work<T, kGated>& w, Ring& ring, float* d) {
  const int lane = threadIdx.x & 31, column = 32 * (lane & 3);
  const int chunks = (p.k + kWgmmaChunk - 1) / kWgmmaChunk;
#pragma unroll
  for (int i = 0; i < N / 2; ++i) d[i] = 0;
  std::uint32_t a[2][8];
  int done = -1;  // stage whose products are under way
  for (int chunk = 0; chunk < chunks; ++chunk, ring.next()) {
    const bool inside = chunk * kWgmmaChunk + column < p.k;
    const Factors<T> factors0(w.now0, inside), factors1(w.now1, inside);
    w.now0 = w.next0, w.now1 = w.next1;
    load_next(w, p, chunk, column);
    barrier_wait(&shared.full[ring.stage], ring.parity);
    const std::uint64_t b = operand(shared.stage[ring.stage]);
    step_pair<0, N>(d, a[0], factors0, factors1, b);
    if (lane == 0 && done >= 0) barrier_arrive(&shared.empty[done]);
    step_pair<2, N>(d, a[1], factors0, factors1, b);
    step_pair<4, N>(d, a[0], factors0, factors1, b);
    step_pair<6, N>(d, a[1], factors0, factors1, b);
    done = ring.stage;
  }
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  if (lane == 0) barrier_arrive(&shared.empty[done]);
}

// `after`: the tile this block computes next; its weights are asked for before the results of this one are written.
template <class T, bool kGated, int N>
__device__ __forceinline__ void compute_tile(const MoeWgmmaParams& p, Shared& shared, Work<T, kGated>& w, const Tile* after, Ring& ring) {
  float d[N / 2];
  multiply<T, kGated, N>(p, shared, w, ring, d);
  const Tile tile = w.tile;
  const int position = w.position, warp = threadIdx.x >> 5;
  const bool valid = w.valid;
  float bias0 = 0, bias1 = 0;
  if (kGated && p.biases) bias0 = static_cast<float>(reinterpret_cast<const T*>(p.biases[tile.expert])[w.row0]);
  const std::uint64_t* const value_biases = kGated && p.value_weights ? p.value_biases : p.biases;
  if (kGated && value_biases) bias1 = static_cast<float>(reinterpret_cast<const T*>(value_biases[tile.expert])[w.row1]);
  if (after) w.begin(p, *after);
  store_tile<T, kGated, N>(p, tile, shared.patch[warp], d, position, valid, bias0, bias1);
}

template <class T, bool kGated>
__device__ __forceinline__ void compute_tiles(const MoeWgmmaParams& p, Shared& shared, int row_tiles, int tiles) {
  Ring ring;
  Work<T, kGated> w;
  int t = static_cast<int>(blockIdx.x);
  if (t < tiles) w.begin(p, find_tile(p, shared.first_tile, row_tiles, t));
  while (t < tiles) {
    t += static_cast<int>(gridDim.x);
    Tile following;
    if (t < tiles) following = find_tile(p, shared.first_tile, row_tiles, t);
    const Tile* const after = t < tiles ? &following : nullptr;
    switch (w.tile.n_tokens >> 5) {
      case 1:
        compute_tile<T, kGated, 32>(p, shared, w, after, ring);
        break;
      case 2:
        compute_tile<T, kGated, 64>(p, shared, w, after, ring);
        break;
      case 3:
        compute_tile<T, kGated, 96>(p, shared, w, after, ring);
        break;
      case 4:
        compute_tile<T, kGated, 128>(p, shared, w, after, ring);
        break;
      case 5:
        compute_tile<T, kGated, 160>(p, shared, w, after, ring);
        break;
      case 6:
        compute_tile<T, kGated, 192>(p, shared, w, after, ring);
        break;
      default:
        if (after) w.begin(p, *after);
    }
  }
}

template <class T, bool kGated>
__device__ __forceinline__ void grouped_product(const MoeWgmmaParams& p, const TensorMap* map) {
  extern __shared__ unsigned char raw[];
  Shared& shared = *reinterpret_cast<Shared*>((reinterpret_cast<std::uintptr_t>(raw) + 1023) & ~std::uintptr_t{1023});
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      barrier_init(&shared.full[s], 1);
      barrier_init(&shared.empty[s], kConsumers / 32);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  asm volatile("griddepcontrol.wait;" ::: "memory");
  const int columns = kGated ? kRows / 2 : kRows;
  const int row_tiles = (p.out_columns + columns - 1) / columns;
  list_tiles(p, shared, row_tiles);
  const int tiles = shared.first_tile[p.experts];
  if (threadIdx.x >= kConsumers) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == kConsumers) copy_tiles(p, map, shared, row_tiles, tiles);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    compute_tiles<T, kGated>(p, shared, row_tiles, tiles);
  }
}

#else

template <class T, bool kGated>
__device__ __forceinline__ void grouped_product(const MoeWgmmaParams&, const TensorMap*) {}

#endif

// One block moves one row: columns in chunk order, zeros behind the last.
__device__ __forceinline__ void gather(const MoeGatherParams& p) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  const int padded = (p.k + kWgmmaChunk - 1) & ~(kWgmmaChunk - 1);
  const auto* const from = static_cast<const std::uint16_t*>(p.x) + static_cast<std::int64_t>(p.sorted_rows[blockIdx.x]) * p.k;
  std::uint16_t* const to = static_cast<std::uint16_t*>(p.out) + static_cast<std::int64_t>(blockIdx.x) * padded;
  // A thread makes a step of 16 places from 8 pairs of neighbours: the first of each goes to its first half, the other to the second.
  for (int at = static_cast<int>(threadIdx.x) * 16; at < padded; at += static_cast<int>(blockDim.x) * 16) {
    const int first = (at & ~(kWgmmaChunk - 1)) + chunk_column(at & (kWgmmaChunk - 1));
    std::uint32_t v[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int column = first + chunk_column(i);
      v[i] = column < p.k ? *reinterpret_cast<const std::uint32_t*>(from + column) : 0;
    }
    const auto low = [&](int i) { return __byte_perm(v[i], v[i + 1], 0x5410); };
    const auto high = [&](int i) { return __byte_perm(v[i], v[i + 1], 0x7632); };
    uint4* const out = reinterpret_cast<uint4*>(to + at);
    out[0] = make_uint4(low(0), low(2), low(4), low(6));
    out[1] = make_uint4(high(0), high(2), high(4), high(6));
  }
}

}  // namespace

extern "C" {
__global__ void __launch_bounds__(kThreads, 1)
    hotset_moe_wgmma_f16(const __grid_constant__ MoeWgmmaParams p, const __grid_constant__ TensorMap map) {
  grouped_product<__half, false>(p, &map);
}
__global__ void __launch_bounds__(kThreads, 1)
    hotset_moe_wgmma_gated_f16(const __grid_constant__ MoeWgmmaParams p, const __grid_constant__ TensorMap map) {
  grouped_product<__half, true>(p, &map);
}
__global__ void __launch_bounds__(kThreads, 1)
    hotset_moe_wgmma_bf16(const __grid_constant__ MoeWgmmaParams p, const __grid_constant__ TensorMap map) {
  grouped_product<__nv_bfloat16, false>(p, &map);
}
__global__ void __launch_bounds__(kThreads, 1)
    hotset_moe_wgmma_gated_bf16(const __grid_constant__ MoeWgmmaParams p, const __grid_constant__ TensorMap map) {
  grouped_product<__nv_bfloat16, true>(p, &map);
}
__global__ void hotset_moe_gather_chunks(const __grid_constant__ MoeGatherParams p) { gather(p); }
}

}  // namespace hotset::cuda

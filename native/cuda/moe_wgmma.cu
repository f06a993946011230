// SPDX-License-Identifier: Apache-2.0
// Grouped products of a prompt's rows with int4 expert weights on sm_90a.
//
// The weights are the A operand of wgmma: a thread loads 16 bytes of codes of each of its two rows straight from global memory and
// makes float16 or bfloat16 of them in registers; no weight goes through shared memory. The rows of x are the B operand, brought by
// the copy engine. That order of operands makes the tile's wide side the tokens of one expert:
//
//     tile   128 rows of W (two warpgroups of 64)  x  up to 256 tokens, a multiple of 32
//     chunk  128 columns of the inner size: 8 steps of 16
//
// Both operands name the columns of a chunk in the same order, chunk_column(), so their sum is that of the natural order.
// Blocks are persistent: block b computes tiles b, b + blocks, ... of a list that every block derives from the row counts.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/moe_wgmma_params.h"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "cuda/wgmma.cuh"
#define HOTSET_HAS_WGMMA 1
#endif

namespace hotset::cuda {
namespace {

constexpr int kConsumers = 256;             // threads of the two warpgroups that compute
constexpr int kThreads = kConsumers + 128;  // and of the one that copies
constexpr int kMaxTokens = 256;             // of a tile
constexpr int kStages = 3;
constexpr int kHalfRow = 64;  // elements of a row of 128 bytes
constexpr int kStageBytes = kMaxTokens * kWgmmaChunk * 2;
constexpr int kPatchBytes = 32 * 32;  // a warp's results of 32 tokens on their way out
constexpr int kRows = 128;            // of W in a tile

struct Shared {
  alignas(1024) unsigned char stage[kStages][kStageBytes];
  unsigned char patch[kConsumers / 32][kPatchBytes];
  alignas(8) std::uint64_t full[kStages], empty[kStages];
  std::int32_t first_tile[kWgmmaMaxExperts + 1];
  std::int32_t partial[kThreads / 32];
};

#ifdef HOTSET_HAS_WGMMA

__device__ __forceinline__ std::uint32_t shared_address(const void* p) { return static_cast<std::uint32_t>(__cvta_generic_to_shared(p)); }

__device__ __forceinline__ void barrier_init(std::uint64_t* barrier, int count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count));
}
__device__ __forceinline__ void barrier_arrive(std::uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
__device__ __forceinline__ void barrier_expect(std::uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_wait(std::uint64_t* barrier, int parity) {
  asm volatile("{\n.reg .pred p;\nAGAIN:\nmbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@p bra DONE;\nbra AGAIN;\nDONE:\n}" ::"r"(
                   shared_address(barrier)),
               "r"(parity)
               : "memory");
}
// 32 rows of 64 elements from (column, row) of the map on.
__device__ __forceinline__ void copy_box(void* to, const TensorMap* map, std::uint64_t* barrier, int column, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(to)),
      "l"(map), "r"(column), "r"(row), "r"(shared_address(barrier))
      : "memory");
}

// Rows of x for wgmma: K-major, rows of 128 bytes, 128-byte swizzle, 1024 bytes from one group of eight rows to the next.
__device__ __forceinline__ std::uint64_t operand(const void* p) {
  return (std::uint64_t{1} << 62) | (std::uint64_t{64} << 32) | (std::uint64_t{1} << 16) | ((shared_address(p) & 0x3ffff) >> 4);
}

// Two 16-bit floats in a register.
template <class T>
struct Pair;
template <>
struct Pair<__half> {
  static constexpr std::uint32_t kMagic = 0x64006400;  // 1024: the low bits of the mantissa count ones
  static constexpr float kOffset = 1024;
  static __device__ __forceinline__ std::uint32_t both(__half v) { return __half_as_ushort(v) * 0x10001u; }
  static __device__ __forceinline__ std::uint32_t round(float a, float b) {
    std::uint32_t r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(b), "f"(a));
    return r;
  }
  // (v + offset) * scale, each operation rounded
  static __device__ __forceinline__ std::uint32_t scaled(std::uint32_t v, std::uint32_t offset, std::uint32_t scale) {
    std::uint32_t r;
    asm("{.reg .b32 t; add.rn.f16x2 t, %1, %2; mul.rn.f16x2 %0, t, %3;}" : "=r"(r) : "r"(v), "r"(offset), "r"(scale));
    return r;
  }
};
template <>
struct Pair<__nv_bfloat16> {
  static constexpr std::uint32_t kMagic = 0x43004300;  // 128
  static constexpr float kOffset = 128;
  static __device__ __forceinline__ std::uint32_t both(__nv_bfloat16 v) { return __bfloat16_as_ushort(v) * 0x10001u; }
  static __device__ __forceinline__ std::uint32_t round(float a, float b) {
    std::uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(b), "f"(a));
    return r;
  }
  static __device__ __forceinline__ std::uint32_t scaled(std::uint32_t v, std::uint32_t offset, std::uint32_t scale) {
    std::uint32_t r;
    asm("{.reg .b32 t; add.rn.bf16x2 t, %1, %2; mul.rn.bf16x2 %0, t, %3;}" : "=r"(r) : "r"(v), "r"(offset), "r"(scale));
    return r;
  }
};

// What a thread reads of one row of W: where its codes, scales and zero points are.
template <class T>
struct Row {
  const unsigned char* codes;
  const T* scales;
  const unsigned char* zeros;

  __device__ __forceinline__ Row(const MoeWgmmaParams& p, const std::uint64_t* weights, const std::uint64_t* scale_table,
                                 const std::uint64_t* zero_table, int expert, std::int64_t row) {
    codes = reinterpret_cast<const unsigned char*>(weights[expert]) + row * (p.k >> 1);
    scales = reinterpret_cast<const T*>(scale_table[expert]) + row * p.blocks;
    zeros = zero_table ? reinterpret_cast<const unsigned char*>(zero_table[expert]) + row * ((p.blocks + 1) >> 1) : nullptr;
  }
};

// 32 codes of a row with their scale.
template <class T>
struct Codes {
  uint4 words;
  std::uint32_t scale, offset;  // twice each; offset: what to add to a code under the magic exponent

  // No branch: behind the last column the last codes are read again and count nothing.
  __device__ __forceinline__ void load(const Row<T>& row, const MoeWgmmaParams& p, int column) {
    const bool inside = column < p.k;
    column = inside ? column : p.k - 32;
    words = __ldg(reinterpret_cast<const uint4*>(row.codes + (column >> 1)));
    const int block = column >> p.block_shift;
    scale = inside ? Pair<T>::both(row.scales[block]) : 0;
    const int z = row.zeros ? row.zeros[block >> 1] >> ((block & 1) * 4) & 15 : 8;
    offset = Pair<T>::both(T(-(Pair<T>::kOffset + static_cast<float>(z))));
  }
  // Two codes of word W: nibbles I and I + 4.
  template <int W, int I>
  __device__ __forceinline__ std::uint32_t pair() const {
    const std::uint32_t word = W == 0 ? words.x : W == 1 ? words.y : W == 2 ? words.z : words.w;
    return Pair<T>::scaled((word >> (4 * I) & 0x000f000f) | Pair<T>::kMagic, offset, scale);
  }
};

// Step S of a chunk: registers of the A operand.
template <int S, class T>
__device__ __forceinline__ void operand_of(std::uint32_t* a, const Codes<T>& row0, const Codes<T>& row1) {
  a[0] = row0.template pair<S / 2, 2 * (S & 1)>();
  a[1] = row1.template pair<S / 2, 2 * (S & 1)>();
  a[2] = row0.template pair<S / 2, 2 * (S & 1) + 1>();
  a[3] = row1.template pair<S / 2, 2 * (S & 1) + 1>();
  // Not before the wait that freed these registers, not behind the fence that hands them over.
  asm volatile("" : "+r"(a[0]), "+r"(a[1]), "+r"(a[2]), "+r"(a[3])::"memory");
}

__device__ __forceinline__ float sigmoid(float x) {
  const float e = __expf(-fabsf(x));
  return (x >= 0 ? 1.0f : e) / (1.0f + e);
}

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

// Tokens of an expert are split into equal tiles of at most 256.
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

// Eight rows of 16-bit results times eight tokens, four times, turned around: token rows of 16 bytes at the lanes' addresses.
__device__ __forceinline__ void store_turned(std::uint32_t address, const std::uint32_t* r) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r[0]), "r"(r[1]), "r"(r[2]),
               "r"(r[3])
               : "memory");
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

template <class T, bool kGated, int N>
__device__ __forceinline__ void compute_tile(const MoeWgmmaParams& p, Shared& shared, const Tile& tile, Ring& ring) {
  constexpr bool kBf16 = Pair<T>::kOffset == 128;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, quad = lane & 3;
  // The two rows of W of this thread: gate and value of one output, or two outputs eight apart.
  int position, n0, n1;
  std::int64_t row0, row1;
  bool valid;
  if constexpr (kGated) {
    position = tile.row_tile * (kRows / 2) + warp * 8;
    const int at = position + (lane >> 2);
    n0 = n1 = (at & ~(kWgmmaChunk - 1)) + chunk_column(at & (kWgmmaChunk - 1));
    valid = n0 < p.n;
    const int n = valid ? n0 : 0;
    row0 = static_cast<std::int64_t>(n) * p.row_step;
    row1 = p.value_row + static_cast<std::int64_t>(n) * p.row_step;
  } else {
    position = tile.row_tile * kRows + warp * 16;
    n0 = position + (lane >> 2);
    n1 = n0 + 8;
    valid = true;
    row0 = min(n0, p.n - 1);
    row1 = min(n1, p.n - 1);
  }
  const bool separate = kGated && p.value_weights;
  const Row<T> first(p, p.weights, p.scales, p.zeros, tile.expert, row0);
  const Row<T> second(p, separate ? p.value_weights : p.weights, separate ? p.value_scales : p.scales, separate ? p.value_zeros : p.zeros,
                      tile.expert, row1);
  const int chunks = (p.k + kWgmmaChunk - 1) / kWgmmaChunk;
  Codes<T> now0, now1, next0, next1, far0, far1;  // of this chunk and the two behind it
  now0.load(first, p, 32 * quad);
  now1.load(second, p, 32 * quad);
  next0.load(first, p, kWgmmaChunk + 32 * quad);
  next1.load(second, p, kWgmmaChunk + 32 * quad);
  float d[N / 2];
#pragma unroll
  for (int i = 0; i < N / 2; ++i) d[i] = 0;
  std::uint32_t a[2][4];
  for (int chunk = 0; chunk < chunks; ++chunk, ring.next()) {
    far0.load(first, p, (chunk + 2) * kWgmmaChunk + 32 * quad);
    far1.load(second, p, (chunk + 2) * kWgmmaChunk + 32 * quad);
    barrier_wait(&shared.full[ring.stage], ring.parity);
    const std::uint64_t b = operand(shared.stage[ring.stage]);
    const std::uint64_t half = static_cast<std::uint64_t>(N * 128) >> 4;
#define HOTSET_STEP(S)                                                        \
  operand_of<S>(a[(S) & 1], now0, now1);                                      \
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");                     \
  Wgmma<N, kBf16>::run(d, a[(S) & 1], b + ((S) >> 2) * half + ((S) & 3) * 2); \
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");              \
  asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory")
    HOTSET_STEP(0);
    HOTSET_STEP(1);
    HOTSET_STEP(2);
    HOTSET_STEP(3);
    HOTSET_STEP(4);
    HOTSET_STEP(5);
    HOTSET_STEP(6);
    HOTSET_STEP(7);
#undef HOTSET_STEP
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    if (lane == 0) barrier_arrive(&shared.empty[ring.stage]);
    now0 = next0, now1 = next1;
    next0 = far0, next1 = far1;
  }
  float bias0 = 0, bias1 = 0;
  if (kGated && p.biases) bias0 = static_cast<float>(reinterpret_cast<const T*>(p.biases[tile.expert])[row0]);
  const std::uint64_t* const value_biases = separate ? p.value_biases : p.biases;
  if (kGated && value_biases) bias1 = static_cast<float>(reinterpret_cast<const T*>(value_biases[tile.expert])[row1]);
  store_tile<T, kGated, N>(p, tile, shared.patch[warp], d, position, valid, bias0, bias1);
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
  Ring ring;
  if (threadIdx.x >= kConsumers) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == kConsumers) {
      for (int t = static_cast<int>(blockIdx.x); t < tiles; t += static_cast<int>(gridDim.x)) {
        const Tile tile = find_tile(p, shared.first_tile, row_tiles, t);
        if (tile.n_tokens) copy_tile(p, map, shared, tile, ring);
      }
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    for (int t = static_cast<int>(blockIdx.x); t < tiles; t += static_cast<int>(gridDim.x)) {
      const Tile tile = find_tile(p, shared.first_tile, row_tiles, t);
      switch (tile.n_tokens >> 5) {
        case 1:
          compute_tile<T, kGated, 32>(p, shared, tile, ring);
          break;
        case 2:
          compute_tile<T, kGated, 64>(p, shared, tile, ring);
          break;
        case 3:
          compute_tile<T, kGated, 96>(p, shared, tile, ring);
          break;
        case 4:
          compute_tile<T, kGated, 128>(p, shared, tile, ring);
          break;
        case 5:
          compute_tile<T, kGated, 160>(p, shared, tile, ring);
          break;
        case 6:
          compute_tile<T, kGated, 192>(p, shared, tile, ring);
          break;
        case 7:
          compute_tile<T, kGated, 224>(p, shared, tile, ring);
          break;
        case 8:
          compute_tile<T, kGated, 256>(p, shared, tile, ring);
          break;
        default:
          break;
      }
    }
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
  for (int at = static_cast<int>(threadIdx.x) * 8; at < padded; at += static_cast<int>(blockDim.x) * 8) {
    alignas(16) std::uint16_t v[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int column = (at & ~(kWgmmaChunk - 1)) + chunk_column((at & (kWgmmaChunk - 1)) + i);
      v[i] = column < p.k ? from[column] : 0;
    }
    *reinterpret_cast<uint4*>(to + at) = *reinterpret_cast<const uint4*>(v);
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

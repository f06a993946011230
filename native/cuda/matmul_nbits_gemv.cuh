// SPDX-License-Identifier: Apache-2.0
// MatMulNBits of few rows: tensor cores multiply 16 columns n of codes by up to 8 or 24 columns of activations, so that the cost of
// a code is its decoding alone. Bound by the memory rate of the codes.
//
// A unit is 16 bytes of codes of one n: U = 128 / bits codes, one word for each of the four lanes of a quad. Slots s and s + h of a
// word (h = 16 / bits) are decoded as one pair of 16-bit floats q - zero, exact. Which k they are is the layout's business alone:
//   raw     k = U unit + (U / 4) t + s                          t: lane of the quad
//   SM80    k = U unit + 2 t + 8 (s mod h) + s / h
// because the activations lie in shared memory in the same order: [unit][column][t][pair]. A float32 activation is three columns,
// its bfloat16 parts, whose products with codes are exact and are added at the end. One scale belongs to a whole unit, so it
// multiplies a unit's float32 sum; nothing is rounded before the result.
//
// Block (4 or 8 warps): loops over tiles of 16 n; 2^split_shift warps share a tile and each takes every 2^split_shift-th stage (8 units
// of its 16 rows, 2 KiB). Every warp fills a ring of its own by cp.async, begins before it waits for the kernel before it, and
// runs on into its next tile.
//
// shared:  activations | ring of warp 0: kStages x (16 x 144 bytes of codes, scales, zeros) | ... | partial sums, twice
#pragma once
#include "cuda/matmul_nbits_operands.cuh"

namespace hotset::cuda::nbits {

constexpr int kStages = 3, kRowPitch = 144;  // bytes: 16 rows apart in all banks

struct Ring {  // a slot; rows of scales lie 12 words apart: in all banks
  static constexpr int kScalePitch = 48, kZeroPitch = 12;
  static constexpr int kScales = 16 * kRowPitch, kZeros = kScales + 16 * kScalePitch, kBytes = kZeros + 16 * kZeroPitch;
};

__device__ inline unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }
// Copies `bytes` bytes, or clears them.
template <int bytes>
__device__ inline void copy(unsigned to, const void* from, bool valid) {
  if constexpr (bytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(bytes), "r"(valid ? bytes : 0) : "memory");
}
// Copies the first `valid` of 4 bytes and clears the rest.
__device__ inline void copy_part(unsigned to, const void* from, int valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(valid) : "memory");
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int pending>
__device__ inline void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

// Position of a warp in its sequence of (tile, stage).
struct Cursor {
  int tile, stage;
  __device__ void next(const NBitsParams& p, int tile_step, int first_stage) {
    stage += 1 << p.split_shift;
    if (stage < p.stages) return;
    stage = first_stage;
    tile += tile_step;
  }
};

// Copies of a warp into its ring. In the order of memory lane l copies pieces 16 l, 16 (32 + l), ... of a stage: rows 4 i ... 4 i + 3
// in copy i, but of two bits in the SM80 layout, whose 8 interleaved columns take two copies.
template <class T, int bits>
struct Loader {
  static constexpr int kUnit = 128 / bits, kColumns = 16 / bits;
  const NBitsParams& p;
  const int lane, units;
  int row, unit, to;                            // of copy 0
  int row_step, unit_step, to_step, from_step;  // to copy 1; copy 2 is 8 rows further
  int from, stage_bytes;

  __device__ explicit Loader(const NBitsParams& params) : p(params), lane(threadIdx.x & 31), units((params.k + kUnit - 1) / kUnit) {
    constexpr int kTileUnits = 8 / kColumns;  // SM80: units of a column in 128 bytes
    const int row_bytes = static_cast<int>(p.row_bytes);
    const bool wide = p.prepacked && bits == 2;
    const int group = p.prepacked ? lane / (8 * kColumns) : 0, rest = lane % (8 * kColumns);
    row = p.prepacked ? group * kColumns + rest % 8 / kTileUnits : lane / 8;
    unit = p.prepacked ? rest / 8 * kTileUnits + rest % kTileUnits : lane % 8;
    from = p.prepacked ? group * kColumns * row_bytes + rest * 16 : row * row_bytes + unit * 16;
    to = row * kRowPitch + unit * 16;
    row_step = wide ? 0 : 4;
    unit_step = wide ? 4 : 0;
    to_step = wide ? 64 : 4 * kRowPitch;
    from_step = wide ? 512 : 4 * row_bytes;
    stage_bytes = 128 * (p.prepacked ? kColumns : 1);
  }

  // Begins to copy what belongs to a stage of a tile into a slot of the ring.
  __device__ void load(const Cursor& at, unsigned slot) const {
    const int n0 = at.tile * 16;
    const std::uint8_t* const codes = p.codes + n0 * p.row_bytes + (at.stage * stage_bytes + from);
    const std::int64_t far = 8 * p.row_bytes;
    if (n0 + 16 <= p.n && at.stage * 8 + 8 <= units) {
      copy<16>(slot + to, codes, true);
      copy<16>(slot + to + to_step, codes + from_step, true);
      copy<16>(slot + to + 8 * kRowPitch, codes + far, true);
      copy<16>(slot + to + to_step + 8 * kRowPitch, codes + far + from_step, true);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool inside = n0 + row + (i & 1) * row_step + (i >> 1) * 8 < p.n && at.stage * 8 + unit + (i & 1) * unit_step < units;
        copy<16>(slot + to + (i & 1) * to_step + (i >> 1) * 8 * kRowPitch, inside ? codes + (i & 1) * from_step + (i >> 1) * far : p.codes,
                 inside);
      }
    }
    const int r = lane & 15, half = lane >> 4, n = n0 + r, first = at.stage * 8 * kUnit >> p.block_shift;
    const int last = min(((at.stage + 1) * 8 * kUnit - 1) >> p.block_shift, p.blocks - 1);
    const char* const scales = static_cast<const char*>(p.scales);
    const std::int64_t at_scale = static_cast<std::int64_t>(n) * p.blocks + first;
    const int scale_bytes = (last - first + 1) * static_cast<int>(sizeof(T));
    const unsigned to_scale = slot + Ring::kScales + r * Ring::kScalePitch;
    switch (p.scale_copy) {
      case 16:
        copy_row<16>(to_scale, scales + at_scale * sizeof(T), half, scale_bytes, n < p.n);
        break;
      case 8:
        copy_row<8>(to_scale, scales + at_scale * sizeof(T), half, scale_bytes, n < p.n);
        break;
      case 4:
        copy_row<4>(to_scale, scales + at_scale * sizeof(T), half, scale_bytes, n < p.n);
        break;
      default:
        copy_words(to_scale, scales, at_scale * sizeof(T), at_scale * sizeof(T) + scale_bytes, half, n < p.n, 8 * sizeof(T) + 4);
    }
    if (p.zeros) {
      const std::int64_t begin = static_cast<std::int64_t>(n) * p.zero_row_bytes + (first * bits >> 3);
      copy_words(slot + Ring::kZeros + r * Ring::kZeroPitch, static_cast<const char*>(p.zeros), begin,
                 begin + (last * bits >> 3) - (first * bits >> 3) + 1, half, n < p.n, Ring::kZeroPitch);
    }
  }

  // The scales of a row where `width` divides every place and size; two lanes take turns. What lies behind them is cleared.
  template <int width>
  static __device__ void copy_row(unsigned to, const char* from, int half, int bytes, bool inside) {
    constexpr int kMost = 8 * sizeof(T);
#pragma unroll
    for (int i = 0; i < kMost; i += 2 * width) {
      const int at = i + half * width;
      if (at < kMost) copy<width>(to + at, inside && at < bytes ? from + at : from, inside && at < bytes);
    }
  }
  // The whole words that hold bytes [begin, end), cleared from `end` on, `most` bytes at most.
  static __device__ void copy_words(unsigned to, const char* base, std::int64_t begin, std::int64_t end, int half, bool inside, int most) {
    const std::int64_t first = begin & ~std::int64_t{3};
    const int bytes = static_cast<int>(end - first);
    for (int at = half * 4; at < most; at += 8)
      copy_part(to + at, inside && at < bytes ? base + first + at : base, inside ? max(0, min(4, bytes - at)) : 0);
  }
};

__device__ inline void load_matrices(unsigned address, unsigned (&w)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
               : "r"(address));
}

// Scales and zeros of the 8 units of a stage for row r of a tile.
template <class T, int bits>
struct RowConstants {
  float scale[8];
  unsigned zero[8];
  __device__ RowConstants(const NBitsParams& p, const char* slot, const Cursor& at, int r, bool with_zeros) {
    constexpr int kUnit = 128 / bits;
    const int first = at.stage * 8 * kUnit >> p.block_shift;
    const std::int64_t n = at.tile * 16 + r;
    const char* const scales = slot + Ring::kScales + r * Ring::kScalePitch;
    if (p.scale_copy == 0) {
      const char* const from = scales + ((n * p.blocks + first) * static_cast<std::int64_t>(sizeof(T)) & 3);
#pragma unroll
      for (int u = 0; u < 8; ++u)
        scale[u] = to_float(reinterpret_cast<const T*>(from)[((at.stage * 8 + u) * kUnit >> p.block_shift) - first]);
    } else if ((1 << p.block_shift) == kUnit) {
#pragma unroll
      for (int u = 0; u < 8; u += Vector<T>::kSize) {
        const Vector<T> v = load_vector(reinterpret_cast<const T*>(scales) + u);
#pragma unroll
        for (int i = 0; i < Vector<T>::kSize; ++i) scale[u + i] = to_float(v.at[i]);
      }
    } else {
#pragma unroll
      for (int u = 0; u < 8; ++u)
        scale[u] = to_float(reinterpret_cast<const T*>(scales)[((at.stage * 8 + u) * kUnit >> p.block_shift) - first]);
    }
    if (!with_zeros) return;
    const int bit = static_cast<int>((n * p.zero_row_bytes * 8 + static_cast<std::int64_t>(first) * bits) & 31);
    const std::uint8_t* const zeros = reinterpret_cast<const std::uint8_t*>(slot + Ring::kZeros + r * Ring::kZeroPitch);
#pragma unroll
    for (int u = 0; u < 8; ++u) {
      const int place = bit + (((at.stage * 8 + u) * kUnit >> p.block_shift) - first) * bits;
      zero[u] = zeros[place >> 3] >> (place & 7) & ((1 << bits) - 1);
    }
  }
};

template <int n>
struct Number {
  static constexpr int value = n;
};
// Calls f(Number<0>) ... f(Number<n - 1>).
template <int n, int i = 0, class F>
__device__ inline void unrolled(F&& f) {
  if constexpr (i < n) {
    f(Number<i>());
    unrolled<n, i + 1>(f);
  }
}

// tiles: 8 columns of activations each.
template <class T, int bits, int tiles, bool with_zeros>
__device__ void gemv(const NBitsParams& p) {
  using R = Ring;
  using D = Decoder<Multiply<T>::kHalf, bits>;
  constexpr int kPairs = 16 / bits, kParts = Activations<T, bits>::kParts;
  extern __shared__ __align__(16) char shared[];
  const int n_warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int rows = min(p.rows, p.m - static_cast<int>(blockIdx.y) * p.rows), columns = rows * kParts;
  const int units = p.stages * 8, split = 1 << p.split_shift, tiles_a_block = n_warps >> p.split_shift;
  const int n_tiles = (p.n + 15) / 16, first_stage = warp & (split - 1), tile_step = gridDim.x * tiles_a_block;
  unsigned* const activations = reinterpret_cast<unsigned*>(shared);
  char* const ring = shared + static_cast<std::int64_t>(units) * p.rows * kParts * 16 * kPairs + warp * kStages * R::kBytes;
  float* const sums = reinterpret_cast<float*>(ring + (n_warps - warp) * kStages * R::kBytes);  // [2][warp][column][16]

  // 1. Begin to read codes.
  if (!p.ready) wait_for_predecessor();
  const Loader<T, bits> loader(p);
  const unsigned slots = shared_address(ring);
  Cursor reading{static_cast<int>(blockIdx.x) * tiles_a_block + (warp >> p.split_shift), first_stage};
  if (first_stage >= p.stages) reading.tile = n_tiles;  // nothing to do
  Cursor at = reading;
#pragma unroll
  for (int slot = 0; slot < kStages - 1; ++slot) {
    if (reading.tile < n_tiles) loader.load(reading, slots + slot * R::kBytes), reading.next(p, tile_step, first_stage);
    commit_copies();
  }
  release_successor();
  wait_for_predecessor();
  // 2. Activations.
  Activations<T, bits>::stage(p, static_cast<const T*>(p.a) + static_cast<std::int64_t>(blockIdx.y) * p.rows * p.k, rows, units,
                              activations);
  __syncthreads();

  const int n_rounds = (n_tiles - static_cast<int>(blockIdx.x) * tiles_a_block + tile_step - 1) / tile_step;
  const int matrix = ((lane & 7) + (lane >> 3 & 1) * 8) * kRowPitch + (lane >> 4) * 16;  // address of this lane's row for ldmatrix
  const unsigned* column[tiles];  // activations of this lane; columns that do not exist repeat the last one, for nobody
#pragma unroll
  for (int i = 0; i < tiles; ++i) column[i] = activations + (min(i * 8 + g, columns - 1) * 4 + t) * kPairs;
  int slot = 0;
  for (int round = 0; round < n_rounds; ++round) {
    const int tile = blockIdx.x * tiles_a_block + (warp >> p.split_shift) + round * tile_step;
    float acc[tiles][4] = {};
    // 3. The stages of this warp of the tile.
    for (; at.tile == tile && tile < n_tiles; at.next(p, tile_step, first_stage)) {
      wait_copies<kStages - 2>();
      __syncwarp();
      if (reading.tile < n_tiles)
        loader.load(reading, slots + (slot == 0 ? kStages - 1 : slot - 1) * R::kBytes), reading.next(p, tile_step, first_stage);
      commit_copies();
      const char* const here = ring + slot * R::kBytes;
      const RowConstants<T, bits> upper(p, here, at, g, with_zeros), lower(p, here, at, g + 8, with_zeros);
#pragma unroll
      for (int u = 0; u < 8; u += 2) {
        unsigned w[4];
        load_matrices(shared_address(here) + matrix + u * 16, w);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const D du(with_zeros ? upper.zero[u + half] : 1u << (bits - 1)), dl(with_zeros ? lower.zero[u + half] : 1u << (bits - 1));
          unsigned b[tiles][kPairs];
#pragma unroll
          for (int i = 0; i < tiles; ++i) {
            const unsigned* const from = column[i] + (at.stage * 8 + u + half) * columns * 4 * kPairs;
            if constexpr (kPairs >= 4) {
#pragma unroll
              for (int j = 0; j < kPairs; j += 4) *reinterpret_cast<uint4*>(&b[i][j]) = *reinterpret_cast<const uint4*>(from + j);
            } else {
              *reinterpret_cast<uint2*>(&b[i][0]) = *reinterpret_cast<const uint2*>(from);
            }
          }
          float sum[tiles][4];
          unrolled<kPairs / 2>([&](auto number) {
            constexpr int s = decltype(number)::value;
            const unsigned a[4] = {du.template pair<2 * s>(w[2 * half]), dl.template pair<2 * s>(w[2 * half + 1]),
                                   du.template pair<2 * s + 1>(w[2 * half]), dl.template pair<2 * s + 1>(w[2 * half + 1])};
#pragma unroll
            for (int i = 0; i < tiles; ++i) {
              if (s == 0)
                Multiply<T>::first(sum[i], a, b[i][2 * s], b[i][2 * s + 1]);
              else
                Multiply<T>::add(sum[i], a, b[i][2 * s], b[i][2 * s + 1]);
            }
          });
#pragma unroll
          for (int i = 0; i < tiles; ++i) {
            acc[i][0] = fmaf(sum[i][0], upper.scale[u + half], acc[i][0]);
            acc[i][1] = fmaf(sum[i][1], upper.scale[u + half], acc[i][1]);
            acc[i][2] = fmaf(sum[i][2], lower.scale[u + half], acc[i][2]);
            acc[i][3] = fmaf(sum[i][3], lower.scale[u + half], acc[i][3]);
          }
        }
      }
      slot = slot + 1 == kStages ? 0 : slot + 1;
    }
    // 4. The sums of the warps of a tile, in their order; parts of float32 from the smallest on.
    float* const mine = sums + ((round & 1) * n_warps + warp) * tiles * 128;
#pragma unroll
    for (int i = 0; i < tiles; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) mine[(i * 8 + 2 * t + (j & 1)) * 16 + g + (j >> 1) * 8] = acc[i][j];
    }
    if (split == 1)
      __syncwarp();
    else
      __syncthreads();
    if (tile < n_tiles) {
      const float* const first = sums + ((round & 1) * n_warps + (warp & ~(split - 1))) * tiles * 128;
      for (int e = first_stage * 32 + lane; e < rows * 16; e += split * 32) {
        const int row = e / 16, n = tile * 16 + e % 16;
        float y = 0;
#pragma unroll
        for (int part = kParts - 1; part >= 0; --part) {
          for (int w = 0; w < split; ++w) y += first[w * tiles * 128 + (part * rows + row) * 16 + e % 16];
        }
        if (n >= p.n) continue;
        if (p.bias) y += load_typed(p.bias, p.bias_type, n);
        static_cast<T*>(p.y)[(static_cast<std::int64_t>(blockIdx.y) * p.rows + row) * p.n + n] = from_float<T>(y);
      }
    }
    if (split == 1) __syncwarp();
  }
}

}  // namespace hotset::cuda::nbits

#define HOTSET_NBITS_GEMV(T, suffix, bits, tiles)                                          \
  extern "C" __global__ void __launch_bounds__(256, 2)                                     \
      hotset_nbits_gemv_##suffix##_b##bits##_t##tiles(const hotset::cuda::NBitsParams p) { \
    if (p.zeros)                                                                           \
      hotset::cuda::nbits::gemv<T, bits, tiles, true>(p);                                  \
    else                                                                                   \
      hotset::cuda::nbits::gemv<T, bits, tiles, false>(p);                                 \
  }

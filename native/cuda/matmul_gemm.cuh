// SPDX-License-Identifier: Apache-2.0
// Dense products of many rows on tensor cores: C (m, n) = A (m, k) x B, B (k, n) or its transpose (n, k), float32 sums.
//
// A block owns BM x BN results, a warp WM x WN of them. Stages of 128 bytes along k (64 16-bit elements or 32 float32) go through a
// ring in shared memory by cp.async. Rows of 16-byte pieces are swizzled so that ldmatrix and scalar reads meet every bank once:
//   A, B (n, k)        row of 8 pieces, piece c at c ^ (row & 7)
//   B (k, n), 16 bits  row of BN / 8 pieces, piece c at c ^ (row & 7), read transposed
//   B (k, n), float32  row of BN / 4 pieces, piece c at c ^ 2 (row & 3)
//
// float32 has no tensor core of its own: x is big + small, two TF32 numbers, and a b = big big + big small + small big, of which
// about 2^-22 of the size of a product is lost. Tensor cores cut their sums off, so the sum of a stage begins at zero and is added
// to that of the stages before it by rounding.
#pragma once
#include <type_traits>

#include "cuda/float_types.cuh"
#include "cuda/matmul_params.h"

namespace hotset::cuda::dense {

constexpr int kStages = 3, kStageBytes = 128;  // of a row

template <class T>
__device__ inline void multiply_add(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]);
#define HOTSET_MMA(T, shape, types)                                                                                  \
  template <>                                                                                                        \
  __device__ inline void multiply_add<T>(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {            \
    asm("mma.sync.aligned." shape ".row.col.f32." types ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                             \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                                         \
  }
HOTSET_MMA(Half, "m16n8k16", "f16.f16")
HOTSET_MMA(Bfloat, "m16n8k16", "bf16.bf16")
HOTSET_MMA(float, "m16n8k8", "tf32.tf32")
#undef HOTSET_MMA

// Four 8 x 8 matrices of 16-bit elements, or 8 x 4 of float32; a lane gives the address of one row of one matrix.
template <bool transposed>
__device__ inline void load_matrices(unsigned (&r)[4], unsigned address) {
  if constexpr (transposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}
__device__ inline void copy_16(unsigned to, const void* from, bool inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(inside ? 16 : 0) : "memory");
}
// big: the leading 11 bits of x, TF32; small: what is left, of which a tensor core reads as many. Infinities have nothing left.
__device__ inline void split_tf32(unsigned x, unsigned* big, unsigned* small) {
  *big = x & 0xffffe000u;
  const float rest = __uint_as_float(x) - __uint_as_float(*big);
  *small = (x & 0x7fffffffu) == 0x7f800000u ? 0u : __float_as_uint(rest);
}

template <class T, int BM_, int BN_, int WM_, int WN_, bool transposed_b>
struct Tile {
  static constexpr int BM = BM_, BN = BN_, WM = WM_, WN = WN_;
  static constexpr int kThreads = BM / WM * (BN / WN) * 32;
  static constexpr int kVector = 16 / sizeof(T), kDepth = kStageBytes / sizeof(T);  // elements of a piece, k of a stage
  static constexpr int kStep = sizeof(T) == 4 ? 8 : 16;                             // k of one tensor core instruction
  static constexpr int kABytes = BM * kStageBytes, kBBytes = BN * kStageBytes, kBytes = kABytes + kBBytes;
  static constexpr int kM = WM / 16, kN = WN / 8;  // instructions of a warp

  static __device__ int swizzled(int row, int piece) { return sizeof(T) == 4 ? piece ^ (row & 3) << 1 : piece ^ (row & 7); }

  // The pieces of one operand that a thread copies in each stage: `count` of them, kStep rows apart, in one place of their rows. What
  // lies outside of the matrix is cleared.
  template <int rows, int pieces, bool along_k>  // along_k: a row is one of the matrix and runs along k; else a row is one k
  struct Copies {
    static constexpr int kRowStep = kThreads / pieces, kCount = rows / kRowStep;
    static_assert(kRowStep % 8 == 0 && rows % kRowStep == 0);
    const T* from;
    std::int64_t step, advance;  // elements from one piece to the next, from a stage to the next
    unsigned to, inside;         // inside: bit j, whether piece j is in the matrix but for k
    int k;                       // of the first piece

    __device__ Copies(const T* base, std::int64_t stride, std::int64_t first, std::int64_t size) {
      const int row = threadIdx.x / pieces, piece = threadIdx.x % pieces;
      step = kRowStep * stride;
      if (along_k) {
        from = base + (first + row) * stride + piece * kVector;
        advance = kDepth;
        k = piece * kVector;
        to = row * kStageBytes + (piece ^ (row & 7)) * 16;
        inside = 0;
#pragma unroll
        for (int j = 0; j < kCount; ++j) inside |= (first + row + j * kRowStep < size ? 1u : 0u) << j;
      } else {
        from = base + row * stride + first + piece * kVector;
        advance = kDepth * stride;
        k = row;
        to = (row * pieces + swizzled(row, piece)) * 16;
        inside = first + piece * kVector < size ? ~0u : 0u;
      }
    }
    __device__ void load(unsigned slot, int k_size) {
      const T* at = from;
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        copy_16(slot + to + j * kRowStep * pieces * 16, at, (inside >> j & 1) && k + (along_k ? 0 : j * kRowStep) < k_size);
        at += step;
      }
      from += advance;
      k += kDepth;
    }
  };

  // Step s of a stage of A: rows of the warp.
  static __device__ void fragment_a(unsigned (&a)[kM][4], unsigned from, int row0, int s) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kM; ++i) {
      const int row = row0 + i * 16 + lane % 16, piece = 2 * s + lane / 16;
      load_matrices<false>(a[i], from + row * kStageBytes + (piece ^ (row & 7)) * 16);
    }
  }
  static __device__ void fragment_b(unsigned (&b)[kN][2], unsigned from, const char* shared, int column0, int s) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < kN; j += 2) {
      unsigned r[4];
      if constexpr (transposed_b) {
        const int row = column0 + j * 8 + lane % 8 + lane / 16 * 8, piece = 2 * s + lane / 8 % 2;
        load_matrices<false>(r, from + row * kStageBytes + (piece ^ (row & 7)) * 16);
      } else if constexpr (sizeof(T) == 2) {
        const int row = s * 16 + lane % 16, piece = column0 / 8 + j + lane / 16;
        load_matrices<true>(r, from + (row * (BN / 8) + swizzled(row, piece)) * 16);
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = s * 8 + lane % 4 + i % 2 * 4, column = column0 + (j + i / 2) * 8 + lane / 4;
          r[i] = *reinterpret_cast<const unsigned*>(shared + (row * (BN / 4) + swizzled(row, column / 4)) * 16 + column % 4 * 4);
        }
      }
      b[j][0] = r[0], b[j][1] = r[1], b[j + 1][0] = r[2], b[j + 1][1] = r[3];
    }
  }

  static __device__ void multiply(float (&c)[kM][kN][4], const unsigned (&a)[kM][4], const unsigned (&b)[kN][2]) {
    if constexpr (sizeof(T) == 2) {
#pragma unroll
      for (int i = 0; i < kM; ++i) {
#pragma unroll
        for (int j = 0; j < kN; ++j) multiply_add<T>(c[i][j], a[i], b[j]);
      }
    } else {
      unsigned big_b[kN][2], small_b[kN][2];
#pragma unroll
      for (int j = 0; j < kN; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) split_tf32(b[j][e], &big_b[j][e], &small_b[j][e]);
      }
#pragma unroll
      for (int i = 0; i < kM; ++i) {
        unsigned big[4], small[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) split_tf32(a[i][e], &big[e], &small[e]);
#pragma unroll
        for (int j = 0; j < kN; ++j) multiply_add<T>(c[i][j], small, big_b[j]);
#pragma unroll
        for (int j = 0; j < kN; ++j) multiply_add<T>(c[i][j], big, small_b[j]);
#pragma unroll
        for (int j = 0; j < kN; ++j) multiply_add<T>(c[i][j], big, big_b[j]);
      }
    }
  }

  static __device__ void store(const MatMulParams& p, const float (&c)[kM][kN][4], std::int64_t row0, std::int64_t column0) {
    const int lane = threadIdx.x % 32;
    T* const out = static_cast<T*>(p.c) + blockIdx.z * p.c_batch;
    const bool pairs = p.ldc % 2 == 0 && (reinterpret_cast<std::uintptr_t>(out) & (2 * sizeof(T) - 1)) == 0;
#pragma unroll
    for (int i = 0; i < kM; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::int64_t row = row0 + i * 16 + half * 8 + lane / 4;
        if (row >= p.m) continue;
#pragma unroll
        for (int j = 0; j < kN; ++j) {
          const std::int64_t column = column0 + j * 8 + lane % 4 * 2;
          T y[2];
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float v = c[i][j][half * 2 + e] * p.alpha;
            if (p.addend && column + e < p.n)
              v += p.beta * load_typed(p.addend, p.addend_type, row * p.addend_row + (column + e) * p.addend_column);
            y[e] = from_float<T>(v);
          }
          T* const to = out + row * p.ldc + column;
          if (pairs && column + 1 < p.n) {
            if constexpr (sizeof(T) == 4)
              *reinterpret_cast<float2*>(to) = make_float2(y[0], y[1]);
            else
              *reinterpret_cast<unsigned*>(to) = *reinterpret_cast<const unsigned*>(y);
          } else {
            if (column < p.n) to[0] = y[0];
            if (column + 1 < p.n) to[1] = y[1];
          }
        }
      }
    }
  }

  static __device__ void run(const MatMulParams& p) {
    extern __shared__ __align__(128) char shared[];
    const unsigned ring = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    // Blocks that run side by side share operands in the L2: columns of 8 tiles of rows, one after the other.
    const int m_tiles = (p.m + BM - 1) / BM, n_tiles = (p.n + BN - 1) / BN, column = blockIdx.x / (8 * n_tiles) * 8;
    const int high = min(8, m_tiles - column), rest = blockIdx.x % (8 * n_tiles);
    const std::int64_t row0 = static_cast<std::int64_t>(column + rest % high) * BM, column0 = static_cast<std::int64_t>(rest / high) * BN;
    const T* const a = static_cast<const T*>(p.a) + blockIdx.z * p.a_batch;
    const T* const b = static_cast<const T*>(p.b) + blockIdx.z * p.b_batch;
    const int warp = threadIdx.x / 32, warp_row = warp / (BN / WN) * WM, warp_column = warp % (BN / WN) * WN;
    const int stages = (p.k + kDepth - 1) / kDepth;
    Copies<BM, 8, true> copies_a(a, p.a_row, row0, p.m);
    using CopiesB = std::conditional_t<transposed_b, Copies<BN, 8, true>, Copies<kDepth, BN / kVector, false>>;
    CopiesB copies_b(b, transposed_b ? p.b_column : p.b_row, column0, p.n);
    const auto load = [&](int stage) {
      if (stage < stages) {
        const unsigned to = ring + stage % kStages * kBytes;
        copies_a.load(to, p.k);
        copies_b.load(to + kABytes, p.k);
      }
      asm volatile("cp.async.commit_group;" ::: "memory");
    };
    release_successor();
    wait_for_predecessor();
#pragma unroll
    for (int s = 0; s < kStages - 1; ++s) load(s);
    float c[kM][kN][4] = {};
    for (int stage = 0; stage < stages; ++stage) {
      asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2) : "memory");
      __syncthreads();
      load(stage + kStages - 1);
      const unsigned from = ring + stage % kStages * kBytes;
      const char* const shared_b = shared + stage % kStages * kBytes + kABytes;
      const auto steps = [&](float (&sum)[kM][kN][4]) {
        unsigned fa[2][kM][4], fb[2][kN][2];  // those of the next step are on their way
        fragment_a(fa[0], from, warp_row, 0);
        fragment_b(fb[0], from + kABytes, shared_b, warp_column, 0);
#pragma unroll
        for (int s = 0; s < kDepth / kStep; ++s) {
          if (s + 1 < kDepth / kStep) {
            fragment_a(fa[(s + 1) % 2], from, warp_row, s + 1);
            fragment_b(fb[(s + 1) % 2], from + kABytes, shared_b, warp_column, s + 1);
          }
          multiply(sum, fa[s % 2], fb[s % 2]);
        }
      };
      if constexpr (sizeof(T) == 2) {
        steps(c);
      } else {
        float sum[kM][kN][4] = {};
        steps(sum);
#pragma unroll
        for (int i = 0; i < kM; ++i) {
#pragma unroll
          for (int j = 0; j < kN; ++j) {
#pragma unroll
            for (int e = 0; e < 4; ++e) c[i][j][e] += sum[i][j][e];
          }
        }
      }
    }
    store(p, c, row0 + warp_row, column0 + warp_column);
  }
};

}  // namespace hotset::cuda::dense

// Large tiles for products that fill the device with them, small ones else.
#define HOTSET_GEMM(T, suffix, name, transposed, BM, BN, WM, WN)          \
  extern "C" __global__ void __launch_bounds__(BM / WM * (BN / WN) * 32)  \
      hotset_gemm_##suffix##_##name(const hotset::cuda::MatMulParams p) { \
    hotset::cuda::dense::Tile<T, BM, BN, WM, WN, transposed>::run(p);     \
  }

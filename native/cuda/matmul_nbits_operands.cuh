// SPDX-License-Identifier: Apache-2.0
// MatMulNBits for tensor cores: codes decoded to 16-bit floats in registers, and activations in the order of the codes in shared
// memory. matmul_nbits_gemv.cuh says which k lies where.
#pragma once
#include "cuda/float_types.cuh"
#include "cuda/matmul_nbits_params.h"

namespace hotset::cuda::nbits {

// What a tensor core multiplies: float16 for float16 activations, else bfloat16. c = a b, and c += a b.
#define HOTSET_MMA(type, c0, c1, c2, c3) \
  "mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {" c0 "," c1 "," c2 "," c3 "};"
#define HOTSET_MULTIPLY(type)                                                                     \
  static __device__ void first(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) { \
    asm(HOTSET_MMA(type, "%10", "%10", "%10", "%10")                                              \
        : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])                                          \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));               \
  }                                                                                               \
  static __device__ void add(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {   \
    asm(HOTSET_MMA(type, "%0", "%1", "%2", "%3")                                                  \
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                          \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                          \
  }
template <class T>
struct Multiply {
  static constexpr bool kHalf = false;
  HOTSET_MULTIPLY("bf16")
};
template <>
struct Multiply<Half> {
  static constexpr bool kHalf = true;
  HOTSET_MULTIPLY("f16")
};

// (word & mask) | magic in one instruction.
template <unsigned mask, unsigned magic>
__device__ inline unsigned and_or(unsigned x) {
  unsigned r;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(x), "n"(mask), "n"(magic));
  return r;
}
__device__ inline unsigned fma_half(unsigned x, unsigned y, unsigned z) {
  unsigned r;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(y), "r"(z));
  return r;
}
__device__ inline unsigned fma_bfloat(unsigned x, unsigned y, unsigned z) {
  unsigned r;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(y), "r"(z));
  return r;
}
// Pairs (slots i and i + h) of a word of codes as 16-bit floats code - zero. A code is put into the mantissa of a power of two at
// its place p in the word (times 2^(bits p)), and one fused multiply-add takes the power, the place and the zero away: exact.
template <bool half, int bits>
struct Decoder {
  static constexpr int kPairs = 16 / bits;
  static constexpr int kMantissa = half ? 10 : 7, kBias = half ? 15 : 127;
  static constexpr unsigned kTwice = 0x10001u, kSign = 0x80008000u;
  template <int exponent>
  static constexpr unsigned kPower = (static_cast<unsigned>(exponent + kBias) << kMantissa) * kTwice;              // 2^exponent
  static constexpr int kPlaces = (kMantissa - bits) / bits + 1 < kPairs ? (kMantissa - bits) / bits + 1 : kPairs;  // codes without a shift
  unsigned zeros;  // the zero in both halves of a word

  __device__ explicit Decoder(unsigned zero) : zeros(zero * kTwice) {}
  template <int i>
  __device__ unsigned pair(unsigned word) const {
    constexpr int place = i % kPlaces;
    constexpr unsigned mask = (((1u << bits) - 1) * kTwice) << (place * bits);
    const unsigned x = and_or<mask, kPower<kMantissa>>(word >> ((i - place) * bits));
    const unsigned offset = (kSign | kPower<kMantissa - place * bits>)+(zeros << (place * bits));  // -(2^(mantissa - place) + zero)
    return half ? fma_half(x, kPower<-place * bits>, offset) : fma_bfloat(x, kPower<-place * bits>, offset);
  }
};
template <>
struct Decoder<false, 8> {  // a byte does not fit beside 128: through float32
  float offset;
  __device__ explicit Decoder(unsigned zero) : offset(-static_cast<float>(8388608u + zero)) {}
  template <int i>
  __device__ unsigned pair(unsigned word) const {
    const float low = __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7540 + i)) + offset;
    const float high = __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7542 + i)) + offset;
    const __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const unsigned*>(&v);
  }
};

// The three bfloat16 parts of a float32, whose sum it is: truncation keeps 8 bits of the rest each time.
__device__ inline void split_float(float x, unsigned short (&part)[3]) {
  const unsigned bits = __float_as_uint(x);
  part[0] = static_cast<unsigned short>(bits >> 16);
  part[1] = part[2] = 0;
  if ((bits & 0x7f800000u) == 0x7f800000u) {
    if (bits & 0x7fffffu) part[0] |= 0x40;
    return;
  }
  const float rest = x - __uint_as_float(bits & 0xffff0000u);
  const unsigned second = __float_as_uint(rest);
  part[1] = static_cast<unsigned short>(second >> 16);
  part[2] = static_cast<unsigned short>(__float_as_uint(rest - __uint_as_float(second & 0xffff0000u)) >> 16);
}

template <class T, int bits>
struct Activations {
  static constexpr int kUnit = 128 / bits, kPairs = 16 / bits, kParts = sizeof(T) == 4 ? 3 : 1, kCount = kUnit / 4;  // kCount: of a lane

  // The two activations of pair j of a lane.
  static __device__ void put(unsigned (&pairs)[kParts][kPairs], int j, T low, T high) {
    if constexpr (kParts == 3) {
      unsigned short l[3], h[3];
      split_float(low, l);
      split_float(high, h);
#pragma unroll
      for (int part = 0; part < 3; ++part) pairs[part][j] = l[part] | static_cast<unsigned>(h[part]) << 16;
    } else {
      const T both[2] = {low, high};
      pairs[0][j] = *reinterpret_cast<const unsigned*>(both);
    }
  }

  template <int n>
  struct alignas(n * sizeof(T)) Few {
    T at[n];
  };

  // The activations of lane t for a unit: slot j at v[j], zero behind K.
  static __device__ void fetch(const NBitsParams& p, const T* x, int unit, int t, bool aligned, T (&v)[kCount]) {
    constexpr int kRun = kCount * sizeof(T) < 16 ? kCount : 16 / sizeof(T);
    if (p.prepacked) {  // K is a multiple of 64
      const int first = unit * kUnit + 2 * t;
#pragma unroll
      for (int j = 0; j < kPairs; ++j) {
        const int k = first + 8 * j;
        Few<2> pair = {{T(0.0f), T(0.0f)}};
        if (k < p.k && aligned)
          pair = *reinterpret_cast<const Few<2>*>(x + k);
        else if (k < p.k)
          pair.at[0] = x[k], pair.at[1] = x[k + 1];
        v[j] = pair.at[0];
        v[j + kPairs] = pair.at[1];
      }
      return;
    }
    const int first = unit * kUnit + kCount * t;
    if (aligned && first + kCount <= p.k) {
#pragma unroll
      for (int j = 0; j < kCount; j += kRun) *reinterpret_cast<Few<kRun>*>(&v[j]) = *reinterpret_cast<const Few<kRun>*>(x + first + j);
    } else {
#pragma unroll
      for (int j = 0; j < kCount; ++j) v[j] = first + j < p.k ? x[first + j] : T(0.0f);
    }
  }

  // Rows [0, rows) of a, k values each, to shared memory, zero up to `units` units. Several loads of a thread are on their way.
  static __device__ void stage(const NBitsParams& p, const T* a, int rows, int units, unsigned* out) {
    constexpr int kBatch = kCount * sizeof(T) > 16 ? 2 : 4;
    const int columns = rows * kParts, items = rows * units * 4;
    const bool aligned = p.k % (16 / static_cast<int>(sizeof(T))) == 0 && is_aligned_16(p.a);
    for (int first = threadIdx.x; first < items; first += kBatch * blockDim.x) {
      alignas(16) T v[kBatch][kCount];
      int place[kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int i = first + b * blockDim.x;
        if (i >= items) break;
        const int row = rows == 1 ? 0 : i / (units * 4), rest = i - row * units * 4, t = rest & 3, unit = rest >> 2;
        fetch(p, a + static_cast<std::int64_t>(row) * p.k, unit, t, aligned, v[b]);
        place[b] = ((unit * columns + row) * 4 + t) * kPairs;
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        if (first + b * static_cast<int>(blockDim.x) >= items) break;
        unsigned pairs[kParts][kPairs];
#pragma unroll
        for (int j = 0; j < kPairs; ++j) put(pairs, j, v[b][j], v[b][j + kPairs]);
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          unsigned* const to = out + place[b] + part * rows * 4 * kPairs;
#pragma unroll
          for (int j = 0; j < kPairs; j += 2) *reinterpret_cast<uint2*>(to + j) = make_uint2(pairs[part][j], pairs[part][j + 1]);
        }
      }
    }
  }
};

}  // namespace hotset::cuda::nbits

// SPDX-License-Identifier: Apache-2.0
// Int4 codes from global memory to registers of the A operand of wgmma.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/moe_wgmma_params.h"

namespace hotset::cuda {

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
  const std::uint16_t* scales;
  const unsigned char* zeros;

  __device__ __forceinline__ void find(const MoeWgmmaParams& p, const std::uint64_t* weights, const std::uint64_t* scale_table,
                                       const std::uint64_t* zero_table, int expert, int row) {
    codes = reinterpret_cast<const unsigned char*>(weights[expert]) + static_cast<std::int64_t>(row) * (p.k >> 1);
    scales = reinterpret_cast<const std::uint16_t*>(scale_table[expert]) + static_cast<std::int64_t>(row) * p.blocks;
    zeros = zero_table ? reinterpret_cast<const unsigned char*>(zero_table[expert]) + static_cast<std::int64_t>(row) * ((p.blocks + 1) >> 1)
                       : nullptr;
  }
};

// 32 codes of a row with their scale and zero point as memory has them: nothing here waits for the loads.
template <class T>
struct Codes {
  uint4 words;
  std::uint32_t scale, zero;

  // Behind the last column the last codes are read again; their scale is cleared when they are used.
  __device__ __forceinline__ void load(const Row<T>& row, const MoeWgmmaParams& p, int column) {
    column = min(column, p.k - 32);
    words = __ldg(reinterpret_cast<const uint4*>(row.codes + (column >> 1)));
    const int block = column >> p.block_shift;
    scale = __ldg(row.scales + block);
    zero = row.zeros ? __ldg(row.zeros + (block >> 1)) >> ((block & 1) * 4) : 8;
  }
};

// The same, ready to be scaled.
template <class T>
struct Factors {
  uint4 words;
  std::uint32_t scale, offset;  // twice each; offset: what to add to a code under the magic exponent

  __device__ __forceinline__ Factors(const Codes<T>& codes, bool inside)
      : words(codes.words),
        scale(inside ? codes.scale * 0x10001u : 0),
        offset(Pair<T>::kMagic | 0x80008000u | (codes.zero & 15) * 0x10001u) {}
  // Two codes of word W: nibbles I and I + 4.
  template <int W, int I>
  __device__ __forceinline__ std::uint32_t pair() const {
    const std::uint32_t word = W == 0 ? words.x : W == 1 ? words.y : W == 2 ? words.z : words.w;
    return Pair<T>::scaled((word >> (4 * I) & 0x000f000f) | Pair<T>::kMagic, offset, scale);
  }
};

// Step S of a chunk: registers of the A operand.
template <int S, class T>
__device__ __forceinline__ void operand_of(std::uint32_t* a, const Factors<T>& row0, const Factors<T>& row1) {
  a[0] = row0.template pair<S / 2, 2 * (S & 1)>();
  a[1] = row1.template pair<S / 2, 2 * (S & 1)>();
  a[2] = row0.template pair<S / 2, 2 * (S & 1) + 1>();
  a[3] = row1.template pair<S / 2, 2 * (S & 1) + 1>();
  // Not before the wait that freed these registers, not behind the fence that hands them over.
  asm volatile("" : "+r"(a[0]), "+r"(a[1]), "+r"(a[2]), "+r"(a[3])::"memory");
}

}  // namespace hotset::cuda

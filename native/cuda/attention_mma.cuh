// SPDX-License-Identifier: Apache-2.0
// Tensor-core products of 8-element units of Q, K and V that a lane reads whole, without shuffling data between lanes.
//
// A unit is 8 consecutive channels of one row. The order of channels inside a dot product is free, so lane (g = lane / 4,
// q = lane % 4) takes unit q of every 32 channels of key g: its 4 registers are the B fragments of two m16n8k16 (PTX ISA,
// "Matrix Fragments for mma.m16n8k16"), if Q uses the same order. For P * V the lane takes units of channels 8 g .. 8 g + 7 of
// the keys whose weights the accumulators of Q * K left in its own registers (columns 2 q, 2 q + 1 of a group of 8 keys).
#pragma once
#include "cuda/attention_device.cuh"

namespace hotset::cuda::attn {

template <class T>
struct Unit {
  std::uint32_t r[4];  // two elements each, the lower channel in the low half
};
template <>
struct Unit<float> {
  float r[8];
};

template <class T>
__device__ inline void mma_16816(float (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                                 std::uint32_t b1);
template <>
__device__ inline void mma_16816<__half>(float (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2, std::uint32_t a3,
                                         std::uint32_t b0, std::uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
template <>
__device__ inline void mma_16816<bf16>(float (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2, std::uint32_t a3,
                                       std::uint32_t b0, std::uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ inline void mma_tf32(float (&c)[4], const float (&a)[4], float b0, float b1) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
                 "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
}

// float32 products from tf32 ones: x = high + low, the low * low part is below float32's last bit.
__device__ inline float tf32_high(float x) { return __uint_as_float(__float_as_uint(x) & 0xffffe000u); }
__device__ inline void mma_f32(float (&c)[4], const float (&a)[4], float b0, float b1) {
  float high[4], low[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    high[i] = tf32_high(a[i]);
    low[i] = a[i] - high[i];
  }
  const float h0 = tf32_high(b0), h1 = tf32_high(b1);
  mma_tf32(c, low, h0, h1);
  mma_tf32(c, high, b0 - h0, b1 - h1);
  mma_tf32(c, high, h0, h1);
}

// c (rows g and g + 8, keys 2 q and 2 q + 1 of 8) += Q rows (their units) * K (unit of key g).
template <class T>
__device__ inline void add_qk(float (&c)[4], const Unit<T>& q0, const Unit<T>& q8, const Unit<T>& k) {
  if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int i = 0; i < 8; i += 2) mma_f32(c, {q0.r[i], q8.r[i], q0.r[i + 1], q8.r[i + 1]}, k.r[i], k.r[i + 1]);
  } else {
    mma_16816<T>(c, q0.r[0], q8.r[0], q0.r[1], q8.r[1], k.r[0], k.r[1]);
    mma_16816<T>(c, q0.r[2], q8.r[2], q0.r[3], q8.r[3], k.r[2], k.r[3]);
  }
}

template <class T>
__device__ inline std::uint32_t pack(float low, float high);
template <>
__device__ inline std::uint32_t pack<__half>(float low, float high) {
  const __half2 x = __floats2half2_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&x);
}
template <>
__device__ inline std::uint32_t pack<bf16>(float low, float high) {
  const __nv_bfloat162 x = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&x);
}

// acc[e] (rows g and g + 8; channel e of units 2 q and 2 q + 1) += weights of 16 keys * V. w[0], w[1]: what add_qk left for two
// groups of 8 keys; v: units of keys 2 q, 2 q + 1 of the first group, then of the second.
template <class T>
__device__ inline void add_pv16(float (&acc)[8][4], const std::uint32_t (&w)[4], const Unit<T> (&v)[4]) {
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const unsigned pick = e % 2 ? 0x7632u : 0x5410u;
    mma_16816<T>(acc[e], w[0], w[1], w[2], w[3], __byte_perm(v[0].r[e / 2], v[1].r[e / 2], pick),
                 __byte_perm(v[2].r[e / 2], v[3].r[e / 2], pick));
  }
}
// The same of 8 keys in float32.
__device__ inline void add_pv8(float (&acc)[8][4], const float (&w)[4], const Unit<float>& v0, const Unit<float>& v1) {
#pragma unroll
  for (int e = 0; e < 8; ++e) mma_f32(acc[e], {w[0], w[2], w[1], w[3]}, v0.r[e], v1.r[e]);
}

// 8 codes of a quantised cache as a unit; all codes are exact in float16.
__device__ inline std::uint32_t halves(float low, float high) { return pack<__half>(low, high); }
__device__ inline std::uint32_t minus(std::uint32_t x, std::uint32_t y) {
  const __half2 z = __hsub2(*reinterpret_cast<__half2*>(&x), *reinterpret_cast<__half2*>(&y));
  return *reinterpret_cast<const std::uint32_t*>(&z);
}
// Two e4m3 codes (bytes 0 and 2 of x) as halves: exponent bias 7 to 15 by a product with 2^8; NaN stays NaN.
__device__ inline std::uint32_t halves_of_e4m3(std::uint32_t x) {
  std::uint32_t magnitude = (x & 0x007f007fu) << 7;
  const __half2 y = __hmul2(*reinterpret_cast<__half2*>(&magnitude), __floats2half2_rn(256.0f, 256.0f));
  std::uint32_t r = *reinterpret_cast<const std::uint32_t*>(&y) | (x & 0x00800080u) << 8;
  if ((x & 0x7f) == 0x7f) r |= 0x7e00u;
  if ((x >> 16 & 0x7f) == 0x7f) r |= 0x7e000000u;
  return r;
}
__device__ inline void decode_unit(int format, uint2 codes, Unit<__half>* unit) {
  constexpr std::uint32_t kBias8 = 0x64806480u, kBias4 = 0x64086408u;  // 1024 + 128, 1024 + 8
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (format == kCacheI4) {  // code 2 i in the low nibble of byte i
      const std::uint32_t byte = codes.x >> 8 * i & 0xff;
      unit->r[i] = minus((byte & 15) | (byte >> 4) << 16 | 0x64006400u, kBias4);
      continue;
    }
    const std::uint32_t pair = __byte_perm(i < 2 ? codes.x : codes.y, 0, i % 2 ? 0x4342 : 0x4140);
    unit->r[i] = format == kCacheI8 ? minus((pair ^ 0x00800080u) | 0x64006400u, kBias8) : halves_of_e4m3(pair);
  }
}
__device__ inline void decode_unit(int format, uint2 codes, Unit<float>* unit) {
  Unit<__half> h;
  decode_unit(format, codes, &h);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 f = __half22float2(*reinterpret_cast<__half2*>(&h.r[i]));
    unit->r[2 * i] = f.x;
    unit->r[2 * i + 1] = f.y;
  }
}

// 4, 8 or 16 bytes from global to shared memory, zeros when not `real`. Complete after the wait for its group.
template <int kBytes>
__device__ inline void copy_async(std::uint32_t to, const char* from, bool real) {
  const int n = real ? kBytes : 0;
  if constexpr (kBytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(n) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(kBytes), "r"(n) : "memory");
}
__device__ inline void end_copy_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ inline void wait_copy_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace hotset::cuda::attn

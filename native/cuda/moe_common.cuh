// SPDX-License-Identifier: Apache-2.0
// What the kernels of a mixture-of-experts layer share: elements, activations, rows as products take them, one weight of any form.
#pragma once
#include "cuda/float_types.cuh"
#include "cuda/moe_params.h"

namespace hotset::cuda::moe {

using std::uint16_t;
using std::uint32_t;
using std::uint64_t;
using std::uint8_t;

__device__ __forceinline__ float bf16_bits_to_float(uint32_t bits) { return __uint_as_float(bits << 16); }
__device__ __forceinline__ float f16_bits_to_float(uint32_t bits) { return __half2float(__ushort_as_half(static_cast<uint16_t>(bits))); }
__device__ __forceinline__ uint16_t bits_of(__half x) { return __half_as_ushort(x); }
__device__ __forceinline__ uint16_t bits_of(__nv_bfloat16 x) { return __bfloat16_as_ushort(x); }

__device__ __forceinline__ float e4m3_to_float(uint32_t b) {
  const uint32_t low = b & 0x7f, sign = (b & 0x80) << 24;
  if (low == 0x7f) return __uint_as_float(0x7fc00000u);
  // Exponent and fraction into place; the bias differs by 120. Subnormals come out right because float32 has them.
  return __uint_as_float(__float_as_uint(__uint_as_float(low << 20) * 0x1p120f) | sign);
}
__device__ __forceinline__ float e8m0_to_float(uint32_t b) {
  return __uint_as_float(b == 255 ? 0x7fc00000u : b == 0 ? 0x00400000u : b << 23);
}
__device__ __forceinline__ float e2m1_to_float(uint32_t q) {
  return __uint_as_float(__float_as_uint(__uint_as_float((q & 7) << 22) * 0x1p126f) | (q & 8) << 28);
}

// Element i of an array of any type.
__device__ __forceinline__ float load_as_float(MoeType type, const void* p, uint64_t i) {
  switch (type) {
    case MoeType::f32:
      return static_cast<const float*>(p)[i];
    case MoeType::f16:
      return f16_bits_to_float(static_cast<const uint16_t*>(p)[i]);
    case MoeType::bf16:
      return bf16_bits_to_float(static_cast<const uint16_t*>(p)[i]);
    case MoeType::e4m3:
      return e4m3_to_float(static_cast<const uint8_t*>(p)[i]);
    case MoeType::e8m0:
      return e8m0_to_float(static_cast<const uint8_t*>(p)[i]);
    default:
      return 0;
  }
}
__device__ __forceinline__ float round_to(MoeType type, float x) {
  if (type == MoeType::f16) return __half2float(__float2half_rn(x));
  if (type == MoeType::bf16) return __bfloat162float(__float2bfloat16_rn(x));
  return x;
}
__device__ __forceinline__ void store_as(MoeType type, void* p, uint64_t i, float x) {
  if (type == MoeType::f32) {
    static_cast<float*>(p)[i] = x;
  } else {
    static_cast<uint16_t*>(p)[i] = type == MoeType::f16 ? bits_of(__float2half_rn(x)) : bits_of(__float2bfloat16_rn(x));
  }
}

// A float32 as three bf16 whose sum it is: each takes the leading 8 bits of what is left. Infinities and NaN stay in the first.
__device__ __forceinline__ void split3(float x, uint16_t (&part)[3]) {
  const uint32_t u = __float_as_uint(x);
  if ((u & 0x7f800000u) == 0x7f800000u) {
    part[0] = static_cast<uint16_t>((u >> 16) | (u & 0xffff ? 0x40 : 0));
    part[1] = part[2] = 0;
    return;
  }
  const float rest = x - __uint_as_float(u & 0xffff0000u), last = rest - __uint_as_float(__float_as_uint(rest) & 0xffff0000u);
  part[0] = static_cast<uint16_t>(u >> 16);
  part[1] = static_cast<uint16_t>(__float_as_uint(rest) >> 16);
  part[2] = static_cast<uint16_t>(__float_as_uint(last) >> 16);
}

// The position of column c of a row in an order, and the column of position 8 t + e of a run of 32.
__device__ __forceinline__ uint32_t position_of(MoeOrder order, uint32_t c) {
  if (order == MoeOrder::nibble) return (c & ~7u) | (c & 3) * 2 | (c >> 2 & 1);
  if (order == MoeOrder::tiles) return (c & ~31u) | (c >> 1 & 3) * 8 | (c >> 3 & 3) * 2 | (c & 1);
  return c;
}

// Element (row, column) of rows that a product takes.
__device__ __forceinline__ void store_row_element(const MoeRows& rows, MoeType type, void* y, uint64_t row, uint32_t width, uint32_t column,
                                                  float x) {
  if (rows.parts == 0) return store_as(type, y, row * width + column, x);
  uint16_t* const at = static_cast<uint16_t*>(y) + row * rows.parts * width + position_of(rows.order, column);
  if (rows.parts == 1) {
    *at = type == MoeType::f16 ? bits_of(__float2half_rn(x)) : bits_of(__float2bfloat16_rn(x));
    return;
  }
  uint16_t part[3];
  split3(x, part);
  at[0] = part[0];
  at[width] = part[1];
  at[2 * width] = part[2];
}
__device__ __forceinline__ float load_row_element(const MoeRows& rows, MoeType type, const void* x, uint64_t row, uint32_t width,
                                                  uint32_t column) {
  if (rows.parts == 0) return load_as_float(type, x, row * width + column);
  const uint16_t* const at = static_cast<const uint16_t*>(x) + row * rows.parts * width + position_of(rows.order, column);
  if (rows.parts == 1) return load_as_float(type, at, 0);
  return bf16_bits_to_float(at[0]) + (bf16_bits_to_float(at[width]) + bf16_bits_to_float(at[2 * width]));
}

__device__ __forceinline__ float sigmoid(float x) {  // without overflow at either end
  const float z = expf(-fabsf(x));
  return (x >= 0 ? 1.0f : z) / (1.0f + z);
}
// NaN stays NaN, so fminf and fmaxf, which drop it, are no use.
__device__ __forceinline__ float at_most(float x, float limit) { return x > limit ? limit : x; }
__device__ __forceinline__ float clamp_to(float x, float limit) { return x > limit ? limit : x < -limit ? -limit : x; }

__device__ __forceinline__ float activated(const MoeActivation& a, float x) {
  switch (a.kind) {
    case MoeAct::relu:
      return x < 0 ? 0.0f : x;
    case MoeAct::relu2: {
      const float r = x < 0 ? 0.0f : x;
      return r * r;
    }
    case MoeAct::gelu:
      return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
    case MoeAct::geglu:
      return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
    case MoeAct::silu:
      return x * sigmoid(x);
    default:
      return x;
  }
}
// One feature between the matrices. Without a value (MoePairing::none) `value` is not looked at.
__device__ __forceinline__ float activate(const MoeActivation& a, MoePairing pairing, float gate, float value) {
  if (a.kind == MoeAct::swiglu) {
    const float g = a.limit_after ? gate : at_most(gate, a.limit);
    const float acted = g * sigmoid(a.alpha * g);
    return (a.limit_after ? at_most(acted, a.limit) : acted) * (clamp_to(value, a.limit) + a.beta);
  }
  return pairing == MoePairing::none ? activated(a, gate) : activated(a, gate) * value;
}

// Code i of a stream, low bits first.
__device__ __forceinline__ uint32_t code_at(const uint8_t* stream, uint32_t bits, uint64_t i) {
  const uint64_t bit = i * bits;
  const uint32_t shift = bit & 7;
  uint32_t word = stream[bit >> 3];
  if (shift + bits > 8) word |= static_cast<uint32_t>(stream[(bit >> 3) + 1]) << 8;
  return word >> shift & ((1u << bits) - 1);
}
// Zero point of row n, block b; not for MoeZeros::middle.
__device__ __forceinline__ uint32_t stored_zero_point(const MoeForm& f, const uint8_t* zeros, uint32_t n, uint32_t b) {
  const bool along_n = f.zeros == MoeZeros::along_n;
  const uint32_t bit = (along_n ? n : b) * (f.zeros == MoeZeros::bytes ? 8 : f.bits), shift = bit & 7;
  const uint8_t* const at = zeros + (along_n ? 0 : static_cast<uint64_t>(n) * f.zero_row_bytes) + (bit >> 3);
  uint32_t word = at[0];
  if (shift + f.bits > 8) word |= static_cast<uint32_t>(at[1]) << 8;
  return word >> shift & ((1u << f.bits) - 1);
}
__device__ __forceinline__ uint32_t zero_point_at(const MoeForm& f, const uint8_t* zeros, uint32_t n, uint32_t b) {
  return f.zeros == MoeZeros::middle ? 1u << (f.bits - 1) : stored_zero_point(f, zeros, n, b);
}
__device__ __forceinline__ float scale_at(const MoeForm& f, const uint8_t* scales, uint32_t n, uint32_t b) {
  if (f.type == MoeType::none) return 1;
  return load_as_float(f.type, scales, static_cast<uint64_t>(n >> f.scale_row_shift) * f.blocks + b);
}

// The SM80 layout (formats/sm80.h): code (n, k) as byte offset and shift.
__device__ __forceinline__ uint32_t sm80_code(const MoeForm& f, const uint8_t* w, uint32_t n, uint32_t k) {
  const uint32_t bits = f.bits, e = 32 / bits, c = 16 / bits, h = e / 2, v = 64 / e, period = 4 * e;
  const uint32_t r = k & 63, a = r % period / 8, m = r & 7, u = 4 * (r / period) + m / 2, slot = a + h * (m & 1);
  const uint64_t word = static_cast<uint64_t>(n / c) * c * (f.k / e) + static_cast<uint64_t>(k / 64) * c * v + (n % c) * v + u;
  const uint32_t bit = bits * slot;
  return w[word * 4 + bit / 8] >> (bit & 7) & ((1u << bits) - 1);
}

// Weight (n, k) of any form, without the global scale.
__device__ __forceinline__ float weight_at(const MoeForm& f, const MoePlace& p, uint32_t n, uint32_t k) {
  const uint64_t i = static_cast<uint64_t>(n) * f.k + k;
  switch (f.storage) {
    case MoeStorage::dense:
      return load_as_float(f.type, p.weights, i);
    case MoeStorage::fp8:
      return e4m3_to_float(p.weights[i]) * scale_at(f, p.scales, n, k >> f.block_shift);
    case MoeStorage::fp4_by_k:
      return e2m1_to_float(p.weights[i / 2] >> 4 * (k & 1)) * scale_at(f, p.scales, n, k >> f.block_shift);
    case MoeStorage::fp4_by_n:
      return e2m1_to_float(p.weights[(static_cast<uint64_t>(k) * f.n + n) / 2] >> 4 * (n & 1)) *
             scale_at(f, p.scales, n, k >> f.block_shift);
    default: {
      const uint32_t q = f.storage == MoeStorage::sm80 ? sm80_code(f, p.weights, n, k)
                                                       : code_at(p.weights + static_cast<uint64_t>(n) * f.row_bytes, f.bits, k);
      const int zero = static_cast<int>(zero_point_at(f, p.zeros, n, k >> f.block_shift));
      return static_cast<float>(static_cast<int>(q) - zero) * scale_at(f, p.scales, n, k >> f.block_shift);
    }
  }
}
__device__ __forceinline__ float bias_at(MoeType type, const MoePlace& p, uint32_t n) {
  return type == MoeType::none ? 0.0f : load_as_float(type, p.bias, n);
}

// Row of FC1 (or FC3: *third) that feature i takes as gate (part 0) or value (part 1).
__device__ __forceinline__ uint32_t first_row(MoePairing pairing, uint32_t inter, uint32_t i, int part, bool* third) {
  *third = pairing == MoePairing::separate && part == 1;
  if (pairing == MoePairing::interleaved) return 2 * i + part;
  if (pairing == MoePairing::halves) return i + part * inter;
  return i;
}

}  // namespace hotset::cuda::moe

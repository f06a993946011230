// SPDX-License-Identifier: Apache-2.0
// What the NEON families of quantised GEMM share: scales and zero points of a row, tails, stores.
// Everything is static: each file keeps its own copy, compiled with its own flags.
#pragma once
#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

#include "cpu_avx/quant_gemm_isa.h"

#define HOTSET_INLINE static inline __attribute__((always_inline))

namespace hotset::cpu {
namespace neon {

HOTSET_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
HOTSET_INLINE int64_t round_up(int64_t a, int64_t b) { return (a + b - 1) / b * b; }
// Bytes from row to row: an odd number of cache lines, so that the same place of several rows never falls into one cache set.
HOTSET_INLINE int64_t odd_lines(int64_t bytes) { return round_up(bytes, 64) | 64; }

// 16 bytes of which `left` exist; the others read as zero.
HOTSET_INLINE uint8x16_t load_codes(const uint8_t* p, int64_t left) {
  if (left >= 16) return vld1q_u8(p);
  uint8_t bytes[16] = {0};
  if (left > 0) memcpy(bytes, p, (size_t)left);
  return vld1q_u8(bytes);
}

// log2 of the block; one block a row reads as a block past any k.
HOTSET_INLINE int block_shift(const QuantMatrix& w) { return w.block >= w.k ? 40 : __builtin_ctzll((uint64_t)w.block); }

HOTSET_INLINE float scale_at(const QuantMatrix& w, int64_t n, int64_t j) {
  const int64_t i = n * w.scale_stride + j;
  if (w.scale_type == 1) {
    float value;
    memcpy(&value, (const char*)w.scales + 4 * i, 4);
    return value;
  }
  uint16_t half;
  memcpy(&half, (const char*)w.scales + 2 * i, 2);
  const uint16x4_t h = vdup_n_u16(half);
  return vgetq_lane_f32(w.scale_type == 10 ? vcvt_f32_f16(vreinterpret_f16_u16(h)) : vreinterpretq_f32_u32(vshll_n_u16(h, 16)), 0);
}

// The blocks of 4 consecutive runs of (1 << run_shift) codes from code k0 on; runs never cross a block. Runs past k take the last block:
// their activations are zero.
struct Blocks {
  int64_t first;
  int count;     // blocks
  int index[4];  // of each run, from `first` on
};

HOTSET_INLINE Blocks blocks_at(int64_t k0, int64_t k, int run_shift, int shift) {
  Blocks b;
  b.first = k0 >> shift;
  for (int i = 0; i < 4; ++i) b.index[i] = (int)((smaller(k0 + ((int64_t)i << run_shift), k - 1) >> shift) - b.first);
  b.count = b.index[3] + 1;
  return b;
}

// Scale of each run of `b` in row n.
HOTSET_INLINE float32x4_t scales_of(const QuantMatrix& w, int64_t n, const Blocks& b) {
  if (b.count == 1) return vdupq_n_f32(scale_at(w, n, b.first));
  const int64_t at = n * w.scale_stride + b.first;
  if (b.count == 4) {
    if (w.scale_type == 1) return vreinterpretq_f32_u8(vld1q_u8((const uint8_t*)w.scales + 4 * at));
    const uint16x4_t h = vreinterpret_u16_u8(vld1_u8((const uint8_t*)w.scales + 2 * at));
    return w.scale_type == 10 ? vcvt_f32_f16(vreinterpret_f16_u16(h)) : vreinterpretq_f32_u32(vshll_n_u16(h, 16));
  }
  float s[4];
  for (int i = 0; i < 4; ++i) s[i] = scale_at(w, n, b.first + b.index[i]);
  return vld1q_f32(s);
}

// Zero point of each run of `b` in row n; the matrix has zero points.
template <int BITS>
HOTSET_INLINE int32x4_t zeros_of(const QuantMatrix& w, int64_t n, const Blocks& b) {
  constexpr int kMask = (1 << BITS) - 1;
  if (w.zero_stride == 0) return vdupq_n_s32((w.zero_points[n * BITS / 8] >> (n * BITS % 8)) & kMask);
  const uint8_t* p = w.zero_points + n * w.zero_stride + b.first * BITS / 8;
  const int bit = (int)(b.first * BITS % 8);
  uint64_t codes = 0;
  memcpy(&codes, p, (size_t)((bit + b.count * BITS + 7) / 8));
  codes >>= bit;
  int32_t z[4];
  for (int i = 0; i < 4; ++i) z[i] = (int32_t)(codes >> (b.index[i] * BITS)) & kMask;
  return vld1q_s32(z);
}

// r[i][j] becomes r[j][i].
HOTSET_INLINE void transpose4(uint32x4_t r[4]) {
  const uint64x2_t a = vreinterpretq_u64_u32(vtrn1q_u32(r[0], r[1])), b = vreinterpretq_u64_u32(vtrn2q_u32(r[0], r[1]));
  const uint64x2_t c = vreinterpretq_u64_u32(vtrn1q_u32(r[2], r[3])), d = vreinterpretq_u64_u32(vtrn2q_u32(r[2], r[3]));
  r[0] = vreinterpretq_u32_u64(vtrn1q_u64(a, c));
  r[1] = vreinterpretq_u32_u64(vtrn1q_u64(b, d));
  r[2] = vreinterpretq_u32_u64(vtrn2q_u64(a, c));
  r[3] = vreinterpretq_u32_u64(vtrn2q_u64(b, d));
}

// What a tile of a panel adds its sums to: `width` (at most 8) columns from y on. Neither bias nor y need be aligned.
struct Store {
  const float* bias;  // null: none
  float* y;
  int64_t ldy;
  int width;
  bool first, last;  // panel of the row
};

HOTSET_INLINE float32x4_t load_floats(const float* p) { return vreinterpretq_f32_u8(vld1q_u8((const uint8_t*)p)); }

HOTSET_INLINE void store_sums(const Store& out, int64_t row, float32x4_t a, float32x4_t b) {
  float* y = out.y + row * out.ldy;
  if (out.width == 8) {
    if (!out.first) a = vaddq_f32(a, load_floats(y)), b = vaddq_f32(b, load_floats(y + 4));
    if (out.last && out.bias) a = vaddq_f32(a, load_floats(out.bias)), b = vaddq_f32(b, load_floats(out.bias + 4));
    vst1q_f32(y, a);
    vst1q_f32(y + 4, b);
    return;
  }
  float sums[8];
  vst1q_f32(sums, a);
  vst1q_f32(sums + 4, b);
  for (int j = 0; j < out.width; ++j) {
    float bias = 0;
    if (out.last && out.bias) memcpy(&bias, out.bias + j, 4);
    y[j] = (out.first ? sums[j] : y[j] + sums[j]) + bias;
  }
}

}  // namespace neon
}  // namespace hotset::cpu

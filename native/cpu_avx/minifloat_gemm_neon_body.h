// SPDX-License-Identifier: Apache-2.0
// Minifloat products for NEON, two rows of W by up to two rows of x, lanes along K; a chunk is 16 bytes of a row. Included by the file
// of an instruction set after HOTSET_DOT8; everything is static.
//
//   E2M1, exact  one table lookup gives the upper byte of a code's value as a half, whose lower byte is zero; shll and fcvtl widen it.
//   E4M3, exact  a byte at the place of sign, exponent and mantissa in a half is its value / 256. NaN codes are looked for with a
//                maximum of all bytes.
//   E2M1, int8   the lookup gives twice the value, -12 ... 12; HOTSET_DOT8(sum, a, b) adds the products of 16 signed bytes to the sums
//                of their lane of four. Lanes 0 and 1 belong to the first run of 16 codes, 2 and 3 to the second.
// A run is 16 codes: no block is smaller, and each run has one scale.
#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

#include "cpu_avx/minifloat_gemm_isa.h"

#define HOTSET_INLINE static inline __attribute__((always_inline))

namespace hotset::cpu {
namespace {

enum { kE4m3 = 17, kE8m0 = 24 };                     // element types of scales
constexpr int64_t kRuns = 8, kStretch = 16 * kRuns;  // codes whose scales are brought at once

HOTSET_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
HOTSET_INLINE int64_t round_up(int64_t a, int64_t b) { return (a + b - 1) / b * b; }

// ---- values and scales --------------------------------------------------------------------------------------------------------------

// The four halves as floats.
HOTSET_INLINE float32x4_t low_floats(uint16x8_t halves) { return vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(halves))); }
HOTSET_INLINE float32x4_t high_floats(uint16x8_t halves) { return vcvt_f32_f16(vreinterpret_f16_u16(vget_high_u16(halves))); }

// Halves of eight E4M3 bytes: value / 256, NaN codes as if they were numbers.
HOTSET_INLINE uint16x8_t halves_of_e4m3(uint8x8_t bytes) {
  const int16x8_t high = vreinterpretq_s16_u16(vshll_n_u8(bytes, 8));
  return vandq_u16(vreinterpretq_u16_s16(vshrq_n_s16(high, 1)), vdupq_n_u16(0xbf80));
}

// Upper bytes of the halves of 16 E2M1 codes, each in a byte.
HOTSET_INLINE uint8x16_t half_bytes_of_e2m1(uint8x16_t codes) {
  const uint8_t table[16] = {0, 0x38, 0x3c, 0x3e, 0x40, 0x42, 0x44, 0x46, 0x80, 0xb8, 0xbc, 0xbe, 0xc0, 0xc2, 0xc4, 0xc6};
  return vqtbl1q_u8(vld1q_u8(table), codes);
}

// All bits set where a byte of E4M3 is NaN.
HOTSET_INLINE void nan_masks(uint8x8_t bytes, uint32x4_t mask[2]) {
  const int8x8_t found = vreinterpret_s8_u8(vceq_u8(vand_u8(bytes, vdup_n_u8(0x7f)), vdup_n_u8(0x7f)));
  const int16x8_t wide = vmovl_s8(found);
  mask[0] = vreinterpretq_u32_s32(vmovl_s16(vget_low_s16(wide)));
  mask[1] = vreinterpretq_u32_s32(vmovl_s16(vget_high_s16(wide)));
}

HOTSET_INLINE float32x4_t or_bits(float32x4_t v, uint32x4_t bits) {
  return vreinterpretq_f32_u32(vorrq_u32(vreinterpretq_u32_f32(v), bits));
}

// Up to eight scales at p as floats.
HOTSET_INLINE void floats_of_scales(int type, const char* p, int64_t count, float out[kRuns]) {
  const int64_t size = type == 1 ? 4 : type == 10 || type == 16 ? 2 : 1;
  uint8_t bytes[4 * kRuns] = {0};
  memcpy(bytes, p, (size_t)(count * size));
  float32x4_t s[2];
  const uint16x8_t wide = vreinterpretq_u16_u8(vld1q_u8(bytes));
  if (type == 1) {
    s[0] = vreinterpretq_f32_u8(vld1q_u8(bytes)), s[1] = vreinterpretq_f32_u8(vld1q_u8(bytes + 16));
  } else if (type == 10) {
    s[0] = low_floats(wide), s[1] = high_floats(wide);
  } else if (type == 16) {
    s[0] = vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(wide), 16)), s[1] = vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(wide), 16));
  } else {
    const uint8x8_t eight = vld1_u8(bytes);
    uint32x4_t nan[2];
    if (type == kE4m3) {
      const uint16x8_t halves = halves_of_e4m3(eight);
      nan_masks(eight, nan);
      s[0] = or_bits(vmulq_n_f32(low_floats(halves), 256.0f), nan[0]), s[1] = or_bits(vmulq_n_f32(high_floats(halves), 256.0f), nan[1]);
    } else {
      const uint16x8_t exponents = vmovl_u8(eight);
      const uint32x4_t e[2] = {vmovl_u16(vget_low_u16(exponents)), vmovl_u16(vget_high_u16(exponents))};
      for (int i = 0; i < 2; ++i) {
        const uint32x4_t bits = vmaxq_u32(vshlq_n_u32(e[i], 23), vdupq_n_u32(0x00400000));  // byte 0 is 2^-127
        s[i] = vreinterpretq_f32_u32(vorrq_u32(bits, vceqq_u32(e[i], vdupq_n_u32(255))));
      }
    }
  }
  vst1q_f32(out, s[0]), vst1q_f32(out + 4, s[1]);
}

// Scales of the runs of row n from code k0 on; those past k repeat the last one, and meet zeros.
HOTSET_INLINE void run_scales(const MinifloatMatrix& w, int64_t n, int64_t k0, int shift, float out[kRuns]) {
  if (w.scale_type == 0) {
    for (int j = 0; j < kRuns; ++j) out[j] = 1;
    return;
  }
  const int64_t first = k0 >> shift, count = ((smaller(w.k, k0 + kStretch) - 1) >> shift) - first + 1;
  const int64_t size = w.scale_type == 1 ? 4 : w.scale_type == 10 || w.scale_type == 16 ? 2 : 1;
  float scales[kRuns];
  floats_of_scales(w.scale_type, (const char*)w.scales + (n / w.scale_rows * w.scale_stride + first) * size, count, scales);
  for (int j = 0; j < kRuns; ++j) out[j] = scales[smaller(((k0 + 16 * j) >> shift) - first, count - 1)];
}

HOTSET_INLINE int shift_of(const MinifloatMatrix& w) { return w.block >= w.k ? 40 : __builtin_ctzll((uint64_t)w.block); }

// The 16 bytes at p of which `left` exist; the others are zero.
HOTSET_INLINE uint8x16_t load_codes(const uint8_t* p, int64_t left) {
  if (left >= 16) return vld1q_u8(p);
  uint8_t bytes[16] = {0};
  memcpy(bytes, p, (size_t)left);
  return vld1q_u8(bytes);
}

// ---- prepared rows ------------------------------------------------------------------------------------------------------------------

// Whole stretches of floats; for E2M1 the even and then the odd elements of each run.
static int64_t f32_row_floats(int64_t k) { return round_up(k, kStretch); }
static size_t f32_prepared_bytes(int, int64_t m, int64_t k) { return (size_t)(m * f32_row_floats(k)) * sizeof(float); }

static void f32_prepare(int bits, bool rounds, const float* x, int64_t ldx, int64_t k, int64_t m0, int64_t m1, void* prepared) {
  for (int64_t m = m0; m < m1; ++m) {
    float* const row = (float*)prepared + m * f32_row_floats(k);
    if (rounds)
      round_to_int8(x + m * ldx, k, row);
    else if (k > 0)
      memcpy(row, x + m * ldx, (size_t)k * sizeof(float));
    memset(row + k, 0, (size_t)(f32_row_floats(k) - k) * sizeof(float));
    for (int64_t i = 0; bits == 4 && i < f32_row_floats(k); i += 16) {
      const float32x4x2_t a = vld2q_f32(row + i), b = vld2q_f32(row + i + 8);
      vst1q_f32(row + i, a.val[0]), vst1q_f32(row + i + 4, b.val[0]);
      vst1q_f32(row + i + 8, a.val[1]), vst1q_f32(row + i + 12, b.val[1]);
    }
  }
}

// int8: of each group of 32 the even q of both runs and then the odd ones, for all groups of whole stretches; then d of each group.
struct Int8Row {
  int64_t groups;
  const char* base;

  static inline __attribute__((always_inline)) Int8Row make(const void* prepared, int64_t k) {
    return {round_up(k, kStretch) / 32, (const char*)prepared};
  }
  inline __attribute__((always_inline)) int64_t stride() const { return round_up(groups * 36, 64); }
  inline __attribute__((always_inline)) int8_t* q(int64_t i) const { return (int8_t*)(base + i * stride()); }
  inline __attribute__((always_inline)) float* d(int64_t i) const { return (float*)(q(i) + 32 * groups); }
};

static size_t i8_prepared_bytes(int, int64_t m, int64_t k) { return (size_t)(m * Int8Row::make(nullptr, k).stride()); }

static void i8_prepare(int, bool, const float* x, int64_t ldx, int64_t k, int64_t m0, int64_t m1, void* prepared) {
  const Int8Row rows = Int8Row::make(prepared, k);
  for (int64_t m = m0; m < m1; ++m) {
    for (int64_t g = 0; g < rows.groups; ++g) {
      float group[32] = {0};
      if (k > 32 * g) memcpy(group, x + m * ldx + 32 * g, (size_t)smaller(32, k - 32 * g) * sizeof(float));
      float32x4_t largest4 = vdupq_n_f32(0);  // fmax keeps a NaN
      for (int i = 0; i < 32; i += 4) largest4 = vmaxq_f32(largest4, vabsq_f32(vld1q_f32(group + i)));
      const float largest = vmaxvq_f32(largest4), inverse = largest < 0x1p-100f ? 0.0f : 127.0f / largest;
      rows.d(m)[g] = largest / 127.0f;
      int16x8_t q[4];
      for (int i = 0; i < 4; ++i)
        q[i] = vcombine_s16(vmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(group + 8 * i), inverse))),
                            vmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(group + 8 * i + 4), inverse))));
      const int8x16_t a = vcombine_s8(vmovn_s16(q[0]), vmovn_s16(q[1])), b = vcombine_s8(vmovn_s16(q[2]), vmovn_s16(q[3]));
      vst1q_s8(rows.q(m) + 32 * g, vuzp1q_s8(a, b));
      vst1q_s8(rows.q(m) + 32 * g + 16, vuzp2q_s8(a, b));
    }
  }
}

// ---- products -----------------------------------------------------------------------------------------------------------------------

// 16 codes of one run, as upper bytes of halves in their order, by MR rows of x, `stride` floats apart.
template <int MR>
HOTSET_INLINE void add_run(const uint16x8_t halves[2], const float* x, int64_t stride, float scale, float32x4_t sum[MR]) {
  const float32x4_t value[4] = {low_floats(halves[0]), high_floats(halves[0]), low_floats(halves[1]), high_floats(halves[1])};
  for (int m = 0; m < MR; ++m) {
    const float* at = x + m * stride;
    float32x4_t dot = vmulq_f32(value[0], vld1q_f32(at));
    dot = vfmaq_f32(dot, value[1], vld1q_f32(at + 4));
    dot = vfmaq_f32(dot, value[2], vld1q_f32(at + 8));
    dot = vfmaq_f32(dot, value[3], vld1q_f32(at + 12));
    sum[m] = vfmaq_n_f32(sum[m], dot, scale);
  }
}

// 16 bytes of codes of one row of W: chunk c of a stretch. x is at the chunk.
template <int BITS, int MR>
HOTSET_INLINE void add_floats(uint8x16_t bytes, const float* x, int64_t stride, const float* runs, float32x4_t sum[MR]) {
  if (BITS == 8) {
    const uint16x8_t halves[2] = {halves_of_e4m3(vget_low_u8(bytes)), halves_of_e4m3(vget_high_u8(bytes))};
    add_run<MR>(halves, x, stride, runs[0], sum);
    return;
  }
  const uint8x16_t even = half_bytes_of_e2m1(vandq_u8(bytes, vdupq_n_u8(15))), odd = half_bytes_of_e2m1(vshrq_n_u8(bytes, 4));
  const uint16x8_t first[2] = {vshll_n_u8(vget_low_u8(even), 8), vshll_n_u8(vget_low_u8(odd), 8)};
  const uint16x8_t second[2] = {vshll_n_u8(vget_high_u8(even), 8), vshll_n_u8(vget_high_u8(odd), 8)};
  add_run<MR>(first, x, stride, runs[0], sum);
  add_run<MR>(second, x + 16, stride, runs[1], sum);
}

template <int MR>
HOTSET_INLINE void add_int8(uint8x16_t bytes, const Int8Row& rows, int64_t i, int64_t g, const float* runs, float32x4_t sum[MR]) {
  const int8_t doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  const int8x16_t table = vld1q_s8(doubled);
  const int8x16_t even = vqtbl1q_s8(table, vandq_u8(bytes, vdupq_n_u8(15))), odd = vqtbl1q_s8(table, vshrq_n_u8(bytes, 4));
  const float32x4_t scale = vcombine_f32(vdup_n_f32(runs[0]), vdup_n_f32(runs[1]));
  for (int m = 0; m < MR; ++m) {
    const int8_t* q = rows.q(i + m) + 32 * g;
    int32x4_t dot = HOTSET_DOT8(vdupq_n_s32(0), even, vld1q_s8(q));
    dot = HOTSET_DOT8(dot, odd, vld1q_s8(q + 16));
    sum[m] = vfmaq_f32(sum[m], vcvtq_f32_s32(dot), vmulq_n_f32(scale, rows.d(i + m)[g]));
  }
}

// Columns [n0, n1), two at a time, by rows [i, i + MR).
template <int BITS, bool INT8, int MR>
static void pass(const MinifloatMatrix& w, const void* prepared, int64_t i, int64_t n0, int64_t n1, const float* bias, float* y,
                 int64_t ldy) {
  constexpr int64_t kChunk = 128 / BITS;
  const int shift = shift_of(w);
  const int64_t stride = f32_row_floats(w.k), bytes_in_row = (w.k * BITS + 7) / 8;
  const Int8Row rows = Int8Row::make(prepared, w.k);
  for (int64_t n = n0; n < n1; n += 2) {
    float32x4_t sum[2][MR];
    uint8x16_t largest[2];  // E4M3: of the codes without their signs
    int64_t row[2];         // a row past the end repeats the last one
    for (int r = 0; r < 2; ++r) {
      row[r] = smaller(n + r, n1 - 1);
      largest[r] = vdupq_n_u8(0);
      for (int m = 0; m < MR; ++m) sum[r][m] = vdupq_n_f32(0);
    }
    for (int64_t k0 = 0; k0 < w.k; k0 += kStretch) {
      float runs[2][kRuns];
      for (int r = 0; r < 2; ++r) run_scales(w, row[r], k0, shift, runs[r]);
      for (int64_t k = k0; k < smaller(w.k, k0 + kStretch); k += kChunk) {
        for (int r = 0; r < 2; ++r) {
          const uint8x16_t bytes = load_codes(w.codes + row[r] * w.row_bytes + k * BITS / 8, bytes_in_row - k * BITS / 8);
          const float* scale = runs[r] + (k - k0) / 16;
          if (BITS == 8) largest[r] = vmaxq_u8(largest[r], vandq_u8(bytes, vdupq_n_u8(0x7f)));
          if (INT8)
            add_int8<MR>(bytes, rows, i, k / 32, scale, sum[r]);
          else
            add_floats<BITS, MR>(bytes, (const float*)prepared + i * stride + k, stride, scale, sum[r]);
        }
      }
    }
    for (int r = 0; r < 2 && n + r < n1; ++r) {
      const bool is_nan = BITS == 8 && vmaxvq_u8(largest[r]) == 0x7f;
      for (int m = 0; m < MR; ++m) {
        const float result = vaddvq_f32(sum[r][m]) * (BITS == 8 ? 256.0f : INT8 ? 0.5f : 1.0f) * w.factor;
        y[(i + m) * ldy + n + r] = is_nan ? __builtin_nanf("") : result + (bias ? bias[n + r] : 0.0f);
      }
    }
  }
}

template <int BITS, bool INT8>
static void multiply_as(const MinifloatMatrix& w, const void* prepared, int64_t m0, int64_t m1, int64_t n0, int64_t n1, const float* bias,
                        float* y, int64_t ldy) {
  constexpr int64_t kColumns = 32;  // the next rows of x find these rows of W in the cache
  for (int64_t n = n0; n < n1; n += kColumns) {
    const int64_t end = smaller(n1, n + kColumns);
    for (int64_t i = m0; i < m1; i += 2) {
      if (m1 - i > 1)
        pass<BITS, INT8, 2>(w, prepared, i, n, end, bias, y, ldy);
      else
        pass<BITS, INT8, 1>(w, prepared, i, n, end, bias, y, ldy);
    }
  }
}

}  // namespace
}  // namespace hotset::cpu

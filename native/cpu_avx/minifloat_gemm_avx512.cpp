// SPDX-License-Identifier: Apache-2.0
// Exact minifloat products for AVX-512, four rows of W by one or two rows of x, lanes along K.
//
//   E2M1  a chunk is 64 bytes, 128 codes; dword l holds codes 8 l ... 8 l + 7. vpermps looks a code up in a table of 16 floats and reads
//         the low 4 bits of an index only, so step i is a shift by 4 i. Per 64 bytes: 7 shifts, 8 vpermps, 8 FMA.
//   E4M3  a chunk is 64 bytes, 64 codes. A byte shifted to the place of sign, exponent and mantissa in a half is its value / 256
//         (subnormals too), which vcvtph2ps widens. Step 2 h + p is code 32 h + 2 l + p in lane l. Per 64 bytes: 1 + 2 shifts, 2 ands,
//         4 conversions, 4 FMA. NaN codes, which a half takes for 480, are looked for with a maximum of all bytes.
#include "cpu_avx/minifloat_gemm_avx512.h"

namespace hotset::cpu {
namespace {

using namespace minifloat512;

template <int BITS>
constexpr int kSteps = BITS == 4 ? 8 : 4;
template <int BITS>
constexpr int64_t kChunk = 512 / BITS;

// ---- prepared rows: for each chunk its steps, 16 floats each; whole stretches --------------------------------------------------------

static int64_t row_bytes(int64_t k) { return odd_lines(round_up(k, kStretch) * (int64_t)sizeof(float)); }
static size_t prepared_bytes(int, int64_t m, int64_t k) { return (size_t)(m * row_bytes(k)); }

// In place, 32 floats: x becomes q * d.
HOTSET_INLINE void round_group(float* p) {
  Group group = load_group(p, 32);
  const __m512 d = _mm512_set1_ps(quantize_i8(&group));
  for (int h = 0; h < 2; ++h) _mm512_store_ps(p + 16 * h, _mm512_mul_ps(_mm512_cvtepi32_ps(group.q[h]), d));
}

template <int BITS>
static void prepare_as(bool rounds, const float* x, int64_t ldx, int64_t k, int64_t m0, int64_t m1, void* prepared) {
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i at = _mm512_slli_epi32(lane, BITS == 4 ? 3 : 1);
  for (int64_t m = m0; m < m1; ++m) {
    float* out = (float*)((char*)prepared + m * row_bytes(k));
    for (int64_t k0 = 0; k0 < round_up(k, kStretch); k0 += kChunk<BITS>) {
      float chunk[kChunk<BITS>] __attribute__((aligned(64)));
      for (int64_t i = 0; i < kChunk<BITS>; i += 16)
        _mm512_store_ps(chunk + i, _mm512_maskz_loadu_ps(first16(k - k0 - i), x + m * ldx + smaller(k0 + i, k)));
      for (int64_t i = 0; rounds && i < kChunk<BITS>; i += 32) round_group(chunk + i);
      for (int i = 0; i < kSteps<BITS>; ++i, out += 16)
        _mm512_store_ps(out, _mm512_i32gather_ps(at, chunk + (BITS == 4 ? i : i / 2 * 32 + i % 2), 4));
    }
  }
}

static void prepare(int bits, bool rounds, const float* x, int64_t ldx, int64_t k, int64_t m0, int64_t m1, void* prepared) {
  if (bits == 4)
    prepare_as<4>(rounds, x, ldx, k, m0, m1, prepared);
  else
    prepare_as<8>(rounds, x, ldx, k, m0, m1, prepared);
}

// ---- products -----------------------------------------------------------------------------------------------------------------------

// What four rows of W by MR rows of x have come to.
template <int MR>
struct Sums {
  __m512 sum[4][MR];
  __m512i largest[4];  // E4M3: of the codes without their signs
};

// Chunk c of a stretch: 64 bytes of each row of W. x: of the stretch, rows of x lie `stride` floats apart; `scales`: of the stretch.
template <int MR>
HOTSET_INLINE void add_e2m1(const __m512i bytes[4], const float* x, int64_t stride, int c, const Walk& walk, const __m512 scales[4],
                            Sums<MR>* sums) {
  const __m512 table = _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
  const __m512i lane = _mm512_setr_epi32(0, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 104, 112, 120);
  const __m512i index = walk.index(_mm512_add_epi32(lane, _mm512_set1_epi32((int)kChunk<4> * c)));
  x += c * kChunk<4>;
  if (MR == 1) {  // four chains of sums side by side; the order inside a chain is the same for any number of rows
    __m512 dot[4];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      const __m512 xi = _mm512_load_ps(x + 16 * i);
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) {
        const __m512 value = _mm512_permutexvar_ps(i == 0 ? bytes[r] : _mm512_srli_epi32(bytes[r], (unsigned)(4 * i)), table);
        dot[r] = i == 0 ? _mm512_mul_ps(value, xi) : _mm512_fmadd_ps(value, xi, dot[r]);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) sums->sum[r][0] = _mm512_fmadd_ps(dot[r], _mm512_permutexvar_ps(index, scales[r]), sums->sum[r][0]);
    return;
  }
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
    __m512 dot[MR];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      const __m512 value = _mm512_permutexvar_ps(i == 0 ? bytes[r] : _mm512_srli_epi32(bytes[r], (unsigned)(4 * i)), table);
      for (int m = 0; m < MR; ++m) {
        const __m512 xi = _mm512_load_ps(x + m * stride + 16 * i);
        dot[m] = i == 0 ? _mm512_mul_ps(value, xi) : _mm512_fmadd_ps(value, xi, dot[m]);
      }
    }
    const __m512 scale = _mm512_permutexvar_ps(index, scales[r]);
    for (int m = 0; m < MR; ++m) sums->sum[r][m] = _mm512_fmadd_ps(dot[m], scale, sums->sum[r][m]);
  }
}

template <int MR, int TYPE>
HOTSET_INLINE void add_e4m3(const __m512i bytes[4], const float* x, int64_t stride, int c, const Walk& walk, const __m512 scales[4],
                            Sums<MR>* sums) {
  const __m512i lane = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i fields = _mm512_set1_epi16((short)0xbf80);
  __m512i index[2];
  for (int h = 0; h < 2; ++h) index[h] = walk.index(_mm512_add_epi32(lane, _mm512_set1_epi32((int)kChunk<8> * c + 32 * h)));
  x += c * kChunk<8>;
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
    sums->largest[r] = _mm512_max_epu8(sums->largest[r], _mm512_and_si512(bytes[r], _mm512_set1_epi8(0x7f)));
    const __m512i even = _mm512_and_si512(_mm512_srai_epi16(_mm512_slli_epi16(bytes[r], 8), 1), fields);
    const __m512i odd = _mm512_and_si512(_mm512_srai_epi16(bytes[r], 1), fields);
    __m512 dot[MR];
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      const __m512 first = _mm512_cvtph_ps(h ? _mm512_extracti64x4_epi64(even, 1) : _mm512_castsi512_si256(even));
      const __m512 second = _mm512_cvtph_ps(h ? _mm512_extracti64x4_epi64(odd, 1) : _mm512_castsi512_si256(odd));
      for (int m = 0; m < MR; ++m) {
        const __m512 x0 = _mm512_load_ps(x + m * stride + 32 * h), x1 = _mm512_load_ps(x + m * stride + 32 * h + 16);
        if (TYPE == kNoScales) {
          sums->sum[r][m] = _mm512_fmadd_ps(second, x1, _mm512_fmadd_ps(first, x0, sums->sum[r][m]));
          continue;
        }
        const bool adds = TYPE == kAnyWide && h == 1;
        dot[m] = _mm512_fmadd_ps(second, x1, adds ? _mm512_fmadd_ps(first, x0, dot[m]) : _mm512_mul_ps(first, x0));
        if (TYPE == kAnyWide && h == 0) continue;
        sums->sum[r][m] = _mm512_fmadd_ps(dot[m], _mm512_permutexvar_ps(index[h], scales[r]), sums->sum[r][m]);
      }
    }
  }
}

// One stretch; WHOLE: all its bytes exist, else `left` of them do.
template <int BITS, int TYPE, int MR, bool WHOLE>
HOTSET_INLINE void add_stretch(const uint8_t* const codes[4], int64_t at, int64_t left, int64_t ahead, const float* x, int64_t stride,
                               const Walk& walk, const __m512 scales[4], Sums<MR>* sums) {
#pragma GCC unroll 4
  for (int c = 0; c < kStretch / kChunk<BITS>; ++c, at += 64, left -= 64) {
    if (!WHOLE && left <= 0) break;
    __m512i bytes[4];
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      _mm_prefetch((const char*)codes[r] + at + ahead, _MM_HINT_T0);
      bytes[r] = WHOLE ? _mm512_loadu_si512(codes[r] + at) : _mm512_maskz_loadu_epi8(first64(left), codes[r] + at);
      __asm__("" : "+v"(bytes[r]));  // stays in a register: gcc loads it anew for every shift
    }
    if (BITS == 4)
      add_e2m1<MR>(bytes, x, stride, c, walk, scales, sums);
    else
      add_e4m3<MR, TYPE>(bytes, x, stride, c, walk, scales, sums);
  }
}

template <int BITS, int TYPE, int MR>
static void pass(const MinifloatMatrix& w, const void* prepared, int64_t i, int64_t n0, int64_t n1, const float* bias, float* y,
                 int64_t ldy) {
  const Walk walk = walk_of(w);
  const int64_t ahead = ahead_of(w), bytes_in_row = (w.k * BITS + 7) / 8, stride = row_bytes(w.k) / (int64_t)sizeof(float);
  for (int64_t n = n0; n < n1; n += 4) {
    prefetch_run_scales(w, n);
    Sums<MR> sums;
    int64_t row[4];  // rows past the end repeat the last one
    const uint8_t* codes[4];
    for (int r = 0; r < 4; ++r) {
      row[r] = smaller(n + r, n1 - 1);
      codes[r] = w.codes + row[r] * w.row_bytes;
      sums.largest[r] = _mm512_setzero_si512();
      for (int m = 0; m < MR; ++m) sums.sum[r][m] = _mm512_setzero_ps();
    }
    const float* x = (const float*)prepared + i * stride;
    int64_t at = 0;
    for (int64_t k0 = 0; k0 < w.k; k0 += kStretch, x += kStretch, at += kStretch * BITS / 8) {
      __m512 scales[4];
      for (int r = 0; r < 4; ++r) scales[r] = scales_at<TYPE>(w, row[r], walk.first(k0), walk.mask(k0));
      if (k0 + kStretch <= w.k)
        add_stretch<BITS, TYPE, MR, true>(codes, at, 0, ahead, x, stride, walk, scales, &sums);
      else
        add_stretch<BITS, TYPE, MR, false>(codes, at, bytes_in_row - at, ahead, x, stride, walk, scales, &sums);
    }
    const __mmask8 mask = (__mmask8)first16(smaller(4, n1 - n));
    const __m128 offset = bias ? _mm_maskz_loadu_ps(mask, bias + n) : _mm_setzero_ps();
    __mmask8 nan = 0;
    for (int r = 0; r < 4 && BITS == 8; ++r) nan |= (__mmask8)((_mm512_cmpeq_epi8_mask(sums.largest[r], _mm512_set1_epi8(0x7f)) != 0) << r);
    for (int m = 0; m < MR; ++m) {
      __m128 result = sum4(sums.sum[0][m], sums.sum[1][m], sums.sum[2][m], sums.sum[3][m]);
      if (BITS == 8) result = _mm_mask_mov_ps(_mm_mul_ps(result, _mm_set1_ps(256.0f)), nan, _mm_set1_ps(__builtin_nanf("")));
      _mm_mask_storeu_ps(y + (i + m) * ldy + n, mask, _mm_fmadd_ps(result, _mm_set1_ps(w.factor), offset));
    }
  }
}

template <int BITS, int TYPE>
static void multiply_as(const MinifloatMatrix& w, const void* prepared, int64_t m0, int64_t m1, int64_t n0, int64_t n1, const float* bias,
                        float* y, int64_t ldy) {
  constexpr int64_t kColumns = 32;  // the next rows of x find these rows of W in the cache
  for (int64_t n = n0; n < n1; n += kColumns) {
    const int64_t end = smaller(n1, n + kColumns);
    for (int64_t i = m0; i < m1; i += 2) {  // two rows: the sums of four spill
      if (m1 - i > 1)
        pass<BITS, TYPE, 2>(w, prepared, i, n, end, bias, y, ldy);
      else
        pass<BITS, TYPE, 1>(w, prepared, i, n, end, bias, y, ldy);
    }
  }
}

static void multiply(const MinifloatMatrix& w, const void* prepared, int64_t m0, int64_t m1, int64_t n0, int64_t n1, const float* bias,
                     float* y, int64_t ldy) {
  if (w.bits == 8 && w.scale_type == 0) return multiply_as<8, kNoScales>(w, prepared, m0, m1, n0, n1, bias, y, ldy);
  if (w.bits == 8 && w.block >= 64) return multiply_as<8, kAnyWide>(w, prepared, m0, m1, n0, n1, bias, y, ldy);
  if (w.bits == 8) return multiply_as<8, kAnyScales>(w, prepared, m0, m1, n0, n1, bias, y, ldy);
  if (w.scale_rows == 1 && w.scale_type == kE4m3) return multiply_as<4, kE4m3>(w, prepared, m0, m1, n0, n1, bias, y, ldy);
  if (w.scale_rows == 1 && w.scale_type == kE8m0) return multiply_as<4, kE8m0>(w, prepared, m0, m1, n0, n1, bias, y, ldy);
  multiply_as<4, kAnyScales>(w, prepared, m0, m1, n0, n1, bias, y, ldy);
}

// 16 weights a step, in order.
static void to_floats(const MinifloatMatrix& w, int64_t n, float* out) {
  const __m512 table = _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
  const __m512i nibble = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
  const __m512i half = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
  const Walk walk = walk_of(w);
  const __m512 factor = _mm512_set1_ps(w.factor);
  const uint8_t* codes = w.codes + n * w.row_bytes;
  for (int64_t k0 = 0; k0 < w.k; k0 += kStretch) {
    const __m512 scales = scales_at<kAnyScales>(w, n, walk.first(k0), walk.mask(k0));
    for (int64_t k = k0; k < smaller(w.k, k0 + kStretch); k += 16) {
      const __mmask16 mask = first16(w.k - k);
      __m512 value;
      if (w.bits == 4) {
        const __m128i bytes = _mm_maskz_loadu_epi8(first16((smaller(w.k - k, 16) + 1) / 2), codes + k / 2);
        const __m512i pairs = _mm512_permutexvar_epi32(half, _mm512_castsi128_si512(bytes));
        value = _mm512_permutexvar_ps(_mm512_srlv_epi32(pairs, nibble), table);
      } else {
        value = floats_of_e4m3(_mm_maskz_loadu_epi8(mask, codes + k));
      }
      const __m512 scale = _mm512_permutexvar_ps(walk.index(_mm512_set1_epi32((int)(k - k0))), scales);
      _mm512_mask_storeu_ps(out + k, mask, _mm512_mul_ps(_mm512_mul_ps(value, scale), factor));
    }
  }
}

}  // namespace

const MinifloatGemm kMinifloatF32Avx512 = {"avx512", prepared_bytes, prepare, multiply, to_floats};

}  // namespace hotset::cpu

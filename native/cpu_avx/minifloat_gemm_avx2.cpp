// SPDX-License-Identifier: Apache-2.0
// Minifloat products for AVX2, four rows of W by up to two rows of x, lanes along K; a chunk is 32 bytes of a row.
//
//   E2M1, exact  two vpshufb give the two bytes of a code as a bfloat16, unpacking joins them, a shift and an and widen them. Step
//                4 u + 2 p + e is, in lane l, nibble p of byte 16 (l / 4) + 8 u + 2 (l mod 4) + e.
//   E4M3, exact  a byte at the place of sign, exponent and mantissa in a half is its value / 256, which vcvtph2ps widens. Step 2 h + p
//                is code 16 h + 2 l + p in lane l. NaN codes are looked for with a maximum of all bytes.
//   E2M1, int8   vpshufb gives 12 + twice the value, 0 ... 24; vpmaddubsw of even and odd codes, at most 4 * 24 * 127 together, then
//                vpmaddwd. A lane has 8 codes of one run of 16, and begins with -12 times the sum of their activations.
#include "cpu_avx/minifloat_gemm_avx2.h"

namespace hotset::cpu {
namespace {

using namespace minifloat256;

template <int BITS>
constexpr int64_t kChunk = 256 / BITS;

// ---- exact: prepared rows are steps of 8 floats, whole stretches --------------------------------------------------------------------

static int64_t f32_row_bytes(int64_t k) { return odd_lines(round_up(k, kStretch) * (int64_t)sizeof(float)); }
static size_t f32_prepared_bytes(int, int64_t m, int64_t k) { return (size_t)(m * f32_row_bytes(k)); }

// Place in its chunk of the code that step `step` has in lane l.
template <int BITS>
HOTSET_INLINE int place(int step, int l) {
  if (BITS == 8) return 16 * (step / 2) + 2 * l + step % 2;
  return 2 * (16 * (l / 4) + 8 * (step / 4) + 2 * (l % 4) + step % 2) + step / 2 % 2;
}

template <int BITS>
static void f32_prepare_as(bool rounds, const float* x, int64_t ldx, int64_t k, int64_t m0, int64_t m1, void* prepared) {
  for (int64_t m = m0; m < m1; ++m) {
    float* out = (float*)((char*)prepared + m * f32_row_bytes(k));
    for (int64_t k0 = 0; k0 < k; k0 += kStretch) {
      float stretch[kStretch] __attribute__((aligned(32)));
      copy_stretch(x + m * ldx, k0, k, stretch);
      for (int64_t g = 0; rounds && g < kStretch; g += 32) {
        const Scale s = int8_scale(stretch + g);
        for (int64_t i = g; i < g + 32; i += 8) {
          const __m256 q = _mm256_round_ps(_mm256_mul_ps(_mm256_load_ps(stretch + i), _mm256_set1_ps(s.inverse)), 8);
          _mm256_store_ps(stretch + i, _mm256_mul_ps(q, _mm256_set1_ps(s.d)));
        }
      }
      for (int64_t c = 0; c < kStretch; c += kChunk<BITS>)
        for (int step = 0; step < kChunk<BITS> / 8; ++step)
          for (int l = 0; l < 8; ++l) *out++ = stretch[c + place<BITS>(step, l)];
    }
  }
}

static void f32_prepare(int bits, bool rounds, const float* x, int64_t ldx, int64_t k, int64_t m0, int64_t m1, void* prepared) {
  if (bits == 4)
    f32_prepare_as<4>(rounds, x, ldx, k, m0, m1, prepared);
  else
    f32_prepare_as<8>(rounds, x, ldx, k, m0, m1, prepared);
}

// 32 bytes of one row of W by MR rows of x, `stride` floats apart; chunk c of the stretch whose runs have the scales `runs`.
template <int MR>
HOTSET_INLINE void add_e2m1(__m256i bytes, const float* x, int64_t stride, int c, __m256 runs, __m256 sum[MR]) {
  const __m256i high = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, -128, -0x41, -0x41, -0x41, -0x40, -0x40, -0x40, -0x40));
  const __m256i low =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 0, -128, -0x40, 0, 0x40, -128, -0x40, 0, 0, -128, -0x40, 0, 0x40, -128, -0x40));
  const __m256i upper = _mm256_set1_epi32((int)0xffff0000), nibble = _mm256_set1_epi8(15);
  const __m256i lane = _mm256_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2);
  x += c * kChunk<4>;
  const __m256i even = _mm256_and_si256(bytes, nibble), odd = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), nibble);
  const __m256i even_high = _mm256_shuffle_epi8(high, even), even_low = _mm256_shuffle_epi8(low, even);
  const __m256i odd_high = _mm256_shuffle_epi8(high, odd), odd_low = _mm256_shuffle_epi8(low, odd);
#pragma GCC unroll 2
  for (int u = 0; u < 2; ++u) {
    const __m256i pairs[2] = {u ? _mm256_unpackhi_epi8(even_low, even_high) : _mm256_unpacklo_epi8(even_low, even_high),
                              u ? _mm256_unpackhi_epi8(odd_low, odd_high) : _mm256_unpacklo_epi8(odd_low, odd_high)};
    __m256 dot[MR];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m256 value = _mm256_castsi256_ps(i % 2 ? _mm256_and_si256(pairs[i / 2], upper) : _mm256_slli_epi32(pairs[i / 2], 16));
      for (int m = 0; m < MR; ++m) {
        const __m256 xi = _mm256_load_ps(x + m * stride + 32 * u + 8 * i);
        dot[m] = i == 0 ? _mm256_mul_ps(value, xi) : _mm256_fmadd_ps(value, xi, dot[m]);
      }
    }
    const __m256 scale = _mm256_permutevar8x32_ps(runs, _mm256_add_epi32(lane, _mm256_set1_epi32(4 * c + u)));
    for (int m = 0; m < MR; ++m) sum[m] = _mm256_fmadd_ps(dot[m], scale, sum[m]);
  }
}

template <int MR>
HOTSET_INLINE void add_e4m3(__m256i bytes, const float* x, int64_t stride, int c, __m256 runs, __m256 sum[MR]) {
  const __m256i fields = _mm256_set1_epi16((short)0xbf80);
  const __m256i even = _mm256_and_si256(_mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 1), fields);
  const __m256i odd = _mm256_and_si256(_mm256_srai_epi16(bytes, 1), fields);
  x += c * kChunk<8>;
#pragma GCC unroll 2
  for (int h = 0; h < 2; ++h) {
    const __m256 first = _mm256_cvtph_ps(h ? _mm256_extracti128_si256(even, 1) : _mm256_castsi256_si128(even));
    const __m256 second = _mm256_cvtph_ps(h ? _mm256_extracti128_si256(odd, 1) : _mm256_castsi256_si128(odd));
    const __m256 scale = _mm256_permutevar8x32_ps(runs, _mm256_set1_epi32(2 * c + h));
    for (int m = 0; m < MR; ++m) {
      const float* at = x + m * stride + 16 * h;
      const __m256 dot = _mm256_fmadd_ps(second, _mm256_load_ps(at + 8), _mm256_mul_ps(first, _mm256_load_ps(at)));
      sum[m] = _mm256_fmadd_ps(dot, scale, sum[m]);
    }
  }
}

// ---- int8 ---------------------------------------------------------------------------------------------------------------------------

// One stretch of a prepared row: 128 codes.
struct Stretch {
  int8_t q[2][2][32];   // [chunk][even, odd]
  int32_t shift[2][8];  // [chunk][lane]: -12 * sum of q
  float d[8];           // of each run; two runs of a group have the same
};
static_assert(sizeof(Stretch) == 224, "");

static int64_t i8_row_bytes(int64_t k) { return odd_lines(round_up(k, kStretch) / kStretch * (int64_t)sizeof(Stretch)); }
static size_t i8_prepared_bytes(int, int64_t m, int64_t k) { return (size_t)(m * i8_row_bytes(k)); }

static void i8_prepare(int, bool, const float* x, int64_t ldx, int64_t k, int64_t m0, int64_t m1, void* prepared) {
  for (int64_t m = m0; m < m1; ++m) {
    Stretch* out = (Stretch*)((char*)prepared + m * i8_row_bytes(k));
    for (int64_t k0 = 0; k0 < k; k0 += kStretch, ++out) {
      float stretch[kStretch] __attribute__((aligned(32)));
      copy_stretch(x + m * ldx, k0, k, stretch);
      for (int g = 0; g < 4; ++g) {
        const Scale s = int8_scale(stretch + 32 * g);
        int32_t q[32] __attribute__((aligned(32)));
        for (int i = 0; i < 32; i += 8)
          _mm256_store_si256((__m256i*)(q + i),
                             _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_load_ps(stretch + 32 * g + i), _mm256_set1_ps(s.inverse))));
        for (int i = 0; i < 32; ++i) out->q[g / 2][i % 2][g % 2 * 16 + i / 2] = (int8_t)q[i];
        for (int i = 0; i < 32; i += 8) {
          const int8_t* even = out->q[g / 2][0] + g % 2 * 16 + i / 2;
          int sum = 0;
          for (int j = 0; j < 4; ++j) sum += even[j] + even[32 + j];
          out->shift[g / 2][g % 2 * 4 + i / 8] = -12 * sum;
        }
        out->d[2 * g] = out->d[2 * g + 1] = s.d;
      }
    }
  }
}

template <int MR>
HOTSET_INLINE void add_int8(__m256i bytes, const Stretch* x, int64_t stride, int c, __m256 runs, __m256 sum[MR]) {
  const __m256i table = _mm256_broadcastsi128_si256(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
  const __m256i nibble = _mm256_set1_epi8(15);
  const __m256i index = _mm256_add_epi32(_mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3), _mm256_set1_epi32(4 * c));
  const __m256i even = _mm256_shuffle_epi8(table, _mm256_and_si256(bytes, nibble));
  const __m256i odd = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(bytes, 4), nibble));
  for (int m = 0; m < MR; ++m) {
    const Stretch* s = (const Stretch*)((const char*)x + m * stride);
    const __m256i pairs = _mm256_add_epi16(_mm256_maddubs_epi16(even, _mm256_load_si256((const __m256i*)s->q[c][0])),
                                           _mm256_maddubs_epi16(odd, _mm256_load_si256((const __m256i*)s->q[c][1])));
    const __m256i dot = _mm256_add_epi32(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)), _mm256_load_si256((const __m256i*)s->shift[c]));
    const __m256 scale = _mm256_permutevar8x32_ps(_mm256_mul_ps(runs, _mm256_load_ps(s->d)), index);
    sum[m] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), scale, sum[m]);
  }
}

// ---- both ---------------------------------------------------------------------------------------------------------------------------

template <int BITS, bool INT8, int MR>
static void pass(const MinifloatMatrix& w, const void* prepared, int64_t i, int64_t n0, int64_t n1, const float* bias, float* y,
                 int64_t ldy) {
  const int shift = shift_of(w);
  const int64_t ahead = ahead_of(w), bytes_in_row = (w.k * BITS + 7) / 8;
  const int64_t stride = INT8 ? i8_row_bytes(w.k) : f32_row_bytes(w.k);
  for (int64_t n = n0; n < n1; n += 4) {
    __m256 sum[4][MR];
    __m256i largest[4];  // E4M3: of the codes without their signs
    int64_t row[4];      // rows past the end repeat the last one
    const uint8_t* codes[4];
    for (int r = 0; r < 4; ++r) {
      row[r] = smaller(n + r, n1 - 1);
      codes[r] = w.codes + row[r] * w.row_bytes;
      largest[r] = _mm256_setzero_si256();
      for (int m = 0; m < MR; ++m) sum[r][m] = _mm256_setzero_ps();
    }
    const char* x = (const char*)prepared + i * stride;
    int64_t left = bytes_in_row;
    for (int64_t k0 = 0; k0 < w.k; k0 += kStretch, x += INT8 ? (int64_t)sizeof(Stretch) : 4 * kStretch) {
      const Blocks blocks = blocks_at(k0, w.k, 4, shift);
      __m256 runs[4];
      for (int r = 0; r < 4; ++r) runs[r] = run_scales(w, row[r], blocks);
#pragma GCC unroll 4
      for (int c = 0; c < kStretch / kChunk<BITS>; ++c, left -= 32) {
        if (left <= 0) break;
#pragma GCC unroll 4
        for (int r = 0; r < 4; ++r) {
          _mm_prefetch((const char*)codes[r] + ahead, _MM_HINT_T0);
          const __m256i bytes = load_codes(codes[r], left);
          codes[r] += 32;
          if (INT8) {
            add_int8<MR>(bytes, (const Stretch*)x, stride, c, runs[r], sum[r]);
          } else if (BITS == 4) {
            add_e2m1<MR>(bytes, (const float*)x, stride / 4, c, runs[r], sum[r]);
          } else {
            largest[r] = _mm256_max_epu8(largest[r], _mm256_and_si256(bytes, _mm256_set1_epi8(0x7f)));
            add_e4m3<MR>(bytes, (const float*)x, stride / 4, c, runs[r], sum[r]);
          }
        }
      }
    }
    __m128 nan = _mm_setzero_ps();
    if (BITS == 8) {
      int32_t found[4];
      for (int r = 0; r < 4; ++r) found[r] = _mm256_movemask_epi8(_mm256_cmpeq_epi8(largest[r], _mm256_set1_epi8(0x7f))) ? -1 : 0;
      nan = _mm_castsi128_ps(_mm_loadu_si128((const __m128i*)found));
    }
    for (int m = 0; m < MR; ++m) {
      __m128 result = _mm_mul_ps(sum4(sum[0][m], sum[1][m], sum[2][m], sum[3][m]), _mm_set1_ps(BITS == 8 ? 256.0f : INT8 ? 0.5f : 1.0f));
      result = _mm_or_ps(_mm_mul_ps(result, _mm_set1_ps(w.factor)), nan);
      store4(y + (i + m) * ldy + n, result, bias ? bias + n : nullptr, n1 - n);
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

static void f32_multiply(const MinifloatMatrix& w, const void* prepared, int64_t m0, int64_t m1, int64_t n0, int64_t n1, const float* bias,
                         float* y, int64_t ldy) {
  if (w.bits == 4)
    multiply_as<4, false>(w, prepared, m0, m1, n0, n1, bias, y, ldy);
  else
    multiply_as<8, false>(w, prepared, m0, m1, n0, n1, bias, y, ldy);
}

// 8 weights a step, in order.
static void to_floats(const MinifloatMatrix& w, int64_t n, float* out) {
  const __m256 table = _mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6);
  const __m256i nibble = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28), signs = _mm256_set1_epi32((int)0x80000000);
  const int shift = shift_of(w);
  const __m256 factor = _mm256_set1_ps(w.factor);
  const uint8_t* codes = w.codes + n * w.row_bytes;
  for (int64_t k0 = 0; k0 < w.k; k0 += kStretch) {
    const __m256 runs = run_scales(w, n, blocks_at(k0, w.k, 4, shift));
    for (int64_t k = k0; k < smaller(w.k, k0 + kStretch); k += 8) {
      const int64_t left = smaller(w.k - k, 8);
      uint64_t bytes = 0;
      __m256 value;
      memcpy(&bytes, codes + k * w.bits / 8, (size_t)((left * w.bits + 7) / 8));
      if (w.bits == 4) {
        const __m256i code = _mm256_srlv_epi32(_mm256_set1_epi32((int)bytes), nibble);
        const __m256 sign = _mm256_castsi256_ps(_mm256_and_si256(_mm256_slli_epi32(code, 28), signs));
        value = _mm256_or_ps(_mm256_permutevar8x32_ps(table, code), sign);
      } else {
        value = floats_of_e4m3(_mm_cvtsi64_si128((long long)bytes));
      }
      const __m256 scale = _mm256_permutevar8x32_ps(runs, _mm256_set1_epi32((int)((k - k0) / 16)));
      _mm256_maskstore_ps(out + k, first8(left), _mm256_mul_ps(_mm256_mul_ps(value, scale), factor));
    }
  }
}

}  // namespace

const MinifloatGemm kMinifloatF32Avx2 = {"avx2", f32_prepared_bytes, f32_prepare, f32_multiply, to_floats};
const MinifloatGemm kMinifloatI8Avx2 = {"avx2", i8_prepared_bytes, i8_prepare, multiply_as<4, true>, nullptr};

}  // namespace hotset::cpu

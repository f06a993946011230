// SPDX-License-Identifier: Apache-2.0
// Exact minifloat products for AVX-512, four rows of W by up to four rows of x, lanes along K.
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
  const __m512 a = _mm512_load_ps(p), b = _mm512_load_ps(p + 16);
  // Bits of |x| order like the numbers, and NaN comes last.
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  const __m512i bits =
      _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(a), magnitude), _mm512_and_si512(_mm512_castps_si512(b), magnitude));
  const int32_t largest_bits = _mm512_reduce_max_epi32(bits);
  float largest;
  memcpy(&largest, &largest_bits, 4);
  const __m512 inverse = _mm512_set1_ps(largest < 0x1p-100f ? 0.0f : 127.0f / largest), d = _mm512_set1_ps(largest / 127.0f);
  _mm512_store_ps(p, _mm512_mul_ps(_mm512_roundscale_ps(_mm512_mul_ps(a, inverse), 0), d));
  _mm512_store_ps(p + 16, _mm512_mul_ps(_mm512_roundscale_ps(_mm512_mul_ps(b, inverse), 0), d));
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

struct Rows {
  const float* x;  // of the stretch
  int64_t stride;  // floats from row to row
};

// 64 bytes of one row of W by MR rows of x; `runs`: scale of each run of the stretch, of which the chunk is number c.
template <int MR>
HOTSET_INLINE void add_e2m1(__m512i bytes, const Rows& rows, int c, __m512 runs, __m512 sum[MR]) {
  const __m512 table = _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
  const __m512i lane = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  const float* x = rows.x + c * kChunk<4>;
  __m512 dot[MR];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const __m512 value = _mm512_permutexvar_ps(i == 0 ? bytes : _mm512_srli_epi32(bytes, (unsigned)(4 * i)), table);
    for (int m = 0; m < MR; ++m) {
      const __m512 xi = _mm512_load_ps(x + m * rows.stride + 16 * i);
      dot[m] = i == 0 ? _mm512_mul_ps(value, xi) : _mm512_fmadd_ps(value, xi, dot[m]);
    }
  }
  const __m512 scale = _mm512_permutexvar_ps(_mm512_add_epi32(lane, _mm512_set1_epi32(8 * c)), runs);
  for (int m = 0; m < MR; ++m) sum[m] = _mm512_fmadd_ps(dot[m], scale, sum[m]);
}

template <int MR>
HOTSET_INLINE void add_e4m3(__m512i bytes, const Rows& rows, int c, __m512 runs, __m512 sum[MR]) {
  const __m512i lane = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
  const __m512i fields = _mm512_set1_epi16((short)0xbf80);
  const __m512i even = _mm512_and_si512(_mm512_srai_epi16(_mm512_slli_epi16(bytes, 8), 1), fields);
  const __m512i odd = _mm512_and_si512(_mm512_srai_epi16(bytes, 1), fields);
  const float* x = rows.x + c * kChunk<8>;
#pragma GCC unroll 2
  for (int h = 0; h < 2; ++h) {
    const __m512 first = _mm512_cvtph_ps(h ? _mm512_extracti64x4_epi64(even, 1) : _mm512_castsi512_si256(even));
    const __m512 second = _mm512_cvtph_ps(h ? _mm512_extracti64x4_epi64(odd, 1) : _mm512_castsi512_si256(odd));
    const __m512 scale = _mm512_permutexvar_ps(_mm512_add_epi32(lane, _mm512_set1_epi32(4 * c + 2 * h)), runs);
    for (int m = 0; m < MR; ++m) {
      const float* at = x + m * rows.stride + 32 * h;
      const __m512 dot = _mm512_fmadd_ps(second, _mm512_load_ps(at + 16), _mm512_mul_ps(first, _mm512_load_ps(at)));
      sum[m] = _mm512_fmadd_ps(dot, scale, sum[m]);
    }
  }
}

template <int BITS, int MR>
static void pass(const MinifloatMatrix& w, const void* prepared, int64_t i, int64_t n0, int64_t n1, const float* bias, float* y,
                 int64_t ldy) {
  const int shift = shift_of(w);
  const int64_t ahead = ahead_of(w), bytes_in_row = (w.k * BITS + 7) / 8;
  for (int64_t n = n0; n < n1; n += 4) {
    prefetch_run_scales(w, n);
    __m512 sum[4][MR];
    __m512i largest[4];  // E4M3: of the codes without their signs
    int64_t row[4];      // rows past the end repeat the last one
    const uint8_t* codes[4];
    for (int r = 0; r < 4; ++r) {
      row[r] = smaller(n + r, n1 - 1);
      codes[r] = w.codes + row[r] * w.row_bytes;
      largest[r] = _mm512_setzero_si512();
      for (int m = 0; m < MR; ++m) sum[r][m] = _mm512_setzero_ps();
    }
    Rows rows = {(const float*)((const char*)prepared + i * row_bytes(w.k)), row_bytes(w.k) / (int64_t)sizeof(float)};
    int64_t left = bytes_in_row;
    for (int64_t k0 = 0; k0 < w.k; k0 += kStretch, rows.x += kStretch) {
      const Blocks blocks = blocks_at(k0, w.k, 4, shift);
      __m512 runs[4];
      for (int r = 0; r < 4; ++r) runs[r] = run_scales(w, row[r], blocks);
#pragma GCC unroll 4
      for (int c = 0; c < kStretch / kChunk<BITS>; ++c, left -= 64) {
        if (left <= 0) break;
        const __mmask64 mask = first64(left);
#pragma GCC unroll 4
        for (int r = 0; r < 4; ++r) {
          _mm_prefetch((const char*)codes[r] + ahead, _MM_HINT_T0);
          const __m512i bytes = left >= 64 ? _mm512_loadu_si512(codes[r]) : _mm512_maskz_loadu_epi8(mask, codes[r]);
          codes[r] += 64;
          if (BITS == 4) {
            add_e2m1<MR>(bytes, rows, c, runs[r], sum[r]);
          } else {
            largest[r] = _mm512_max_epu8(largest[r], _mm512_and_si512(bytes, _mm512_set1_epi8(0x7f)));
            add_e4m3<MR>(bytes, rows, c, runs[r], sum[r]);
          }
        }
      }
    }
    const __mmask8 mask = (__mmask8)first16(smaller(4, n1 - n));
    const __m128 offset = bias ? _mm_maskz_loadu_ps(mask, bias + n) : _mm_setzero_ps();
    __mmask8 nan = 0;
    for (int r = 0; r < 4 && BITS == 8; ++r) nan |= (__mmask8)((_mm512_cmpeq_epi8_mask(largest[r], _mm512_set1_epi8(0x7f)) != 0) << r);
    for (int m = 0; m < MR; ++m) {
      __m128 result = sum4(sum[0][m], sum[1][m], sum[2][m], sum[3][m]);
      if (BITS == 8) result = _mm_mask_mov_ps(_mm_mul_ps(result, _mm_set1_ps(256.0f)), nan, _mm_set1_ps(__builtin_nanf("")));
      _mm_mask_storeu_ps(y + (i + m) * ldy + n, mask, _mm_fmadd_ps(result, _mm_set1_ps(w.factor), offset));
    }
  }
}

template <int BITS>
static void multiply_as(const MinifloatMatrix& w, const void* prepared, int64_t m0, int64_t m1, int64_t n0, int64_t n1, const float* bias,
                        float* y, int64_t ldy) {
  constexpr int64_t kColumns = 32;  // the next rows of x find these rows of W in the cache
  for (int64_t n = n0; n < n1; n += kColumns) {
    const int64_t end = smaller(n1, n + kColumns);
    for (int64_t i = m0; i < m1; i += kTogether) {
      switch (smaller(m1 - i, kTogether)) {
        case 1:
          pass<BITS, 1>(w, prepared, i, n, end, bias, y, ldy);
          break;
        case 2:
          pass<BITS, 2>(w, prepared, i, n, end, bias, y, ldy);
          break;
        case 3:
          pass<BITS, 3>(w, prepared, i, n, end, bias, y, ldy);
          break;
        default:
          pass<BITS, 4>(w, prepared, i, n, end, bias, y, ldy);
          break;
      }
    }
  }
}

static void multiply(const MinifloatMatrix& w, const void* prepared, int64_t m0, int64_t m1, int64_t n0, int64_t n1, const float* bias,
                     float* y, int64_t ldy) {
  if (w.bits == 4)
    multiply_as<4>(w, prepared, m0, m1, n0, n1, bias, y, ldy);
  else
    multiply_as<8>(w, prepared, m0, m1, n0, n1, bias, y, ldy);
}

// 16 weights a step, in order.
static void to_floats(const MinifloatMatrix& w, int64_t n, float* out) {
  const __m512 table = _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
  const __m512i nibble = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
  const __m512i half = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
  const int shift = shift_of(w);
  const __m512 factor = _mm512_set1_ps(w.factor);
  const uint8_t* codes = w.codes + n * w.row_bytes;
  for (int64_t k0 = 0; k0 < w.k; k0 += kStretch) {
    const __m512 runs = run_scales(w, n, blocks_at(k0, w.k, 4, shift));
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
      const __m512 scale = _mm512_permutexvar_ps(_mm512_set1_epi32((int)((k - k0) / 16)), runs);
      _mm512_mask_storeu_ps(out + k, mask, _mm512_mul_ps(_mm512_mul_ps(value, scale), factor));
    }
  }
}

}  // namespace

const MinifloatGemm kMinifloatF32Avx512 = {"avx512", prepared_bytes, prepare, multiply, to_floats};

}  // namespace hotset::cpu

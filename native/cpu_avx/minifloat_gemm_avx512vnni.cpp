// SPDX-License-Identifier: Apache-2.0
// E2M1 products with int8 activations for AVX-512 VNNI, four rows of W by up to four rows of x, lanes along K.
//
// A chunk is 64 bytes, 128 codes. vpshufb turns the low and the high nibbles into 12 + twice the value, 0 ... 24, which vpdpbusd
// multiplies by the even and the odd activations. A lane has 8 codes of one run of 16, and begins with -12 times the sum of their
// activations. Per 64 bytes and one row of x: 1 shift, 2 ands, 2 vpshufb, 2 vpdpbusd, a conversion, a permute (scale) and an FMA.
#include "cpu_avx/minifloat_gemm_avx512.h"

namespace hotset::cpu {
namespace {

using namespace minifloat512;

// One stretch of a prepared row: 256 codes.
struct Stretch {
  int8_t q[2][2][64];    // [chunk][even, odd]
  int32_t shift[2][16];  // [chunk][lane]: -12 * sum of q
  float d[2][16];        // [chunk][lane]
};
static_assert(sizeof(Stretch) == 512);

static int64_t row_bytes(int64_t k) { return odd_lines(round_up(k, kStretch) / kStretch * (int64_t)sizeof(Stretch)); }
static size_t prepared_bytes(int, int64_t m, int64_t k) { return (size_t)(m * row_bytes(k)); }

// Group g of a stretch: 32 floats of which `left` exist.
HOTSET_INLINE void prepare_group(const float* p, int64_t left, int g, Stretch* out) {
  Group group = load_group(p, left);
  const float d = quantize_i8(&group);
  const __m256i split = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
  const __m256i planes =
      _mm256_permute4x64_epi64(_mm256_shuffle_epi8(_mm256_set_m128i(bytes_of(group, 1), bytes_of(group, 0)), split), 0xd8);
  const __m128i even = _mm256_castsi256_si128(planes), odd = _mm256_extracti128_si256(planes, 1);
  const int c = g / 4, at = g % 4;
  _mm_store_si128((__m128i*)(out->q[c][0] + 16 * at), even);
  _mm_store_si128((__m128i*)(out->q[c][1] + 16 * at), odd);
  const __m128i twelves = _mm_set1_epi8(12);
  const __m128i sum = _mm_dpbusd_epi32(_mm_dpbusd_epi32(_mm_setzero_si128(), twelves, even), twelves, odd);
  _mm_store_si128((__m128i*)(out->shift[c] + 4 * at), _mm_sub_epi32(_mm_setzero_si128(), sum));
  _mm_store_ps(out->d[c] + 4 * at, _mm_set1_ps(d));
}

static void prepare(int, bool, const float* x, int64_t ldx, int64_t k, int64_t m0, int64_t m1, void* prepared) {
  for (int64_t m = m0; m < m1; ++m) {
    Stretch* out = (Stretch*)((char*)prepared + m * row_bytes(k));
    for (int64_t k0 = 0; k0 < k; k0 += kStretch, ++out)
      for (int g = 0; g < 8; ++g) prepare_group(x + m * ldx + smaller(k, k0 + 32 * g), k - k0 - 32 * g, g, out);
  }
}

// One stretch of four rows of W by MR rows of x; WHOLE: all its bytes exist, else `left` of them do.
template <int MR, bool WHOLE>
HOTSET_INLINE void add_stretch(const uint8_t* const codes[4], int64_t at, int64_t left, int64_t ahead, const char* x, int64_t stride,
                               const Walk& walk, const __m512 scales[4], __m512 sum[4][MR]) {
  const __m512i table = _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
  const __m512i low = _mm512_set1_epi8(15);
  const __m512i lane = _mm512_setr_epi32(0, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 104, 112, 120);
#pragma GCC unroll 2
  for (int c = 0; c < 2; ++c, at += 64, left -= 64) {
    if (!WHOLE && left <= 0) break;
    const __m512i index = walk.index(_mm512_add_epi32(lane, _mm512_set1_epi32(128 * c)));
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      _mm_prefetch((const char*)codes[r] + at + ahead, _MM_HINT_T0);
      const __m512i bytes = WHOLE ? _mm512_loadu_si512(codes[r] + at) : _mm512_maskz_loadu_epi8(first64(left), codes[r] + at);
      const __m512 scale = _mm512_permutexvar_ps(index, scales[r]);
      const __m512i even = _mm512_shuffle_epi8(table, _mm512_and_si512(bytes, low));
      const __m512i odd = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(bytes, 4), low));
#pragma GCC unroll 4
      for (int m = 0; m < MR; ++m) {
        const Stretch* s = (const Stretch*)(x + m * stride);
        __m512i dot = _mm512_dpbusd_epi32(_mm512_load_si512(s->shift[c]), even, _mm512_load_si512(s->q[c][0]));
        dot = _mm512_dpbusd_epi32(dot, odd, _mm512_load_si512(s->q[c][1]));
        sum[r][m] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), _mm512_mul_ps(scale, _mm512_load_ps(s->d[c])), sum[r][m]);
      }
    }
  }
}

template <int TYPE, int MR>
static void pass(const MinifloatMatrix& w, const void* prepared, int64_t i, int64_t n0, int64_t n1, const float* bias, float* y,
                 int64_t ldy) {
  const Walk walk = walk_of(w);
  const int64_t ahead = ahead_of(w), stride = row_bytes(w.k);
  for (int64_t n = n0; n < n1; n += 4) {
    prefetch_run_scales(w, n);
    __m512 sum[4][MR];
    int64_t row[4];  // rows past the end repeat the last one
    const uint8_t* codes[4];
    for (int r = 0; r < 4; ++r) {
      row[r] = smaller(n + r, n1 - 1);
      codes[r] = w.codes + row[r] * w.row_bytes;
      for (int m = 0; m < MR; ++m) sum[r][m] = _mm512_setzero_ps();
    }
    const char* x = (const char*)prepared + i * stride;
    int64_t at = 0;
    for (int64_t k0 = 0; k0 < w.k; k0 += kStretch, x += sizeof(Stretch), at += kStretch / 2) {
      __m512 scales[4];
      for (int r = 0; r < 4; ++r) scales[r] = scales_at<TYPE>(w, row[r], walk.first(k0), walk.mask(k0));
      if (k0 + kStretch <= w.k)
        add_stretch<MR, true>(codes, at, 0, ahead, x, stride, walk, scales, sum);
      else
        add_stretch<MR, false>(codes, at, w.k / 2 - at, ahead, x, stride, walk, scales, sum);
    }
    const __mmask8 mask = (__mmask8)first16(smaller(4, n1 - n));
    const __m128 offset = bias ? _mm_maskz_loadu_ps(mask, bias + n) : _mm_setzero_ps();
    for (int m = 0; m < MR; ++m) {
      const __m128 result = _mm_mul_ps(sum4(sum[0][m], sum[1][m], sum[2][m], sum[3][m]), _mm_set1_ps(0.5f));
      _mm_mask_storeu_ps(y + (i + m) * ldy + n, mask, _mm_fmadd_ps(result, _mm_set1_ps(w.factor), offset));
    }
  }
}

template <int TYPE>
static void multiply_as(const MinifloatMatrix& w, const void* prepared, int64_t m0, int64_t m1, int64_t n0, int64_t n1, const float* bias,
                        float* y, int64_t ldy) {
  constexpr int64_t kColumns = 32;  // the next rows of x find these rows of W in the cache
  for (int64_t n = n0; n < n1; n += kColumns) {
    const int64_t end = smaller(n1, n + kColumns);
    for (int64_t i = m0; i < m1; i += kTogether) {
      switch (smaller(m1 - i, kTogether)) {
        case 1:
          pass<TYPE, 1>(w, prepared, i, n, end, bias, y, ldy);
          break;
        case 2:
          pass<TYPE, 2>(w, prepared, i, n, end, bias, y, ldy);
          break;
        case 3:
          pass<TYPE, 3>(w, prepared, i, n, end, bias, y, ldy);
          break;
        default:
          pass<TYPE, 4>(w, prepared, i, n, end, bias, y, ldy);
          break;
      }
    }
  }
}

static void multiply(const MinifloatMatrix& w, const void* prepared, int64_t m0, int64_t m1, int64_t n0, int64_t n1, const float* bias,
                     float* y, int64_t ldy) {
  if (w.scale_rows == 1 && w.scale_type == kE4m3) return multiply_as<kE4m3>(w, prepared, m0, m1, n0, n1, bias, y, ldy);
  if (w.scale_rows == 1 && w.scale_type == kE8m0) return multiply_as<kE8m0>(w, prepared, m0, m1, n0, n1, bias, y, ldy);
  multiply_as<kAnyScales>(w, prepared, m0, m1, n0, n1, bias, y, ldy);
}

}  // namespace

const MinifloatGemm kMinifloatI8Avx512Vnni = {"avx512vnni", prepared_bytes, prepare, multiply, nullptr};

}  // namespace hotset::cpu

// SPDX-License-Identifier: Apache-2.0
// What the AVX2 files of minifloat products share: scales of a row. Everything is static.
#pragma once
#include "cpu_avx/minifloat_gemm_isa.h"
#include "cpu_avx/quant_gemm_avx2.h"

namespace hotset::cpu {
namespace minifloat256 {

using namespace avx2;

constexpr int64_t kStretch = 128;  // codes whose scales fill a vector: 8 runs of 16

HOTSET_INLINE int shift_of(const MinifloatMatrix& w) { return w.block >= w.k ? 40 : __builtin_ctzll((uint64_t)w.block); }

// Floats of the low 8 bytes, E4M3; 0x7f and 0xff are NaN.
HOTSET_INLINE __m256 floats_of_e4m3(__m128i bytes) {
  const __m128i high = _mm_slli_epi16(_mm_cvtepu8_epi16(bytes), 8);
  // Sign, exponent and mantissa at their places in a half, whose exponent counts 8 more.
  const __m128i half = _mm_and_si128(_mm_srai_epi16(high, 1), _mm_set1_epi16((short)0xbf80));
  const __m256 value = _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256.0f));
  const __m128i nan = _mm_cmpeq_epi8(_mm_and_si128(bytes, _mm_set1_epi8(0x7f)), _mm_set1_epi8(0x7f));
  return _mm256_or_ps(value, _mm256_castsi256_ps(_mm256_cvtepi8_epi32(nan)));
}

// Floats of the low 8 bytes, E8M0: 2^(byte - 127), 255 is NaN.
HOTSET_INLINE __m256 floats_of_e8m0(__m128i bytes) {
  const __m256i exponent = _mm256_slli_epi32(_mm256_cvtepu8_epi32(bytes), 23);
  const __m256i bits = _mm256_max_epu32(exponent, _mm256_set1_epi32(0x00400000));  // byte 0 is 2^-127
  return _mm256_castsi256_ps(_mm256_or_si256(bits, _mm256_cvtepi8_epi32(_mm_cmpeq_epi8(bytes, _mm_set1_epi8(-1)))));
}

// Scale of each run of `b` in row n.
HOTSET_INLINE __m256 run_scales(const MinifloatMatrix& w, int64_t n, const Blocks& b) {
  const int64_t size = w.scale_type == 1 ? 4 : w.scale_type == 10 || w.scale_type == 16 ? 2 : 1;
  if (w.scale_type == 0) return _mm256_set1_ps(1);
  const char* p = (const char*)w.scales + ((w.scale_rows == 1 ? n : n / w.scale_rows) * w.scale_stride + b.first) * size;
  char copy[32] = {0};
  if (b.count < 8) {
    memcpy(copy, p, (size_t)(b.count * size));
    p = copy;
  }
  __m256 s;
  switch (w.scale_type) {
    case 1:
      s = _mm256_loadu_ps((const float*)p);
      break;
    case 10:
      s = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
      break;
    case 16:
      s = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
      break;
    case 17:
      s = floats_of_e4m3(_mm_loadl_epi64((const __m128i*)p));
      break;
    default:
      s = floats_of_e8m0(_mm_loadl_epi64((const __m128i*)p));
      break;
  }
  return _mm256_permutevar8x32_ps(s, b.index);
}

// Distance in bytes to what four rows later is read at the same place, or about 4 KiB when rows are short.
HOTSET_INLINE int64_t ahead_of(const MinifloatMatrix& w) {
  const int64_t four_rows = 4 * w.row_bytes;
  return four_rows <= 0 || four_rows >= 4096 ? four_rows : round_up(4096, four_rows);
}

// d = largest / 127 and 127 / largest of 32 floats at p (aligned). A group with a NaN has NaN for the largest.
struct Scale {
  float d, inverse;
};
HOTSET_INLINE Scale int8_scale(const float* p) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i bits = _mm256_setzero_si256();  // bits of |x| order like the numbers, and NaN comes last
  for (int i = 0; i < 32; i += 8) bits = _mm256_max_epi32(bits, _mm256_and_si256(_mm256_load_si256((const __m256i*)(p + i)), magnitude));
  __m128i four = _mm_max_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1));
  const float largest = _mm_cvtss_f32(_mm_castsi128_ps(four));
  const Scale s = {largest / 127.0f, largest < 0x1p-100f ? 0.0f : 127.0f / largest};
  return s;
}

// 128 floats of x from k0 on, zero past k.
HOTSET_INLINE void copy_stretch(const float* x, int64_t k0, int64_t k, float* out) {
  const int64_t count = smaller(kStretch, k - k0);
  memcpy(out, x + k0, (size_t)count * sizeof(float));
  memset(out + count, 0, (size_t)(kStretch - count) * sizeof(float));
}

}  // namespace minifloat256
}  // namespace hotset::cpu

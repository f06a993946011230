// SPDX-License-Identifier: Apache-2.0
// Float products with AVX-512: sixteen lanes, tails by mask. The packed tile is 12 x 32: 24 sums, one broadcast, two weights,
// so that the two FMA units (one vector each a cycle) bound the loop, not the two loads a cycle (14 for 24 FMA).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // gcc bug 105593: its own intrinsics
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
#include <stdint.h>

#include "cpu_avx/float_gemm_isa.h"

namespace hotset::cpu {
namespace {

using V = __m512;
constexpr int kLanes = 16, kMr = 12, kDotRows = 4;

inline __mmask16 first(int n) { return static_cast<__mmask16>((1u << n) - 1); }
inline V zero() { return _mm512_setzero_ps(); }
inline V set1(float f) { return _mm512_set1_ps(f); }
inline V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
inline V add(V a, V b) { return _mm512_add_ps(a, b); }
inline float sum(V v) { return _mm512_reduce_add_ps(v); }
inline V load(const float* p) { return _mm512_loadu_ps(p); }
inline V load_first(const float* p, int n) { return _mm512_maskz_loadu_ps(first(n), p); }
inline void store(float* p, V v) { _mm512_storeu_ps(p, v); }
inline void store_first(float* p, V v, int n) { _mm512_mask_storeu_ps(p, first(n), v); }

template <int D>
inline V widen(__m256i h) {
  return D == 10 ? _mm512_cvtph_ps(h) : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

template <int D>
inline V load_w(const void* base, int64_t i) {
  if (D == 1) return _mm512_loadu_ps(static_cast<const char*>(base) + 4 * i);
  return widen<D>(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(static_cast<const char*>(base) + 2 * i)));
}

template <int D>
inline V load_w_first(const void* base, int64_t i, int n) {
  if (D == 1) return _mm512_maskz_loadu_ps(first(n), static_cast<const char*>(base) + 4 * i);
  return widen<D>(_mm256_maskz_loadu_epi16(first(n), static_cast<const char*>(base) + 2 * i));
}

// Rows become columns: pairs, quads, then 128-bit lanes.
inline void transpose(V r[16]) {
  V t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512d a = _mm512_castps_pd(t[4 * i]), b = _mm512_castps_pd(t[4 * i + 1]);
    const __m512d c = _mm512_castps_pd(t[4 * i + 2]), d = _mm512_castps_pd(t[4 * i + 3]);
    r[4 * i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
    r[4 * i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
    r[4 * i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
    r[4 * i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {  // r[4q + i]: lane l holds column 4l + i of rows 4q..4q+3
    t[i] = _mm512_shuffle_f32x4(r[i], r[4 + i], 0x88);
    t[4 + i] = _mm512_shuffle_f32x4(r[i], r[4 + i], 0xdd);
    t[8 + i] = _mm512_shuffle_f32x4(r[8 + i], r[12 + i], 0x88);
    t[12 + i] = _mm512_shuffle_f32x4(r[8 + i], r[12 + i], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_f32x4(t[i], t[8 + i], 0x88);
    r[8 + i] = _mm512_shuffle_f32x4(t[i], t[8 + i], 0xdd);
    r[4 + i] = _mm512_shuffle_f32x4(t[4 + i], t[12 + i], 0x88);
    r[12 + i] = _mm512_shuffle_f32x4(t[4 + i], t[12 + i], 0xdd);
  }
}

#include "cpu_avx/float_gemm_body.h"

}  // namespace

extern const FloatGemm kFloatGemmAvx512 = {"avx512", scratch_bytes, multiply};

}  // namespace hotset::cpu

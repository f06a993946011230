// SPDX-License-Identifier: Apache-2.0
// Float products with AVX2 and FMA: eight lanes. The packed tile is 6 x 16: 12 sums, one broadcast, two weights of 16 registers.
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "cpu_avx/float_gemm_isa.h"

namespace hotset::cpu {
namespace {

using V = __m256;
constexpr int kLanes = 8, kMr = 6, kDotRows = 2;

alignas(32) const int32_t kMasks[16] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};
inline __m256i first(int n) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kMasks + 8 - n)); }
inline V zero() { return _mm256_setzero_ps(); }
inline V set1(float f) { return _mm256_set1_ps(f); }
inline V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
inline V add(V a, V b) { return _mm256_add_ps(a, b); }
inline float sum(V v) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
inline V load(const float* p) { return _mm256_loadu_ps(p); }
inline V load_first(const float* p, int n) { return _mm256_maskload_ps(p, first(n)); }
inline void store(float* p, V v) { _mm256_storeu_ps(p, v); }
inline void store_first(float* p, V v, int n) { _mm256_maskstore_ps(p, first(n), v); }

template <int D>
inline V widen(__m128i h) {
  return D == 10 ? _mm256_cvtph_ps(h) : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

template <int D>
inline V load_w(const void* base, int64_t i) {
  if (D == 1) return _mm256_loadu_ps(reinterpret_cast<const float*>(static_cast<const char*>(base) + 4 * i));
  return widen<D>(_mm_loadu_si128(reinterpret_cast<const __m128i*>(static_cast<const char*>(base) + 2 * i)));
}

template <int D>
inline V load_w_first(const void* base, int64_t i, int n) {
  if (D == 1) return _mm256_maskload_ps(reinterpret_cast<const float*>(static_cast<const char*>(base) + 4 * i), first(n));
  uint16_t part[8] = {};
  memcpy(part, static_cast<const char*>(base) + 2 * i, static_cast<size_t>(n) * 2);
  return widen<D>(_mm_loadu_si128(reinterpret_cast<const __m128i*>(part)));
}

inline void transpose(V r[8]) {
  V t[8];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    r[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
    r[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
    r[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
    r[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const V low = _mm256_permute2f128_ps(r[i], r[4 + i], 0x20), high = _mm256_permute2f128_ps(r[i], r[4 + i], 0x31);
    r[i] = low;
    r[4 + i] = high;
  }
}

#include "cpu_avx/float_gemm_body.h"

}  // namespace

extern const FloatGemm kFloatGemmAvx2 = {"avx2", scratch_bytes, multiply};

}  // namespace hotset::cpu

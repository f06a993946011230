// SPDX-License-Identifier: Apache-2.0
// Eight float32 lanes of AVX2 and FMA behind the names that the *_body.h loops use; the names are listed in vector_avx512.h.
// Included inside the unnamed namespace of an instruction set's file, after <immintrin.h> and <string.h>.

using V = __m256;
constexpr int kLanes = 8;

alignas(32) const int32_t kMasks[16] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};
inline __m256i first(int n) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kMasks + 8 - n)); }
inline V zero() { return _mm256_setzero_ps(); }
inline V set1(float f) { return _mm256_set1_ps(f); }
inline V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
inline V add(V a, V b) { return _mm256_add_ps(a, b); }
inline V sub(V a, V b) { return _mm256_sub_ps(a, b); }
inline V mul(V a, V b) { return _mm256_mul_ps(a, b); }
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
inline __m128i narrow(V f) {
  if (D == 10) return _mm256_cvtps_ph(f, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m256i u = _mm256_castps_si256(f), high = _mm256_srli_epi32(u, 16);
  const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(f, f, _CMP_UNORD_Q));
  const __m256i r = _mm256_blendv_epi8(rounded, _mm256_or_si256(high, _mm256_set1_epi32(0x40)), nan);
  return _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi32(r, r), 0x08));
}

template <int D>
inline V load_as(const void* base, int64_t i) {
  if (D == 1) return _mm256_loadu_ps(reinterpret_cast<const float*>(static_cast<const char*>(base) + 4 * i));
  return widen<D>(_mm_loadu_si128(reinterpret_cast<const __m128i*>(static_cast<const char*>(base) + 2 * i)));
}

template <int D>
inline V load_first_as(const void* base, int64_t i, int n) {
  if (D == 1) return _mm256_maskload_ps(reinterpret_cast<const float*>(static_cast<const char*>(base) + 4 * i), first(n));
  uint16_t part[8] = {};
  memcpy(part, static_cast<const char*>(base) + 2 * i, static_cast<size_t>(n) * 2);
  return widen<D>(_mm_loadu_si128(reinterpret_cast<const __m128i*>(part)));
}

template <int D>
inline void store_as(void* base, int64_t i, V v) {
  if (D == 1) return _mm256_storeu_ps(reinterpret_cast<float*>(static_cast<char*>(base) + 4 * i), v);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(static_cast<char*>(base) + 2 * i), narrow<D>(v));
}

template <int D>
inline void store_first_as(void* base, int64_t i, V v, int n) {
  if (D == 1) return _mm256_maskstore_ps(reinterpret_cast<float*>(static_cast<char*>(base) + 4 * i), first(n), v);
  uint16_t part[8];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(part), narrow<D>(v));
  memcpy(static_cast<char*>(base) + 2 * i, part, static_cast<size_t>(n) * 2);
}

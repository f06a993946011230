// SPDX-License-Identifier: Apache-2.0
// Sixteen float32 lanes of AVX-512 behind the names that the *_body.h loops use. Included inside the unnamed namespace of
// an instruction set's file, after <immintrin.h>, so that every file keeps its own copy.
//
//   zero() set1(f) fma(a, b, c) add sub mul sum(v)
//   load(p) load_first(p, n) store(p, v) store_first(p, v, n)         first n < kLanes lanes; the rest zero or left alone
//   load_as<D>(base, i) load_first_as<D>(base, i, n)                  elements i... of ONNX type D (1, 10 or 16) as float32
//   store_as<D>(base, i, v) store_first_as<D>(base, i, v, n)          rounded to nearest even; NaN stays NaN

using V = __m512;
constexpr int kLanes = 16;

inline __mmask16 first(int n) { return static_cast<__mmask16>((1u << n) - 1); }
inline V zero() { return _mm512_setzero_ps(); }
inline V set1(float f) { return _mm512_set1_ps(f); }
inline V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
inline V add(V a, V b) { return _mm512_add_ps(a, b); }
inline V sub(V a, V b) { return _mm512_sub_ps(a, b); }
inline V mul(V a, V b) { return _mm512_mul_ps(a, b); }
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
inline __m256i narrow(V f) {
  if (D == 10) return _mm512_cvtps_ph(f, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512i u = _mm512_castps_si512(f), high = _mm512_srli_epi32(u, 16);
  const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(f, f, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(rounded, nan, high, _mm512_set1_epi32(0x40)));
}

template <int D>
inline V load_as(const void* base, int64_t i) {
  if (D == 1) return _mm512_loadu_ps(static_cast<const char*>(base) + 4 * i);
  return widen<D>(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(static_cast<const char*>(base) + 2 * i)));
}

template <int D>
inline V load_first_as(const void* base, int64_t i, int n) {
  if (D == 1) return _mm512_maskz_loadu_ps(first(n), static_cast<const char*>(base) + 4 * i);
  return widen<D>(_mm256_maskz_loadu_epi16(first(n), static_cast<const char*>(base) + 2 * i));
}

template <int D>
inline void store_as(void* base, int64_t i, V v) {
  if (D == 1) return _mm512_storeu_ps(static_cast<char*>(base) + 4 * i, v);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(static_cast<char*>(base) + 2 * i), narrow<D>(v));
}

template <int D>
inline void store_first_as(void* base, int64_t i, V v, int n) {
  if (D == 1) return _mm512_mask_storeu_ps(static_cast<char*>(base) + 4 * i, first(n), v);
  _mm256_mask_storeu_epi16(static_cast<char*>(base) + 2 * i, first(n), narrow<D>(v));
}

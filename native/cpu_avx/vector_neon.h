// SPDX-License-Identifier: Apache-2.0
// Four float32 lanes of NEON behind the names that the *_body.h loops use; the names are listed in vector_avx512.h.
// Included inside the unnamed namespace of an instruction set's file, after <arm_neon.h> and <string.h>.

using V = float32x4_t;
constexpr int kLanes = 4;

inline V zero() { return vdupq_n_f32(0.0f); }
inline V set1(float f) { return vdupq_n_f32(f); }
inline V fma(V a, V b, V c) { return vfmaq_f32(c, a, b); }
inline V add(V a, V b) { return vaddq_f32(a, b); }
inline V sub(V a, V b) { return vsubq_f32(a, b); }
inline V mul(V a, V b) { return vmulq_f32(a, b); }
inline float sum(V v) { return vaddvq_f32(v); }
inline V load(const float* p) { return vld1q_f32(p); }
inline V load_first(const float* p, int n) {
  float part[4] = {};
  memcpy(part, p, static_cast<size_t>(n) * 4);
  return vld1q_f32(part);
}
inline void store(float* p, V v) { vst1q_f32(p, v); }
inline void store_first(float* p, V v, int n) {
  float part[4];
  vst1q_f32(part, v);
  memcpy(p, part, static_cast<size_t>(n) * 4);
}

template <int D>
inline V widen(uint16x4_t h) {
  return D == 10 ? vcvt_f32_f16(vreinterpret_f16_u16(h)) : vreinterpretq_f32_u32(vshll_n_u16(h, 16));
}

template <int D>
inline uint16x4_t narrow(V f) {
  if (D == 10) return vreinterpret_u16_f16(vcvt_f16_f32(f));
  const uint32x4_t u = vreinterpretq_u32_f32(f), odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
  const uint16x4_t rounded = vshrn_n_u32(vaddq_u32(u, vaddq_u32(odd, vdupq_n_u32(0x7fff))), 16);
  const uint16x4_t quiet = vorr_u16(vshrn_n_u32(u, 16), vdup_n_u16(0x40));
  return vbsl_u16(vmovn_u32(vceqq_f32(f, f)), rounded, quiet);
}

template <int D>
inline V load_as(const void* base, int64_t i) {
  if (D == 1) return vld1q_f32(reinterpret_cast<const float*>(static_cast<const char*>(base) + 4 * i));
  return widen<D>(vld1_u16(reinterpret_cast<const uint16_t*>(static_cast<const char*>(base) + 2 * i)));
}

template <int D>
inline V load_first_as(const void* base, int64_t i, int n) {
  if (D == 1) return load_first(reinterpret_cast<const float*>(static_cast<const char*>(base) + 4 * i), n);
  uint16_t part[4] = {};
  memcpy(part, static_cast<const char*>(base) + 2 * i, static_cast<size_t>(n) * 2);
  return widen<D>(vld1_u16(part));
}

template <int D>
inline void store_as(void* base, int64_t i, V v) {
  if (D == 1) return vst1q_f32(reinterpret_cast<float*>(static_cast<char*>(base) + 4 * i), v);
  vst1_u16(reinterpret_cast<uint16_t*>(static_cast<char*>(base) + 2 * i), narrow<D>(v));
}

template <int D>
inline void store_first_as(void* base, int64_t i, V v, int n) {
  if (D == 1) return store_first(reinterpret_cast<float*>(static_cast<char*>(base) + 4 * i), v, n);
  uint16_t part[4];
  vst1_u16(part, narrow<D>(v));
  memcpy(static_cast<char*>(base) + 2 * i, part, static_cast<size_t>(n) * 2);
}

// SPDX-License-Identifier: Apache-2.0
// Attention on any CPU: vectors are arrays that the compiler may map to what it has.
#include <cmath>

#include "base/dtype.h"
#include "cpu_avx/attention.h"

namespace hotset::cpu {
namespace {

constexpr int kLanes = 4, kMr = 4, kNv = 1;
constexpr float kExpLowest = -104.0f;
struct V {
  float f[kLanes];
};

template <class F>
inline V each(F f) {
  V v;
  for (int i = 0; i < kLanes; ++i) v.f[i] = f(i);
  return v;
}
inline V vload(const float* p) {
  return each([&](int i) { return p[i]; });
}
inline void vstore(float* p, V v) {
  for (int i = 0; i < kLanes; ++i) p[i] = v.f[i];
}
inline V vset(float x) {
  return each([&](int) { return x; });
}
inline V vadd(V a, V b) {
  return each([&](int i) { return a.f[i] + b.f[i]; });
}
inline V vsub(V a, V b) {
  return each([&](int i) { return a.f[i] - b.f[i]; });
}
inline V vmul(V a, V b) {
  return each([&](int i) { return a.f[i] * b.f[i]; });
}
inline V vdiv(V a, V b) {
  return each([&](int i) { return a.f[i] / b.f[i]; });
}
inline V vfma(V a, V b, V c) {
  return each([&](int i) { return a.f[i] * b.f[i] + c.f[i]; });
}
inline V vmax(V a, V b) {
  return each([&](int i) { return a.f[i] > b.f[i] ? a.f[i] : b.f[i]; });
}
inline V vmin(V a, V b) {
  return each([&](int i) { return a.f[i] < b.f[i] ? a.f[i] : b.f[i]; });
}
inline V vround(V a) {
  return each([&](int i) { return std::nearbyint(a.f[i]); });
}
inline V vldexp(V p, V n, V x) {
  return each([&](int i) { return x.f[i] < kExpLowest ? 0.0f : x.f[i] == x.f[i] ? std::ldexp(p.f[i], static_cast<int>(n.f[i])) : x.f[i]; });
}
inline float vfirst(V v) { return v.f[0]; }
inline float vsum(V v) { return (v.f[0] + v.f[1]) + (v.f[2] + v.f[3]); }
inline float vmax_lanes(V v) {
  float m = v.f[0];
  for (int i = 1; i < kLanes; ++i) m = v.f[i] > m ? v.f[i] : m;
  return m;
}
inline V vkeep(V v, int lo, int hi, float x) {
  return each([&](int i) { return i >= lo && i < hi ? v.f[i] : x; });
}
inline V vselect_small(V x, float bound, V small, V large) {
  return each([&](int i) { return std::fabs(x.f[i]) < bound ? small.f[i] : large.f[i]; });
}
inline uint16_t u16_at(const unsigned char* p, int i) { return static_cast<uint16_t>(p[2 * i] | p[2 * i + 1] << 8); }
inline V vload_f16(const unsigned char* p) {
  return each([&](int i) { return f16_to_f32(u16_at(p, i)); });
}
inline V vload_bf16(const unsigned char* p) {
  return each([&](int i) { return bf16_to_f32(u16_at(p, i)); });
}
inline V vload_i8(const unsigned char* p) {
  return each([&](int i) { return static_cast<float>(static_cast<signed char>(p[i])); });
}
inline V vload_i4(const unsigned char* p) {
  return each([&](int i) { return static_cast<float>((p[i / 2] >> (4 * (i % 2)) & 15) - 8); });
}
inline V vload_f8(const unsigned char* p) {
  return each([&](int i) { return f8e4m3fn_to_f32(p[i]); });
}
inline void vtranspose(V* v) {
  V t[kLanes];
  for (int i = 0; i < kLanes; ++i) t[i] = each([&](int j) { return v[j].f[i]; });
  for (int i = 0; i < kLanes; ++i) v[i] = t[i];
}
inline V vsum_each(const V* v) {
  return each([&](int i) { return vsum(v[i]); });
}
inline void vstore_halves(float* low, float* high, V v) {
  for (int i = 0; i < kLanes / 2; ++i) low[i] = v.f[i];
  for (int i = 0; i < kLanes / 2; ++i) high[i] = v.f[kLanes / 2 + i];
}

#include "cpu_avx/attention_body.h"

}  // namespace

void attention_kernels_scalar(AttentionKernels* k) { *k = {attend, rotate, scale, quantize}; }

}  // namespace hotset::cpu

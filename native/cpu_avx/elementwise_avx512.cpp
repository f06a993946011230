// SPDX-License-Identifier: Apache-2.0
// Elementwise loops with AVX-512.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // gcc bug 105593: its own intrinsics
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "cpu_avx/elementwise_isa.h"

namespace hotset::cpu {
namespace {
#include "cpu_avx/vector_avx512.h"

inline V lower(V a, V b) { return _mm512_min_ps(a, b); }
inline V higher(V a, V b) { return _mm512_max_ps(a, b); }
inline V divide(V a, V b) { return _mm512_div_ps(a, b); }
inline V root(V v) { return _mm512_sqrt_ps(v); }
inline V round(V v) { return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline V scale(V p, V n) { return _mm512_scalef_ps(p, n); }
inline V magnitude(V v) { return _mm512_abs_ps(v); }
inline V with_sign(V a, V s) { return _mm512_or_ps(a, _mm512_and_ps(s, _mm512_set1_ps(-0.0f))); }
inline V below(V a, V b, V yes, V no) { return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes); }
template <int D>
inline float first_element(const void* p) { return _mm512_cvtss_f32(load_first_as<D>(p, 0, 1)); }
#include "cpu_avx/elementwise_body.h"
}  // namespace

extern const ElementwiseKernels kElementwiseAvx512 = kTable;

}  // namespace hotset::cpu

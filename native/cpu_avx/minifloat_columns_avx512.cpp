// SPDX-License-Identifier: Apache-2.0
// Exact products with E2M1 weights packed along N for AVX-512: lanes along N, as minifloat_columns_avx512.h lays them out.
//
// Dword l of 64 bytes holds columns 8 l ... 8 l + 7; vector v of a group is what a shift by 4 v and vpermps in a table of values make of
// it, times the activation of that k in all lanes. Per 64 bytes and row of x: 7 shifts, 8 vpermps, 8 FMA.
#include "cpu_avx/minifloat_columns_avx512.h"

namespace hotset::cpu {
namespace {

using namespace columns512;

static int64_t row_floats(int64_t k) { return round_up(k, 16); }
static size_t prepared_bytes(int64_t m, int64_t k) { return (size_t)(m * row_floats(k)) * sizeof(float); }

static void prepare(const float* x, int64_t ldx, int64_t k, int64_t m0, int64_t m1, void* prepared) {
  for (int64_t m = m0; m < m1; ++m)
    for (int64_t i = 0; i < row_floats(k); i += 16)
      _mm512_store_ps((float*)prepared + m * row_floats(k) + i, _mm512_maskz_loadu_ps(first16(k - i), x + m * ldx + i));
}

struct Rows {
  const float* x;
  int64_t ldx;

  static inline __attribute__((always_inline)) Rows make(const void* prepared, int64_t k) {
    return {(const float*)prepared, row_floats(k)};
  }
  static constexpr float kFactor = 1;
  static int column(int v, int l) { return 8 * l + v; }

  template <int TYPE, int MR>
  inline __attribute__((always_inline)) void add_block(const uint8_t* codes, int64_t row_bytes, int64_t block, __mmask64 mask,
                                                       int64_t first, int64_t k, const uint8_t* scales, float* sums,
                                                       int64_t sum_stride) const {
    const float* const xk = x + first * ldx + k;
    const __m512 table = _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
    __m512 dot[8][MR];
    for (int v = 0; v < 8; ++v)
      for (int m = 0; m < MR; ++m) dot[v][m] = _mm512_setzero_ps();
#pragma GCC unroll 2
    for (int64_t p = 0; p < block; ++p) {
      _mm_prefetch((const char*)codes + (p + kRowsAhead) * row_bytes, _MM_HINT_T0);
      __m512i bytes = _mm512_maskz_loadu_epi8(mask, codes + p * row_bytes);
      __asm__("" : "+v"(bytes));  // stays in a register: gcc loads it anew for every shift
      __m512 xp[MR];
      for (int m = 0; m < MR; ++m) xp[m] = _mm512_set1_ps(xk[m * ldx + p]);
#pragma GCC unroll 8
      for (int v = 0; v < 8; ++v) {
        const __m512 value = _mm512_permutexvar_ps(v == 0 ? bytes : _mm512_srli_epi32(bytes, (unsigned)(4 * v)), table);
        for (int m = 0; m < MR; ++m) dot[v][m] = _mm512_fmadd_ps(value, xp[m], dot[v][m]);
      }
    }
#pragma GCC unroll 8
    for (int v = 0; v < 8; ++v) {
      const __m512 scale = floats_of_scales<TYPE>(scales + 16 * v);
      for (int m = 0; m < MR; ++m) {
        float* const to = sums + m * sum_stride + 16 * v;
        _mm512_store_ps(to, _mm512_fmadd_ps(dot[v][m], scale, _mm512_load_ps(to)));
      }
    }
  }
};

}  // namespace

const MinifloatColumns kMinifloatColumnsF32Avx512 = {"avx512", prepared_bytes, prepare, columns_scratch_bytes, multiply<Rows>};

}  // namespace hotset::cpu

// SPDX-License-Identifier: Apache-2.0
// Exact products with E2M1 weights packed along N for AVX-512: lanes along N, as minifloat_columns_avx512.h lays them out.
//
// Dword l of 64 bytes holds columns 8 l ... 8 l + 7; vector v of a group is what a shift by 4 v and vpermps in a table of values make of
// it, times the activation of that k in all lanes. Per 64 bytes and row of x: 7 shifts, 8 vpermps, 8 FMA.
#include "cpu_avx/minifloat_columns_avx512.h"

namespace hotset::cpu {
namespace {

using namespace columns512;

static int column(int v, int l) { return 8 * l + v; }

static int64_t row_floats(int64_t k) { return round_up(k, 16); }
static size_t prepared_bytes(int64_t m, int64_t k) { return (size_t)(m * row_floats(k)) * sizeof(float); }

static void prepare(const float* x, int64_t ldx, int64_t k, int64_t m0, int64_t m1, void* prepared) {
  for (int64_t m = m0; m < m1; ++m)
    for (int64_t i = 0; i < row_floats(k); i += 16)
      _mm512_store_ps((float*)prepared + m * row_floats(k) + i, _mm512_maskz_loadu_ps(first16(k - i), x + m * ldx + i));
}

// One block of a group by MR rows of x, `stride` floats apart as their sums are `sum_stride` apart.
template <int TYPE, int MR>
HOTSET_INLINE void add_block(const uint8_t* codes, int64_t row_bytes, int64_t block, __mmask64 mask, const float* x, int64_t stride,
                             const uint8_t* scales, float* sums, int64_t sum_stride) {
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
    for (int m = 0; m < MR; ++m) xp[m] = _mm512_set1_ps(x[m * stride + p]);
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

template <int TYPE>
static void multiply_as(const MinifloatMatrix& w, const void* prepared, int64_t m0, int64_t m1, int64_t n0, int64_t n1, const float* bias,
                        float* y, int64_t ldy, void* scratch) {
  const int64_t columns = n1 - n0, groups = groups_of(columns), width = groups * kGroup, stride = row_floats(w.k);
  float* const sums = (float*)scratch;
  uint8_t* const scales = (uint8_t*)(sums + (m1 - m0) * width);
  memset(sums, 0, (size_t)((m1 - m0) * width) * sizeof(float));
  const int64_t blocks = w.k / w.block;
  for (int64_t b = 0; b < blocks; ++b) {
    if (b % kBlocks == 0) stage_scales<column>(w, b, smaller(kBlocks, blocks - b), n0, n1, scales);
    const float* x = (const float*)prepared + m0 * stride + b * w.block;
    for (int64_t g = 0; g < groups; ++g) {
      const uint8_t* codes = w.codes + b * w.block * w.row_bytes + (n0 + g * kGroup) / 2;
      const uint8_t* scale = scales + (b % kBlocks * groups + g) * kGroup;
      const __mmask64 mask = first64((columns - g * kGroup) / 2);
      float* const to = sums + g * kGroup;
      int64_t m = 0;
      for (; m + 2 <= m1 - m0; m += 2)
        add_block<TYPE, 2>(codes, w.row_bytes, w.block, mask, x + m * stride, stride, scale, to + m * width, width);
      if (m < m1 - m0) add_block<TYPE, 1>(codes, w.row_bytes, w.block, mask, x + m * stride, stride, scale, to + m * width, width);
    }
  }
  for (int64_t m = m0; m < m1; ++m)
    store_columns<column>(sums + (m - m0) * width, 1.0f, w.factor, columns, bias ? bias + n0 : nullptr, y + m * ldy + n0);
}

static void multiply(const MinifloatMatrix& w, const void* prepared, int64_t m0, int64_t m1, int64_t n0, int64_t n1, const float* bias,
                     float* y, int64_t ldy, void* scratch) {
  if (m0 >= m1 || n0 >= n1) return;
  if (w.scale_type == kE8m0)
    multiply_as<kE8m0>(w, prepared, m0, m1, n0, n1, bias, y, ldy, scratch);
  else
    multiply_as<kE4m3>(w, prepared, m0, m1, n0, n1, bias, y, ldy, scratch);
}

}  // namespace

const MinifloatColumns kMinifloatColumnsF32Avx512 = {"avx512", prepared_bytes, prepare, columns_scratch_bytes, multiply};

}  // namespace hotset::cpu

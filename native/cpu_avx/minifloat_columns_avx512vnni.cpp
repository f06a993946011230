// SPDX-License-Identifier: Apache-2.0
// Products with E2M1 weights packed along N and int8 activations for AVX-512 VNNI: lanes along N.
//
// Unpacking the bytes of four k makes a dword of the four codes of a byte column, whose half bytes are two columns: vpshufb turns each
// into 12 + twice the value, and vpdpbusd multiplies by the four activations in all lanes. Sums begin with -12 times the sum of the
// activations of the block. Per 256 bytes and row of x: 8 unpacks, 4 shifts, 8 ands, 8 vpshufb, 8 vpdpbusd.
#include "cpu_avx/minifloat_columns_avx512.h"

namespace hotset::cpu {
namespace {

using namespace columns512;

// One prepared row: q of whole groups of 32, d of each, and -12 * sum of q of each run of 16.
struct Row {
  int64_t groups;
  const char* base;

  static inline __attribute__((always_inline)) Row make(const void* prepared, int64_t k) {
    const Row r = {(k + 31) / 32, (const char*)prepared};
    return r;
  }
  inline __attribute__((always_inline)) int64_t stride() const { return round_up(groups * 44, 64); }
  inline __attribute__((always_inline)) int8_t* q(int64_t i) const { return (int8_t*)(base + i * stride()); }
  inline __attribute__((always_inline)) float* d(int64_t i) const { return (float*)(q(i) + 32 * groups); }
  inline __attribute__((always_inline)) int32_t* shifts(int64_t i) const { return (int32_t*)(d(i) + groups); }

  static constexpr float kFactor = 0.5f;
  // Vector 2 i + parity: dwords i of the lanes, which are bytes 16 L + 4 i + q.
  static int column(int v, int l) { return 2 * (16 * (l / 4) + 4 * (v / 2) + l % 4) + v % 2; }

  template <int TYPE, int MR>
  inline __attribute__((always_inline)) void add_block(const uint8_t* codes, int64_t row_bytes, int64_t block, __mmask64 mask,
                                                       int64_t first, int64_t k, const uint8_t* scales, float* sums,
                                                       int64_t sum_stride) const {
    const __m512i table = _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    const __m512i low = _mm512_set1_epi8(15);
    __m512i dot[8][MR];
    for (int m = 0; m < MR; ++m) {
      const int32_t* shift = shifts(first + m) + k / 16;
      for (int v = 0; v < 8; ++v) dot[v][m] = _mm512_set1_epi32(block == 16 ? shift[0] : shift[0] + shift[1]);
    }
    for (int64_t p = 0; p < block; p += 4) {
      __m512i r[4];
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        _mm_prefetch((const char*)codes + (p + j + kRowsAhead) * row_bytes, _MM_HINT_T0);
        r[j] = _mm512_maskz_loadu_epi8(mask, codes + (p + j) * row_bytes);
      }
      const __m512i a = _mm512_unpacklo_epi8(r[0], r[1]), b = _mm512_unpackhi_epi8(r[0], r[1]);
      const __m512i c = _mm512_unpacklo_epi8(r[2], r[3]), d = _mm512_unpackhi_epi8(r[2], r[3]);
      const __m512i four[4] = {_mm512_unpacklo_epi16(a, c), _mm512_unpackhi_epi16(a, c), _mm512_unpacklo_epi16(b, d),
                               _mm512_unpackhi_epi16(b, d)};
      __m512i activations[MR];
      for (int m = 0; m < MR; ++m) {
        int32_t quad;
        memcpy(&quad, q(first + m) + k + p, 4);
        activations[m] = _mm512_set1_epi32(quad);
      }
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        const __m512i even = _mm512_shuffle_epi8(table, _mm512_and_si512(four[j], low));
        const __m512i odd = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(four[j], 4), low));
        for (int m = 0; m < MR; ++m) {
          dot[2 * j][m] = _mm512_dpbusd_epi32(dot[2 * j][m], even, activations[m]);
          dot[2 * j + 1][m] = _mm512_dpbusd_epi32(dot[2 * j + 1][m], odd, activations[m]);
        }
      }
    }
#pragma GCC unroll 8
    for (int v = 0; v < 8; ++v) {
      const __m512 scale = floats_of_scales<TYPE>(scales + 16 * v);
      for (int m = 0; m < MR; ++m) {
        float* const to = sums + m * sum_stride + 16 * v;
        const __m512 both = _mm512_mul_ps(scale, _mm512_set1_ps(d(first + m)[k / 32]));
        _mm512_store_ps(to, _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[v][m]), both, _mm512_load_ps(to)));
      }
    }
  }
};

static size_t prepared_bytes(int64_t m, int64_t k) { return (size_t)(m * Row::make(nullptr, k).stride()); }

static void prepare(const float* x, int64_t ldx, int64_t k, int64_t m0, int64_t m1, void* prepared) {
  const Row rows = Row::make(prepared, k);
  for (int64_t m = m0; m < m1; ++m) {
    for (int64_t g = 0; g < rows.groups; ++g) {
      Group group = load_group(x + m * ldx + 32 * g, k - 32 * g);
      rows.d(m)[g] = quantize_i8(&group);
      for (int h = 0; h < 2; ++h) {
        _mm_store_si128((__m128i*)(rows.q(m) + 32 * g + 16 * h), bytes_of(group, h));
        rows.shifts(m)[2 * g + h] = -12 * sum_of(group, h);
      }
    }
  }
}

}  // namespace

const MinifloatColumns kMinifloatColumnsI8Avx512Vnni = {"avx512vnni", prepared_bytes, prepare, columns_scratch_bytes, multiply<Row>};

}  // namespace hotset::cpu

// SPDX-License-Identifier: Apache-2.0
// Quantised GEMM with int8 activations for AVX-512 VNNI.
//
//   few rows:  lanes run along K (quant_gemm_avx512vnni.h).
//   many rows: lanes run along N; a panel of 32 rows of W is transposed into scratch once, then used for all rows of x; codes leave their
//              bytes in registers.
//              sum (q * (code - zero)) = sum (q * code) - zero * sum (q), and prepare() leaves the second sum of every group.
#include "cpu_avx/quant_gemm_avx512vnni.h"

namespace hotset::cpu {
namespace {

using namespace avx512;

template <int BITS>
constexpr int64_t kPanelK =
    BITS == 8 ? 512 : 1024;  // codes: 16 KiB of them at most, so that a panel and its rows of x stay in a first-level cache
constexpr int kPanelN = 32;
constexpr int64_t kRowsInCache = 1 << 20;  // bytes of prepared rows that stay in a second-level cache beside a panel

// ---- prepared rows ------------------------------------------------------------------------------------------------------------------

// One row: codes q of the padded k, then for each group d, sum of q, and -2^(BITS-1) * sum of q.
template <int BITS>
struct Row {
  int64_t code_bytes, groups;  // groups is padded to 16
  const char* base;

  static inline __attribute__((always_inline)) Row make(const void* prepared, int64_t k) {
    Row r;
    r.code_bytes = round_up(k, 512 / BITS);
    r.groups = round_up((k + 31) / 32, 16);
    r.base = (const char*)prepared;
    return r;
  }
  inline __attribute__((always_inline)) int64_t stride() const { return odd_lines(code_bytes + 12 * groups); }
  inline __attribute__((always_inline)) const int8_t* q(int64_t i) const { return (const int8_t*)(base + i * stride()); }
  inline __attribute__((always_inline)) const float* d(int64_t i) const { return (const float*)(base + i * stride() + code_bytes); }
};

template <int BITS>
static size_t prepared_bytes(int64_t m, int64_t k) {
  const int64_t few = FewRows<BITS, 1>::make(nullptr, k).stride(), many = Row<BITS>::make(nullptr, k).stride();
  return (size_t)(m * (few > many ? few : many));
}

template <int BITS>
static void prepare(const float* x, int64_t ldx, int64_t m, int64_t k, int64_t m0, int64_t m1, void* prepared) {
  if (m <= kFewRows) {
    const auto rows = FewRows<BITS, 1>::make(prepared, k);
    for (int64_t i = m0; i < m1; ++i) prepare_few(rows, x + i * ldx, k, i);
    return;
  }
  const Row<BITS> rows = Row<BITS>::make(prepared, k);
  const int64_t groups = rows.code_bytes / 32;
  // Brings the bytes of each 128-bit lane into planes; a second permute joins the two lanes.
  const __m256i split4 = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
  const __m256i split2 = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  const __m256i join2 = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  for (int64_t i = m0; i < m1; ++i) {
    int8_t* q = (int8_t*)rows.q(i);
    float* d = (float*)rows.d(i);
    float* sums = d + rows.groups;
    int32_t* shifts = (int32_t*)(sums + rows.groups);
    for (int64_t g = groups; g < rows.groups; ++g) {
      d[g] = sums[g] = 0;
      shifts[g] = 0;
    }
    for (int64_t g = 0; g < groups; ++g) {
      Group group = load_group(x + i * ldx + g * 32, k - g * 32);
      d[g] = quantize_i8(&group);
      const __m256i codes = _mm256_set_m128i(bytes_of(group, 1), bytes_of(group, 0));
      const int32_t sum = sum_of(group, 0) + sum_of(group, 1);
      sums[g] = (float)sum;
      shifts[g] = -(1 << (BITS - 1)) * sum;
      // Group g is group g % (16 / BITS) of its chunk.
      int8_t* chunk = q + g / (16 / BITS) * (512 / BITS);
      const int64_t at = g % (16 / BITS);
      if (BITS == 8) {
        _mm256_storeu_si256((__m256i*)(chunk + 32 * at), codes);
      } else if (BITS == 4) {
        const __m256i planes = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(codes, split4), 0xd8);
        _mm_storeu_si128((__m128i*)(chunk + 16 * at), _mm256_castsi256_si128(planes));
        _mm_storeu_si128((__m128i*)(chunk + 64 + 16 * at), _mm256_extracti128_si256(planes, 1));
      } else {
        const __m256i planes = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(codes, split2), join2);
        const __m128i low = _mm256_castsi256_si128(planes), high = _mm256_extracti128_si256(planes, 1);
        _mm_storel_epi64((__m128i*)(chunk + 8 * at), low);
        _mm_storeh_pd((double*)(chunk + 64 + 8 * at), _mm_castsi128_pd(low));
        _mm_storel_epi64((__m128i*)(chunk + 128 + 8 * at), high);
        _mm_storeh_pd((double*)(chunk + 192 + 8 * at), _mm_castsi128_pd(high));
      }
    }
  }
}

// ---- many rows: lanes along N -------------------------------------------------------------------------------------------------------

// Scratch of one panel, 32 rows of W. codes[dword of the rows][half] are the codes in one dword of 16 rows.
template <int BITS>
struct Panel {
  __m512i codes[kPanelK<BITS> * BITS / 32][2];
  __m512 scale[kPanelK<BITS> / 32][2];   // [group][half]
  __m512 offset[kPanelK<BITS> / 32][2];  // 2^(BITS-1) - zero
};

// Scales and offsets of 16 groups from k on, of 16 rows of W. Rows past the end repeat the last one.
template <int BITS>
HOTSET_INLINE void transpose_scales(const QuantMatrix& w, int64_t first, int64_t n1, int64_t k, int shift, int half, __m512 scale[16][2],
                                    __m512 offset[16][2]) {
  const bool plain = shift == 5 && w.scale_type == 1 && w.k - k >= 512;
  const Blocks blocks = blocks_at(k, w.k, 5, shift);
  __m512i r[16];
  if (plain)
    for (int i = 0; i < 16; ++i)
      r[i] = _mm512_loadu_si512((const char*)w.scales + 4 * (smaller(first + i, n1 - 1) * w.scale_stride + blocks.first));
  else
    for (int i = 0; i < 16; ++i) r[i] = _mm512_castps_si512(scales_of(w, smaller(first + i, n1 - 1), blocks));
  transpose16(r);
  for (int g = 0; g < 16; ++g) scale[g][half] = _mm512_castsi512_ps(r[g]);
  if (!w.zero_points) return;
  for (int i = 0; i < 16; ++i) r[i] = zeros_of<BITS>(w, smaller(first + i, n1 - 1), blocks);
  transpose16(r);
  for (int g = 0; g < 16; ++g) offset[g][half] = _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_set1_epi32(1 << (BITS - 1)), r[g]));
}

// One chunk of 16 rows of W.
template <bool WHOLE>
HOTSET_INLINE void transpose_chunk(const uint8_t* const rows[16], int64_t at, __mmask64 mask, __m512i* out) {
  __m512i r[16];
  for (int i = 0; i < 16; ++i) r[i] = WHOLE ? _mm512_loadu_si512(rows[i] + at) : _mm512_maskz_loadu_epi8(mask, rows[i] + at);
  transpose16(r);
  for (int j = 0; j < 16; ++j) _mm512_store_si512(out + 2 * j, r[j]);
}

template <int BITS>
static void transpose_panel(const QuantMatrix& w, int64_t n, int64_t n1, int64_t k0, int shift, Panel<BITS>* panel) {
  const int64_t k1 = smaller(w.k, k0 + kPanelK<BITS>);
  for (int half = 0; half < 2; ++half) {
    const int64_t first = n + 16 * half;
    for (int64_t k = k0; k < k1; k += 512) {
      const int64_t g = (k - k0) / 32;
      transpose_scales<BITS>(w, first, n1, k, shift, half, panel->scale + g, panel->offset + g);
    }
    const uint8_t* rows[16];
    for (int i = 0; i < 16; ++i) rows[i] = w.codes + smaller(first + i, n1 - 1) * w.row_bytes;
    __m512i* out = &panel->codes[0][half];
    int64_t k = k0;
    for (; k + 512 / BITS <= k1; k += 512 / BITS, out += 32) transpose_chunk<true>(rows, k * BITS / 8, 0, out);
    if (k < k1) transpose_chunk<false>(rows, k * BITS / 8, first64(((k1 - k) * BITS + 7) / 8), out);
  }
}

// MR rows of x from i on by one panel, asking for `lines` lines of the next one with every group. A group of 32 codes is BITS dwords x
// PLANES.
template <int BITS, int MR, bool ZEROS>
static void many_rows_tile(const Panel<BITS>* panel, const Row<BITS>& rows, int64_t i, int64_t k0, int groups, PanelAhead* next,
                           int64_t lines, const Store& out) {
  constexpr int PLANES = 8 / BITS;
  __m512 sum[MR][2];
  for (int m = 0; m < MR; ++m) {
    sum[m][0] = sum[m][1] = _mm512_setzero_ps();
    prefetch_y(out, i + m);
  }
  const int64_t to_d = rows.code_bytes + k0 / 8, to_sum = to_d + 4 * rows.groups, to_shift = to_sum + 4 * rows.groups;
  const char* base[MR];
  for (int m = 0; m < MR; ++m) base[m] = (const char*)rows.q(i + m);
  const __m512i* codes = panel->codes[0];
  for (int g = 0; g < groups; ++g) {
    next->advance(lines);
    __m512i dot[MR][2];
    for (int m = 0; m < MR; ++m) {
      const int32_t* shift = (const int32_t*)(base[m] + to_shift) + g;
      dot[m][0] = dot[m][1] = _mm512_set1_epi32(*shift);
    }
    const int64_t to_q = k0 + g / (16 / BITS) * (512 / BITS) + g % (16 / BITS) * (4 * BITS);
    const char* q[MR];
    for (int m = 0; m < MR; ++m) {
      q[m] = base[m] + to_q;
      __asm__("" : "+r"(q[m]));  // one pointer a row and small offsets; left alone, gcc keeps many sums of offsets in memory
    }
#pragma GCC unroll 8
    for (int j = 0; j < BITS; ++j) {
      __m512i bytes0 = _mm512_load_si512(codes), bytes1 = _mm512_load_si512(codes + 1);
      __asm__("" : "+v"(bytes0), "+v"(bytes1));  // one load for all planes
      codes += 2;
#pragma GCC unroll 4
      for (int p = 0; p < PLANES; ++p) {
        const __m512i c0 = plane<BITS>(bytes0, p), c1 = plane<BITS>(bytes1, p);
#pragma GCC unroll 6
        for (int m = 0; m < MR; ++m) {
          int32_t four;
          memcpy(&four, q[m] + 64 * p + 4 * j, 4);
          const __m512i x = _mm512_set1_epi32(four);
          dot[m][0] = _mm512_dpbusd_epi32(dot[m][0], c0, x);
          dot[m][1] = _mm512_dpbusd_epi32(dot[m][1], c1, x);
        }
      }
    }
    for (int m = 0; m < MR; ++m) {
      const char* row = base[m];
      const __m512 scale_x = _mm512_set1_ps(((const float*)(row + to_d))[g]);
      for (int half = 0; half < 2; ++half) {
        __m512 value = _mm512_cvtepi32_ps(dot[m][half]);
        if (ZEROS) value = _mm512_fmadd_ps(panel->offset[g][half], _mm512_set1_ps(((const float*)(row + to_sum))[g]), value);
        sum[m][half] = _mm512_fmadd_ps(_mm512_mul_ps(value, scale_x), panel->scale[g][half], sum[m][half]);
      }
    }
  }
  for (int m = 0; m < MR; ++m)
    for (int half = 0; half < 2; ++half) store_sum(out, i + m, half, sum[m][half]);
}

template <int BITS, bool ZEROS>
static void many_rows_tiles(const Panel<BITS>* panel, const Row<BITS>& rows, int64_t m0, int64_t m1, int64_t k0, int groups,
                            PanelAhead* next, const Store& out) {
  const int64_t visits = (m1 - m0 + 5) / 6 * groups, lines = (next->rows * next->lines + visits - 1) / visits;
  for (int64_t i = m0; i < m1;) {
    // Tiles of 6 rows; a remainder of 1 or 2 is shared with the tile before it.
    const int64_t left = m1 - i;
    const int64_t tile = left >= 9 || left == 6 ? 6 : left > 6 ? (left + 1) / 2 : left;
    switch (tile) {
      case 1:
        many_rows_tile<BITS, 1, ZEROS>(panel, rows, i, k0, groups, next, lines, out);
        break;
      case 2:
        many_rows_tile<BITS, 2, ZEROS>(panel, rows, i, k0, groups, next, lines, out);
        break;
      case 3:
        many_rows_tile<BITS, 3, ZEROS>(panel, rows, i, k0, groups, next, lines, out);
        break;
      case 4:
        many_rows_tile<BITS, 4, ZEROS>(panel, rows, i, k0, groups, next, lines, out);
        break;
      case 5:
        many_rows_tile<BITS, 5, ZEROS>(panel, rows, i, k0, groups, next, lines, out);
        break;
      default:
        many_rows_tile<BITS, 6, ZEROS>(panel, rows, i, k0, groups, next, lines, out);
        break;
    }
    i += tile;
  }
}

template <int BITS>
static void multiply(const QuantMatrix& w, const void* prepared, int64_t m, int64_t m0, int64_t m1, int64_t n0, int64_t n1,
                     const float* bias, float* y, int64_t ldy, void* scratch) {
  if (n0 >= n1 || m0 >= m1) return;
  if (m <= kFewRows) {
    // The second four rows of x find these rows of W in the cache.
    const int64_t n_step = m1 - m0 <= 4 ? n1 - n0 : kFewRowsN;
    const auto few = FewRows<BITS, 1>::make(prepared, w.k);
    for (int64_t n = n0; n < n1; n += n_step) multiply_few<RawCodes>(w, few, m0, m1, n, smaller(n1, n + n_step), bias, y, ldy);
    return;
  }
  const Row<BITS> rows = Row<BITS>::make(prepared, w.k);
  // One panel after the other. Prepared rows that do not stay in the cache are walked a column of panels at a time.
  const int shift = block_shift(w);
  constexpr int64_t kDepth = kPanelK<BITS>;
  Panel<BITS>* panel = (Panel<BITS>*)scratch;
  const bool rows_fit = (m1 - m0) * rows.stride() <= kRowsInCache;
  const int64_t outer_end = rows_fit ? n1 : w.k, outer_step = rows_fit ? kPanelN : kDepth;
  const int64_t inner_begin = rows_fit ? 0 : n0, inner_end = rows_fit ? w.k : n1, inner_step = rows_fit ? kDepth : kPanelN;
  for (int64_t outer = rows_fit ? n0 : 0; outer < outer_end; outer += outer_step) {
    for (int64_t inner = inner_begin; inner < inner_end; inner += inner_step) {
      const int64_t n = rows_fit ? outer : inner, k0 = rows_fit ? inner : outer;
      transpose_panel<BITS>(w, n, n1, k0, shift, panel);
      const int groups = (int)((smaller(kDepth, w.k - k0) + 31) / 32);
      const Store out = {bias ? bias + n : nullptr, y + n, ldy, {first16(n1 - n), first16(n1 - n - 16)}, k0 == 0, k0 + kDepth >= w.k};
      PanelAhead next = PanelAhead::after(w, n, n0, n1, k0, kPanelN, kDepth, rows_fit, shift);
      if (w.zero_points)
        many_rows_tiles<BITS, true>(panel, rows, m0, m1, k0, groups, &next, out);
      else
        many_rows_tiles<BITS, false>(panel, rows, m0, m1, k0, groups, &next, out);
    }
  }
}

template <int BITS>
static size_t scratch_bytes(int64_t m, int64_t, int64_t) {
  return m <= kFewRows ? 0 : sizeof(Panel<BITS>);
}

}  // namespace

const QuantGemm kQuantI8Avx512Vnni[3] = {
    {prepared_bytes<2>, prepare<2>, scratch_bytes<2>, multiply<2>},
    {prepared_bytes<4>, prepare<4>, scratch_bytes<4>, multiply<4>},
    {prepared_bytes<8>, prepare<8>, scratch_bytes<8>, multiply<8>},
};

}  // namespace hotset::cpu

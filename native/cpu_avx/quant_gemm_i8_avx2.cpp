// SPDX-License-Identifier: Apache-2.0
// Quantised GEMM with int8 activations for AVX2.
//
// vpmaddubsw: 16 lanes, each adds two products of an unsigned and a signed byte with saturation at 16 bits. Codes below 16 cannot
// saturate: eight of them add up to 8 * 2 * 15 * 127 = 30480. 8-bit codes are taken as two halves, code = low + 16 * high, and
// vpmaddwd, which makes 32-bit lanes, multiplies the high half by 16.
// Otherwise as the AVX-512 VNNI version with half the lanes: a chunk is 32 bytes of a row of W, plane p of it holds k = k0 + i * PLANES + p.
#include "cpu_avx/quant_gemm_avx2.h"

namespace hotset::cpu {
namespace {

using namespace avx2;

constexpr int kFewRows = 3;  // most rows of x that the lanes-along-K method takes
constexpr int64_t kPanelK = 256;
constexpr int kPanelN = 16;

// ---- prepared rows ------------------------------------------------------------------------------------------------------------------

// One row: codes q of the padded k, then for each group d, sum of q, and -2^(BITS-1) * sum of q.
template <int BITS>
struct Row {
  int64_t code_bytes, groups;  // groups is padded to 16
  const char* base;

  static inline __attribute__((always_inline)) Row make(const void* prepared, int64_t k) {
    Row r;
    r.code_bytes = round_up(k, BITS == 2 ? 128 : 64);
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
  return (size_t)(m * Row<BITS>::make(nullptr, k).stride());
}

HOTSET_INLINE int32_t largest_lane(__m256i v) {
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
  return _mm_cvtsi128_si32(m);
}

HOTSET_INLINE int32_t sum_lanes(__m256i v) {
  __m128i m = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  m = _mm_add_epi32(m, _mm_shuffle_epi32(m, 0x4e));
  m = _mm_add_epi32(m, _mm_shuffle_epi32(m, 0xb1));
  return _mm_cvtsi128_si32(m);
}

template <int BITS>
static void prepare(const float* x, int64_t ldx, int64_t, int64_t k, int64_t m0, int64_t m1, void* prepared) {
  const Row<BITS> rows = Row<BITS>::make(prepared, k);
  const int64_t groups = rows.code_bytes / 32;
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  // Brings the bytes of each 128-bit lane into planes; a second permute joins the two lanes.
  const __m256i split4 = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
  const __m256i split2 = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  const __m256i join2 = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const __m256i in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);  // undoes the lanes of two levels of packs
  for (int64_t i = m0; i < m1; ++i) {
    int8_t* q = (int8_t*)rows.q(i);
    float* d = (float*)rows.d(i);
    float* sums = d + rows.groups;
    int32_t* shifts = (int32_t*)(sums + rows.groups);
    for (int64_t g = 0; g < rows.groups; ++g) {
      if (g >= groups) {
        d[g] = 0;
        sums[g] = 0;
        shifts[g] = 0;
        continue;
      }
      const float* p = x + i * ldx + g * 32;
      const int64_t left = k - g * 32;
      __m256 v[4];
      __m256i bits = _mm256_setzero_si256();
      for (int j = 0; j < 4; ++j) {
        v[j] = left >= 8 * j + 8 ? _mm256_loadu_ps(p + 8 * j) : left > 8 * j ? _mm256_maskload_ps(p + 8 * j, first8(left - 8 * j)) : _mm256_setzero_ps();
        // Bits of |x| order like the numbers, and NaN comes last.
        bits = _mm256_max_epi32(bits, _mm256_and_si256(_mm256_castps_si256(v[j]), magnitude));
      }
      const int32_t largest_bits = largest_lane(bits);
      float largest;
      memcpy(&largest, &largest_bits, 4);
      const __m256 scale = _mm256_set1_ps(largest < 0x1p-100f ? 0.0f : 127.0f / largest);
      __m256i r[4], sum8 = _mm256_setzero_si256();
      for (int j = 0; j < 4; ++j) {
        r[j] = _mm256_cvtps_epi32(_mm256_mul_ps(v[j], scale));
        sum8 = _mm256_add_epi32(sum8, r[j]);
      }
      const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(r[0], r[1]), _mm256_packs_epi32(r[2], r[3]));
      const __m256i codes = _mm256_permutevar8x32_epi32(packed, in_order);
      const int32_t sum = sum_lanes(sum8);
      d[g] = largest / 127.0f;
      sums[g] = (float)sum;
      shifts[g] = (int32_t)(-(1 << (BITS - 1)) * (int64_t)sum);
      // Group g is group g % (8 / BITS) of its chunk.
      int8_t* chunk = q + g / (8 / BITS) * (256 / BITS);
      const int64_t at = g % (8 / BITS);
      if (BITS == 8) {
        _mm256_storeu_si256((__m256i*)chunk, codes);
      } else if (BITS == 4) {
        const __m256i planes = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(codes, split4), 0xd8);
        _mm_storeu_si128((__m128i*)(chunk + 16 * at), _mm256_castsi256_si128(planes));
        _mm_storeu_si128((__m128i*)(chunk + 32 + 16 * at), _mm256_extracti128_si256(planes, 1));
      } else {
        const __m256i planes = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(codes, split2), join2);
        const __m128i low = _mm256_castsi256_si128(planes), high = _mm256_extracti128_si256(planes, 1);
        _mm_storel_epi64((__m128i*)(chunk + 8 * at), low);
        _mm_storeh_pd((double*)(chunk + 32 + 8 * at), _mm_castsi128_pd(low));
        _mm_storel_epi64((__m128i*)(chunk + 64 + 8 * at), high);
        _mm_storeh_pd((double*)(chunk + 96 + 8 * at), _mm_castsi128_pd(high));
      }
    }
  }
}

// ---- few rows: lanes along K --------------------------------------------------------------------------------------------------------

template <int BITS>
HOTSET_INLINE __m256i low_codes(__m256i bytes, int shift) {
  return _mm256_and_si256(shift == 0 ? bytes : _mm256_srli_epi32(bytes, shift), _mm256_set1_epi8((1 << (BITS == 8 ? 4 : BITS)) - 1));
}

HOTSET_INLINE __m256i load_q(const int8_t* q) { return _mm256_load_si256((const __m256i*)q); }

// Eight sums of 4 codes a plane.
template <int BITS>
HOTSET_INLINE __m256i dot_chunk(__m256i bytes, const int8_t* q) {
  const __m256i one = _mm256_set1_epi16(1);
  if (BITS == 8) {
    const __m256i low = _mm256_maddubs_epi16(low_codes<8>(bytes, 0), load_q(q)), high = _mm256_maddubs_epi16(low_codes<8>(bytes, 4), load_q(q));
    return _mm256_add_epi32(_mm256_madd_epi16(low, one), _mm256_madd_epi16(high, _mm256_set1_epi16(16)));
  }
  __m256i pairs = _mm256_add_epi16(_mm256_maddubs_epi16(low_codes<BITS>(bytes, 0), load_q(q)),
                                   _mm256_maddubs_epi16(low_codes<BITS>(bytes, BITS), load_q(q + 32)));
  if (BITS == 2) {
    pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(low_codes<BITS>(bytes, 2 * BITS), load_q(q + 64)));
    pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(low_codes<BITS>(bytes, 3 * BITS), load_q(q + 96)));
  }
  return _mm256_madd_epi16(pairs, one);
}

template <int BITS, int MR, bool ZEROS>
static void few_rows(const QuantMatrix& w, const Row<BITS>& rows, int64_t i, int64_t n0, int64_t n1, const float* bias, float* y,
                     int64_t ldy) {
  const int shift = block_shift(w);
  const __m256i lane_group = _mm256_srli_epi32(lanes(), BITS == 8 ? 3 : BITS == 4 ? 2 : 1);
  const int64_t ahead = prefetch_distance(w);
  for (int64_t n = n0; n < n1; n += 4) {
    prefetch_scales(w, n);
    __m256 sum[4][MR], shifted[4][MR];
    int64_t row[4];  // rows past the end repeat the last one
    const uint8_t* codes[4];
    for (int r = 0; r < 4; ++r) {
      row[r] = smaller(n + r, n1 - 1);
      codes[r] = w.codes + row[r] * w.row_bytes;
      for (int m = 0; m < MR; ++m) sum[r][m] = shifted[r][m] = _mm256_setzero_ps();
    }
    for (int64_t k0 = 0; k0 < w.k; k0 += 256) {
      const Blocks blocks = blocks_at(k0, w.k, 5, shift);
      __m256 scale[4][MR];
      for (int r = 0; r < 4; ++r) {
        const __m256 s = scales_of(w, row[r], blocks);
        __m256 zero;
        if (ZEROS) zero = _mm256_cvtepi32_ps(zeros_of<BITS>(w, row[r], blocks));
        for (int m = 0; m < MR; ++m) {
          const float* d = rows.d(i + m) + k0 / 32;
          scale[r][m] = _mm256_mul_ps(s, _mm256_load_ps(d));
          const __m256 q_sum = _mm256_load_ps(d + rows.groups);
          shifted[r][m] = _mm256_fmadd_ps(scale[r][m], ZEROS ? _mm256_mul_ps(zero, q_sum) : q_sum, shifted[r][m]);
        }
      }
      __m256i index = lane_group;
      for (int64_t k = k0; k < k0 + 256 && k < w.k; k += 256 / BITS) {
        const int64_t bytes_left = ((w.k - k) * BITS + 7) / 8;
        for (int r = 0; r < 4; ++r) {
          const __m256i bytes = load_codes(codes[r] + k * BITS / 8, bytes_left);
          _mm_prefetch((const char*)codes[r] + k * BITS / 8 + ahead, _MM_HINT_T0);
          for (int m = 0; m < MR; ++m) {
            const __m256 dot = _mm256_cvtepi32_ps(dot_chunk<BITS>(bytes, rows.q(i + m) + k));
            sum[r][m] = _mm256_fmadd_ps(dot, _mm256_permutevar8x32_ps(scale[r][m], index), sum[r][m]);
          }
        }
        index = _mm256_add_epi32(index, _mm256_set1_epi32(8 / BITS));
      }
    }
    const __m256 zero = _mm256_set1_ps(ZEROS ? 1 : 1 << (BITS - 1));
    for (int m = 0; m < MR; ++m) {
      for (int r = 0; r < 4; ++r) sum[r][m] = _mm256_fnmadd_ps(zero, shifted[r][m], sum[r][m]);
      store4(y + (i + m) * ldy + n, sum4(sum[0][m], sum[1][m], sum[2][m], sum[3][m]), bias ? bias + n : nullptr, n1 - n);
    }
  }
}

// ---- many rows: lanes along N -------------------------------------------------------------------------------------------------------

// Scratch of one panel, 256 codes of 16 rows. Each vector holds codes (of 8 bits: half codes) of 4 k for 8 rows, as
// codes[((dword * PLANES + plane) * 2 + half_code) * 2 + half] with half_code for 8 bits only.
struct Panel {
  __m256i codes[2 * kPanelK / 4 * 2];
  __m256 scale[8][2];   // [group][half]
  __m256 offset[8][2];  // 2^(BITS-1) - zero
};

template <int BITS>
static void unpack_panel(const QuantMatrix& w, int64_t n, int64_t n1, int64_t k0, int shift, Panel* panel) {
  constexpr int kVectors = BITS == 8 ? 2 : 8 / BITS;  // of each dword
  const Blocks blocks = blocks_at(k0, w.k, 5, shift);
  for (int half = 0; half < 2; ++half) {
    const int64_t first = n + 8 * half, count = smaller(8, n1 - first);
    __m256i r[8];
    for (int i = 0; i < 8; ++i) r[i] = i < count ? _mm256_castps_si256(scales_of(w, first + i, blocks)) : _mm256_setzero_si256();
    transpose8(r);
    for (int g = 0; g < 8; ++g) panel->scale[g][half] = _mm256_castsi256_ps(r[g]);
    if (w.zero_points) {
      for (int i = 0; i < 8; ++i) r[i] = i < count ? zeros_of<BITS>(w, first + i, blocks) : _mm256_setzero_si256();
      transpose8(r);
      for (int g = 0; g < 8; ++g)
        panel->offset[g][half] = _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_set1_epi32(1 << (BITS - 1)), r[g]));
    }
    __m256i* out = panel->codes + half;
    for (int64_t k = k0; k < k0 + kPanelK && k < w.k; k += 256 / BITS) {
      const int64_t bytes_left = ((w.k - k) * BITS + 7) / 8;
      for (int i = 0; i < 8; ++i)
        r[i] = i < count ? load_codes(w.codes + (first + i) * w.row_bytes + k * BITS / 8, bytes_left) : _mm256_setzero_si256();
      transpose8(r);
      for (int j = 0; j < 8; ++j)
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v, out += 2) *out = low_codes<BITS>(r[j], v * (BITS == 8 ? 4 : BITS));
    }
  }
}

// MR rows of x from i on by one panel. A group of 32 codes is BITS dwords.
template <int BITS, int MR, bool ZEROS>
static void many_rows_tile(const Panel* panel, const Row<BITS>& rows, int64_t i, int64_t k0, int groups, const Store& out) {
  constexpr int PLANES = 8 / BITS, kHalves = BITS == 8 ? 2 : 1;
  __m256 sum[MR][2];
  for (int m = 0; m < MR; ++m) {
    sum[m][0] = sum[m][1] = _mm256_setzero_ps();
    prefetch_y(out, i + m);
  }
  const int64_t to_d = rows.code_bytes + k0 / 8, to_sum = to_d + 4 * rows.groups, to_shift = to_sum + 4 * rows.groups;
  const char* base[MR];
  for (int m = 0; m < MR; ++m) base[m] = (const char*)rows.q(i + m);
  for (int g = 0; g < groups; ++g) {
    const int64_t to_q = k0 + g / (8 / BITS) * (256 / BITS) + g % (8 / BITS) * (4 * BITS);
    const char* q[MR];
    __m256i dot[MR][2];
    for (int m = 0; m < MR; ++m) {
      q[m] = base[m] + to_q;
      __asm__("" : "+r"(q[m]));  // one pointer a row and small offsets; left alone, gcc keeps many sums of offsets in memory
      const int32_t* shift = (const int32_t*)(base[m] + to_shift) + g;
      dot[m][0] = dot[m][1] = _mm256_set1_epi32(*shift);
    }
#pragma GCC unroll 2
    for (int h = 0; h < kHalves; ++h) {
      const __m256i* codes = panel->codes + (g * 8 * kHalves + h) * 2;
      __m256i pairs[MR][2];
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j, codes += 2 * kHalves) {
        for (int m = 0; m < MR; ++m) {
          int32_t four;
          memcpy(&four, q[m] + 32 * (j % PLANES) + 4 * (j / PLANES), 4);
          const __m256i x = _mm256_set1_epi32(four);
          const __m256i p0 = _mm256_maddubs_epi16(codes[0], x), p1 = _mm256_maddubs_epi16(codes[1], x);
          pairs[m][0] = j == 0 ? p0 : _mm256_add_epi16(pairs[m][0], p0);
          pairs[m][1] = j == 0 ? p1 : _mm256_add_epi16(pairs[m][1], p1);
        }
      }
      const __m256i weight = _mm256_set1_epi16(h == 0 ? 1 : 16);
      for (int m = 0; m < MR; ++m)
        for (int half = 0; half < 2; ++half) dot[m][half] = _mm256_add_epi32(dot[m][half], _mm256_madd_epi16(pairs[m][half], weight));
    }
    for (int m = 0; m < MR; ++m) {
      const __m256 scale_x = _mm256_broadcast_ss((const float*)(base[m] + to_d) + g);
      for (int half = 0; half < 2; ++half) {
        __m256 value = _mm256_cvtepi32_ps(dot[m][half]);
        if (ZEROS) value = _mm256_fmadd_ps(panel->offset[g][half], _mm256_broadcast_ss((const float*)(base[m] + to_sum) + g), value);
        sum[m][half] = _mm256_fmadd_ps(_mm256_mul_ps(value, scale_x), panel->scale[g][half], sum[m][half]);
      }
    }
  }
  for (int m = 0; m < MR; ++m)
    for (int half = 0; half < 2; ++half) store_sum(out, i + m, half, sum[m][half]);
}

template <int BITS, bool ZEROS>
static void many_rows_tiles(const Panel* panel, const Row<BITS>& rows, int64_t m0, int64_t m1, int64_t k0, int groups,
                            const Store& out) {
  // Tiles of 3 rows; a last row alone is shared with the tile before it.
  for (int64_t i = m0; i < m1;) {
    const int64_t left = m1 - i, tile = left == 4 ? 2 : smaller(left, 3);
    if (tile == 3) many_rows_tile<BITS, 3, ZEROS>(panel, rows, i, k0, groups, out);
    if (tile == 2) many_rows_tile<BITS, 2, ZEROS>(panel, rows, i, k0, groups, out);
    if (tile == 1) many_rows_tile<BITS, 1, ZEROS>(panel, rows, i, k0, groups, out);
    i += tile;
  }
}

template <int BITS, int MR>
static void few_rows_any(const QuantMatrix& w, const Row<BITS>& rows, int64_t i, int64_t n0, int64_t n1, const float* bias, float* y,
                         int64_t ldy) {
  if (w.zero_points)
    few_rows<BITS, MR, true>(w, rows, i, n0, n1, bias, y, ldy);
  else
    few_rows<BITS, MR, false>(w, rows, i, n0, n1, bias, y, ldy);
}

template <int BITS>
static void multiply(const QuantMatrix& w, const void* prepared, int64_t m, int64_t m0, int64_t m1, int64_t n0, int64_t n1,
                     const float* bias, float* y, int64_t ldy, void* scratch) {
  if (n0 >= n1) return;
  const Row<BITS> rows = Row<BITS>::make(prepared, w.k);
  if (m <= kFewRows) {
    if (m1 - m0 == 1) few_rows_any<BITS, 1>(w, rows, m0, n0, n1, bias, y, ldy);
    if (m1 - m0 == 2) few_rows_any<BITS, 2>(w, rows, m0, n0, n1, bias, y, ldy);
    if (m1 - m0 == 3) few_rows_any<BITS, 3>(w, rows, m0, n0, n1, bias, y, ldy);
    return;
  }
  const int shift = block_shift(w);
  Panel* panel = (Panel*)scratch;
  for (int64_t n = n0; n < n1; n += kPanelN) {
    for (int64_t k0 = 0; k0 < w.k; k0 += kPanelK) {
      unpack_panel<BITS>(w, n, n1, k0, shift, panel);
      const int groups = (int)((smaller(kPanelK, w.k - k0) + 31) / 32);
      const Store out = {bias ? bias + n : nullptr, y + n, ldy, {first8(n1 - n), first8(n1 - n - 8)}, k0 == 0, k0 + kPanelK >= w.k};
      if (w.zero_points)
        many_rows_tiles<BITS, true>(panel, rows, m0, m1, k0, groups, out);
      else
        many_rows_tiles<BITS, false>(panel, rows, m0, m1, k0, groups, out);
    }
  }
}

static size_t scratch_bytes(int64_t m, int64_t, int64_t) { return m <= kFewRows ? 0 : sizeof(Panel); }

}  // namespace

const QuantGemm kQuantI8Avx2[3] = {
    {prepared_bytes<2>, prepare<2>, scratch_bytes, multiply<2>},
    {prepared_bytes<4>, prepare<4>, scratch_bytes, multiply<4>},
    {prepared_bytes<8>, prepare<8>, scratch_bytes, multiply<8>},
};

}  // namespace hotset::cpu

// SPDX-License-Identifier: Apache-2.0
// Quantised GEMM with exact float activations for AVX-512.
//
// A chunk is 64 bytes of a row of W: dword l of it holds the STEPS = 32 / BITS codes of k = k0 + l * STEPS + i, low bits first.
// vpermps looks a code up in a table of 16 floats (code - 2^(BITS-1)); it reads the low 4 bits of an index, so a shift per step is all
// the unpacking (8-bit codes: shift left, arithmetic shift right, convert).
//   few rows:  lanes run along K. Prepared step i of a chunk is x[k0 + l * STEPS + i] in lane l, then one vector has the sums of the
//              lanes over the steps, which a zero point other than 2^(BITS-1) multiplies.
//   many rows: lanes run along N; a panel of 32 rows of W is decoded into scratch once (scales applied), then used for all rows of x.
#include "cpu_avx/quant_gemm_avx512.h"

namespace hotset::cpu {
namespace {

using namespace avx512;

constexpr int kFewRows = 8;  // most rows of x that the lanes-along-K method takes, four at a time
constexpr int64_t kFewRowsN = 32;
constexpr int64_t kPanelK = 256;
constexpr int kPanelN = 32;
constexpr int64_t kRowsInCache = 1 << 20;  // bytes of prepared rows that stay in a second-level cache beside a panel

template <int BITS>
constexpr int kSteps = 32 / BITS;
template <int BITS>
constexpr int kStepShift = BITS == 8   ? 2
                           : BITS == 4 ? 3
                                       : 4;
template <int BITS>
constexpr int64_t kChunk = 512 / BITS;
template <int BITS>
constexpr int64_t kChunkFloats = kChunk<BITS> + 16;

// ---- prepared rows ------------------------------------------------------------------------------------------------------------------

template <int BITS>
HOTSET_INLINE int64_t row_floats(int64_t k) {
  return odd_lines(round_up(k, kChunk<BITS>) / kChunk<BITS> * kChunkFloats<BITS> * (int64_t)sizeof(float)) / (int64_t)sizeof(float);
}

template <int BITS>
static size_t prepared_bytes(int64_t m, int64_t k) {
  return (size_t)(m * row_floats<BITS>(k)) * sizeof(float);
}

template <int BITS>
static void prepare(const float* x, int64_t ldx, int64_t, int64_t k, int64_t m0, int64_t m1, void* prepared) {
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i at = _mm512_slli_epi32(lane, kStepShift<BITS>);
  for (int64_t m = m0; m < m1; ++m) {
    float* out = (float*)prepared + m * row_floats<BITS>(k);
    for (int64_t k0 = 0; k0 < k; k0 += kChunk<BITS>) {
      const float* p = x + m * ldx + k0;
      __m512 sum = _mm512_setzero_ps();
      for (int i = 0; i < kSteps<BITS>; ++i) {
        const __mmask16 valid = _mm512_cmplt_epi32_mask(at, _mm512_set1_epi32((int)smaller(k - k0 - i, 512)));
        const __m512 value = _mm512_mask_i32gather_ps(_mm512_setzero_ps(), valid, at, p + i, 4);
        sum = _mm512_add_ps(sum, value);
        _mm512_store_ps(out, value);
        out += 16;
      }
      _mm512_store_ps(out, sum);
      out += 16;
    }
  }
}

// ---- decoding -----------------------------------------------------------------------------------------------------------------------

template <int BITS>
HOTSET_INLINE __m512 code_table() {
  if (BITS == 2) return _mm512_setr_ps(-2, -1, 0, 1, -2, -1, 0, 1, -2, -1, 0, 1, -2, -1, 0, 1);
  return _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
}

// What decode() wants of the dwords.
template <int BITS>
HOTSET_INLINE __m512i to_signed(__m512i dwords) {
  return BITS == 8 ? _mm512_xor_si512(dwords, _mm512_set1_epi8((char)0x80)) : dwords;
}

// code - 2^(BITS-1) of step i.
template <int BITS>
HOTSET_INLINE __m512 decode(__m512i dwords, __m512 table, int i) {
  if (BITS == 8) return _mm512_cvtepi32_ps(_mm512_srai_epi32(i == 3 ? dwords : _mm512_slli_epi32(dwords, (unsigned)(24 - 8 * i)), 24));
  return _mm512_permutexvar_ps(i == 0 ? dwords : _mm512_srli_epi32(dwords, (unsigned)(BITS * i)), table);
}

// ---- few rows: lanes along K --------------------------------------------------------------------------------------------------------

// One chunk of four rows of W by MR rows of x.
template <int BITS, int MR, bool PARTIAL, bool ZEROS>
HOTSET_INLINE void few_rows_chunk(const QuantMatrix& w, const float* x, int64_t ldx, const int64_t row[4], const uint8_t* const codes[4],
                                  const char* const after[4], int64_t k0, int shift, __m512 table, __m512 sum[4][MR]) {
  const Blocks blocks = blocks_at(k0, w.k, kStepShift<BITS>, shift);
  const __mmask64 mask = PARTIAL ? first64(((w.k - k0) * BITS + 7) / 8) : ~(__mmask64)0;
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
    const uint8_t* p = codes[r] + k0 * BITS / 8;
    _mm_prefetch(after[r] + k0 * BITS / 8, _MM_HINT_T0);
    __m512i dwords = to_signed<BITS>(PARTIAL ? _mm512_maskz_loadu_epi8(mask, p) : _mm512_loadu_si512(p));
    __asm__("" : "+v"(dwords));  // one load; left alone, gcc puts one into every shift
    const __m512 scale = scales_of(w, row[r], blocks);
    __m512 dot[MR];
    if (ZEROS) {
      const __m512 offset = _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_set1_epi32(1 << (BITS - 1)), zeros_of<BITS>(w, row[r], blocks)));
      for (int m = 0; m < MR; ++m) dot[m] = _mm512_mul_ps(offset, _mm512_load_ps(x + m * ldx + 16 * kSteps<BITS>));
    }
#pragma GCC unroll 16
    for (int i = 0; i < kSteps<BITS>; ++i) {
      const __m512 value = decode<BITS>(dwords, table, i);
      for (int m = 0; m < MR; ++m) {
        const __m512 xi = _mm512_load_ps(x + m * ldx + 16 * i);
        dot[m] = i == 0 && !ZEROS ? _mm512_mul_ps(value, xi) : _mm512_fmadd_ps(value, xi, dot[m]);
      }
    }
    for (int m = 0; m < MR; ++m) sum[r][m] = _mm512_fmadd_ps(dot[m], scale, sum[r][m]);
  }
}

template <int BITS, int MR, bool ZEROS>
static void few_rows(const QuantMatrix& w, const float* x, int64_t ldx, int64_t n0, int64_t n1, const float* bias, float* y, int64_t ldy) {
  const int shift = block_shift(w);
  const __m512 table = code_table<BITS>();
  const auto streams = Streams<4>::make(w, n0, n1);
  for (int64_t j = 0; j < streams.size; ++j) {
    streams.prefetch_scales(j);
    __m512 sum[4][MR];
    int64_t row[4];
    const uint8_t* codes[4];
    const char* after[4];
    for (int r = 0; r < 4; ++r) {
      row[r] = streams.row(j, r);
      after[r] = streams.after(streams.codes, j, r);
      codes[r] = w.codes + row[r] * w.row_bytes;
      for (int m = 0; m < MR; ++m) sum[r][m] = _mm512_setzero_ps();
    }
    const float* chunk = x;
    int64_t k0 = 0;
    for (; k0 + kChunk<BITS> <= w.k; k0 += kChunk<BITS>, chunk += kChunkFloats<BITS>)
      few_rows_chunk<BITS, MR, false, ZEROS>(w, chunk, ldx, row, codes, after, k0, shift, table, sum);
    if (k0 < w.k) few_rows_chunk<BITS, MR, true, ZEROS>(w, chunk, ldx, row, codes, after, k0, shift, table, sum);

    for (int m = 0; m < MR; ++m) streams.store(j, sum4(sum[0][m], sum[1][m], sum[2][m], sum[3][m]), bias, y + m * ldy);
  }
}

// ---- many rows: lanes along N -------------------------------------------------------------------------------------------------------

// Scratch of one panel: weights[k - k0][half], 16 rows of W each. Scales and offsets (2^(BITS-1) - zero) of 16 codes a step.
struct Panel {
  __m512 weights[kPanelK][2];
  __m512 scale[kPanelK / 16], offset[kPanelK / 16];  // of one half
};

template <int BITS, bool ZEROS>
static void decode_panel(const QuantMatrix& w, int64_t n, int64_t n1, int64_t k0, int shift, Panel* panel) {
  const __m512 table = code_table<BITS>();
  const Blocks blocks = blocks_at(k0, w.k, 4, shift);
  for (int half = 0; half < 2; ++half) {
    const int64_t first = n + 16 * half, count = smaller(16, n1 - first);
    __m512i r[16];
    for (int i = 0; i < 16; ++i) r[i] = i < count ? _mm512_castps_si512(scales_of(w, first + i, blocks)) : _mm512_setzero_si512();
    transpose16(r);
    for (int i = 0; i < 16; ++i) panel->scale[i] = _mm512_castsi512_ps(r[i]);
    if (ZEROS) {
      for (int i = 0; i < 16; ++i) r[i] = i < count ? zeros_of<BITS>(w, first + i, blocks) : _mm512_setzero_si512();
      transpose16(r);
      for (int i = 0; i < 16; ++i) panel->offset[i] = _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_set1_epi32(1 << (BITS - 1)), r[i]));
    }
    __m512* out = &panel->weights[0][half];
    for (int64_t k = k0; k < k0 + kPanelK && k < w.k; k += kChunk<BITS>) {
      const __mmask64 mask = first64(((w.k - k) * BITS + 7) / 8);
      for (int i = 0; i < 16; ++i)
        r[i] = i < count ? _mm512_maskz_loadu_epi8(mask, w.codes + (first + i) * w.row_bytes + k * BITS / 8) : _mm512_setzero_si512();
      transpose16(r);
      for (int l = 0; l < 16; ++l) {
        const __m512i dwords = to_signed<BITS>(r[l]);
        const int64_t run = (k - k0 + l * kSteps<BITS>) / 16;
        const __m512 scale = panel->scale[run], offset = ZEROS ? panel->offset[run] : _mm512_setzero_ps();
#pragma GCC unroll 16
        for (int i = 0; i < kSteps<BITS>; ++i, out += 2) {
          __m512 value = decode<BITS>(dwords, table, i);
          if (ZEROS) value = _mm512_add_ps(value, offset);
          *out = _mm512_mul_ps(value, scale);
        }
      }
    }
  }
}

// MR rows of x by `dwords` dwords of codes of a panel; x starts at the panel's first chunk.
template <int BITS, int MR>
static void many_rows_tile(const Panel* panel, const float* x, int64_t ldx, int64_t i, int dwords, const Store& out) {
  __m512 sum[MR][2];
  for (int m = 0; m < MR; ++m) {
    sum[m][0] = sum[m][1] = _mm512_setzero_ps();
    prefetch_y(out, i + m);
  }
  const __m512* weights = panel->weights[0];
  // Row m is rows[m / 3] + (m % 3) * ldx: few pointers, and x86 addresses add the rest.
  const float* rows[(MR + 2) / 3];
  for (int m = 0; m < MR; m += 3) rows[m / 3] = x + (i + m) * ldx;
  for (int l = 0; l < dwords; ++l) {
#pragma GCC unroll 16
    for (int step = 0; step < kSteps<BITS>; ++step) {
      const __m512 w0 = weights[0], w1 = weights[1];
      weights += 2;
#pragma GCC unroll 12
      for (int m = 0; m < MR; ++m) {
        const __m512 value = _mm512_set1_ps(rows[m / 3][m % 3 * ldx + 16 * step]);
        sum[m][0] = _mm512_fmadd_ps(w0, value, sum[m][0]);
        sum[m][1] = _mm512_fmadd_ps(w1, value, sum[m][1]);
      }
    }
    const int64_t next = l % 16 == 15 ? kChunkFloats<BITS> - 15 : 1;
    for (int m = 0; m < MR; m += 3) rows[m / 3] += next;
  }
  for (int m = 0; m < MR; ++m)
    for (int half = 0; half < 2; ++half) store_sum(out, i + m, half, sum[m][half]);
}

template <int BITS>
static void many_rows_tiles(const Panel* panel, const float* x, int64_t ldx, int64_t m0, int64_t m1, int dwords, PanelAhead* next,
                            const Store& out) {
  // Tiles of at most 12 rows and of nearly equal size.
  const int64_t tiles = (m1 - m0 + 11) / 12, lines = (next->rows * next->lines + tiles - 1) / tiles;
  int64_t i = m0;
  for (int64_t t = 0; t < tiles; ++t) {
    const int64_t size = (m1 - i + (tiles - t) - 1) / (tiles - t);
    next->advance(lines);
    switch (size) {
      // clang-format off
#define HOTSET_TILE(MR) \
  case MR: many_rows_tile<BITS, MR>(panel, x, ldx, i, dwords, out); break;
      HOTSET_TILE(1) HOTSET_TILE(2) HOTSET_TILE(3) HOTSET_TILE(4) HOTSET_TILE(5) HOTSET_TILE(6)
      HOTSET_TILE(7) HOTSET_TILE(8) HOTSET_TILE(9) HOTSET_TILE(10) HOTSET_TILE(11) HOTSET_TILE(12)
// clang-format on
#undef HOTSET_TILE
    }
    i += size;
  }
}

template <int BITS, int MR>
static void few_rows_any(const QuantMatrix& w, const float* x, int64_t ldx, int64_t n0, int64_t n1, const float* bias, float* y,
                         int64_t ldy) {
  if (w.zero_points)
    few_rows<BITS, MR, true>(w, x, ldx, n0, n1, bias, y, ldy);
  else
    few_rows<BITS, MR, false>(w, x, ldx, n0, n1, bias, y, ldy);
}

template <int BITS>
static void multiply(const QuantMatrix& w, const void* prepared, int64_t m, int64_t m0, int64_t m1, int64_t n0, int64_t n1,
                     const float* bias, float* y, int64_t ldy, void* scratch) {
  if (n0 >= n1 || m0 >= m1) return;
  const float* x = (const float*)prepared;
  const int64_t ldx = row_floats<BITS>(w.k);
  if (m <= kFewRows) {
    // The second four rows of x find these rows of W in the cache.
    const int64_t n_step = m1 - m0 <= 4 ? n1 - n0 : kFewRowsN;
    for (int64_t n = n0; n < n1; n += n_step) {
      const int64_t end = smaller(n1, n + n_step);
      for (int64_t i = m0; i < m1;) {
        const int64_t left = m1 - i, tile = left <= 4 ? left : left < 8 ? (left + 1) / 2 : 4;
        if (tile == 1) few_rows_any<BITS, 1>(w, x + i * ldx, ldx, n, end, bias, y + i * ldy, ldy);
        if (tile == 2) few_rows_any<BITS, 2>(w, x + i * ldx, ldx, n, end, bias, y + i * ldy, ldy);
        if (tile == 3) few_rows_any<BITS, 3>(w, x + i * ldx, ldx, n, end, bias, y + i * ldy, ldy);
        if (tile == 4) few_rows_any<BITS, 4>(w, x + i * ldx, ldx, n, end, bias, y + i * ldy, ldy);
        i += tile;
      }
    }
    return;
  }
  // One panel after the other. Prepared rows that do not stay in the cache are walked a column of panels at a time.
  const int shift = block_shift(w);
  Panel* panel = (Panel*)scratch;
  const bool rows_fit = (m1 - m0) * ldx * (int64_t)sizeof(float) <= kRowsInCache;
  const int64_t outer_end = rows_fit ? n1 : w.k, outer_step = rows_fit ? kPanelN : kPanelK;
  const int64_t inner_begin = rows_fit ? 0 : n0, inner_end = rows_fit ? w.k : n1, inner_step = rows_fit ? kPanelK : kPanelN;
  for (int64_t outer = rows_fit ? n0 : 0; outer < outer_end; outer += outer_step) {
    for (int64_t inner = inner_begin; inner < inner_end; inner += inner_step) {
      const int64_t n = rows_fit ? outer : inner, k0 = rows_fit ? inner : outer;
      PanelAhead next = PanelAhead::after(w, n, n0, n1, k0, kPanelN, kPanelK, rows_fit, shift);
      if (w.zero_points)
        decode_panel<BITS, true>(w, n, n1, k0, shift, panel);
      else
        decode_panel<BITS, false>(w, n, n1, k0, shift, panel);
      const int dwords = (int)((smaller(kPanelK, w.k - k0) + kSteps<BITS> - 1) / kSteps<BITS>);
      const Store out = {bias ? bias + n : nullptr, y + n, ldy, {first16(n1 - n), first16(n1 - n - 16)}, k0 == 0, k0 + kPanelK >= w.k};
      many_rows_tiles<BITS>(panel, x + k0 / kChunk<BITS> * kChunkFloats<BITS>, ldx, m0, m1, dwords, &next, out);
    }
  }
}

static size_t scratch_bytes(int64_t m, int64_t, int64_t) { return m <= kFewRows ? 0 : sizeof(Panel); }

}  // namespace

const QuantGemm kQuantF32Avx512[3] = {
    {prepared_bytes<2>, prepare<2>, scratch_bytes, multiply<2>},
    {prepared_bytes<4>, prepare<4>, scratch_bytes, multiply<4>},
    {prepared_bytes<8>, prepare<8>, scratch_bytes, multiply<8>},
};

}  // namespace hotset::cpu

// SPDX-License-Identifier: Apache-2.0
// Quantised GEMM with int8 activations on AMX tiles, for many rows; fewer go to the AVX-512 VNNI table.
//
// tdpbssd: C[16][16] += A[16][4 j + i] * B[j][4 n + i] over i < 4 and up to 16 rows j of B. A holds 16 rows of x, B 4 codes each of 16 rows
// of W, centred (code - 2^(BITS-1)), so that no shift is left to correct; zero points add (2^(BITS-1) - zero) * sum of q.
//   A run of 32 codes (16 for blocks of 16) has its own scales and so its own C: K of a tile product is 32, half of what the unit can
//   take. C goes through memory to the vector unit, which converts, scales and adds it to sums that stay in 16 registers over all runs
//   of a panel. Per 16 x 16 x 32 products: 16 cycles of the tile unit, 24 of the two vector ports (convert, scale, add for 16 rows).
//   A panel of W is unpacked as for AVX-512 VNNI: 32 rows x 512 codes. Four C take turns, so that a product ends well before it is read.
#include "cpu_avx/quant_gemm_avx512.h"
#include "cpu_avx/quantize_avx512.h"
#include "cpu_avx/tiles.h"

namespace hotset::cpu {
namespace {

using namespace avx512;

constexpr int64_t kTileRows = 16;
constexpr int64_t kAmxRows = 8;  // from this number of rows on the tiles win
constexpr int64_t kPanelK = 512;
constexpr int kPanelN = 32;
constexpr int64_t kRowsInCache = 1 << 20;  // bytes of prepared rows that stay in a second-level cache beside a panel
template <int RUN>
constexpr int kRunShift = RUN == 16 ? 4 : 5;

// ---- prepared rows ------------------------------------------------------------------------------------------------------------------

// One row: codes q of the padded k, then for each run d of its group and the sum of q. The codes of a run lie in the order of B's rows:
// dword by dword of W, and in each dword plane by plane.
struct Row {
  int64_t code_bytes, runs;
  const char* base;

  static inline __attribute__((always_inline)) Row make(const void* prepared, int64_t k, int run) {
    Row r;
    r.code_bytes = round_up(k, 256);
    r.runs = round_up(r.code_bytes / run, 16);
    r.base = (const char*)prepared;
    return r;
  }
  inline __attribute__((always_inline)) int64_t stride() const { return odd_lines(code_bytes + 8 * runs); }
  inline __attribute__((always_inline)) const int8_t* q(int64_t i) const { return (const int8_t*)(base + i * stride()); }
  inline __attribute__((always_inline)) const float* d(int64_t i) const { return (const float*)(base + i * stride() + code_bytes); }
};

template <int BITS, int RUN>
static const QuantGemm& fewer_rows();

template <int BITS, int RUN>
static size_t prepared_bytes(int64_t m, int64_t k) {
  const size_t bytes = (size_t)(m * Row::make(nullptr, k, RUN).stride());
  if (m >= kAmxRows) return bytes;
  // Not less than here: rows never need more than as many single ones (quant_gemm.h).
  const size_t fewer = fewer_rows<BITS, RUN>().prepared_bytes(m, k);
  return fewer > bytes ? fewer : bytes;
}

template <int BITS, int RUN>
static void prepare(const float* x, int64_t ldx, int64_t m, int64_t k, int64_t m0, int64_t m1, void* prepared) {
  if (m < kAmxRows) return fewer_rows<BITS, RUN>().prepare(x, ldx, m, k, m0, m1, prepared);
  const Row rows = Row::make(prepared, k, RUN);
  // Byte i of dword j is code (4 * (j / PLANES) + i) * PLANES + j % PLANES, within 16 bytes.
  const __m128i order = BITS == 4   ? _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15)
                        : BITS == 2 ? _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15)
                                    : _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  for (int64_t i = m0; i < m1; ++i) {
    int8_t* q = (int8_t*)rows.q(i);
    float* d = (float*)rows.d(i);
    float* sums = d + rows.runs;
    for (int64_t g = 0; g < rows.code_bytes / 32; ++g, q += 32) {
      Group group = load_group(x + i * ldx + g * 32, k - g * 32);
      const float scale = quantize_i8(&group);
      _mm_storeu_si128((__m128i*)q, _mm_shuffle_epi8(bytes_of(group, 0), order));
      _mm_storeu_si128((__m128i*)(q + 16), _mm_shuffle_epi8(bytes_of(group, 1), order));
      const int32_t sum[2] = {sum_of(group, 0), sum_of(group, 1)};
      if (RUN == 32) {
        d[g] = scale;
        sums[g] = (float)(sum[0] + sum[1]);
      } else {
        d[2 * g] = d[2 * g + 1] = scale;
        sums[2 * g] = (float)sum[0];
        sums[2 * g + 1] = (float)sum[1];
      }
    }
  }
}

// ---- panels of W --------------------------------------------------------------------------------------------------------------------

// Scratch of one panel, 512 codes of 32 rows. codes[(chunk * 16 + dword) * PLANES + plane][half] are 4 codes of 16 rows: rows of B.
struct Panel {
  __m512i codes[kPanelK / 4][2];
  __m512 scale[32][2];     // [run][half]
  __m512 offset[32][2];    // 2^(BITS-1) - zero
  __m512 d[32], sums[32];  // of 16 rows of x, [run]
  int32_t products[4][kTileRows][16];
};

// Codes of plane p, less 2^(BITS-1).
template <int BITS>
HOTSET_INLINE __m512i centred(__m512i bytes, int p) {
  if (BITS == 8) return _mm512_xor_si512(bytes, _mm512_set1_epi8((char)0x80));
  const __m512i codes = _mm512_and_si512(_mm512_srli_epi32(bytes, (unsigned)(BITS * p)), _mm512_set1_epi8((1 << BITS) - 1));
  return _mm512_sub_epi8(codes, _mm512_set1_epi8(1 << (BITS - 1)));
}

template <int BITS, int RUN>
static void unpack_panel(const QuantMatrix& w, int64_t n, int64_t n1, int64_t k0, int shift, Panel* panel) {
  constexpr int PLANES = 8 / BITS;
  for (int half = 0; half < 2; ++half) {
    const int64_t first = n + 16 * half, count = smaller(16, n1 - first);
    __m512i r[16];
    for (int run = 0; run < kPanelK / RUN && k0 + run * RUN < w.k; run += 16) {
      const Blocks blocks = blocks_at(k0 + run * RUN, w.k, kRunShift<RUN>, shift);
      for (int i = 0; i < 16; ++i) r[i] = i < count ? _mm512_castps_si512(scales_of(w, first + i, blocks)) : _mm512_setzero_si512();
      transpose16(r);
      for (int g = 0; g < 16; ++g) panel->scale[run + g][half] = _mm512_castsi512_ps(r[g]);
      if (!w.zero_points) continue;
      for (int i = 0; i < 16; ++i) r[i] = i < count ? zeros_of<BITS>(w, first + i, blocks) : _mm512_setzero_si512();
      transpose16(r);
      for (int g = 0; g < 16; ++g)
        panel->offset[run + g][half] = _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_set1_epi32(1 << (BITS - 1)), r[g]));
    }
    __m512i* out = &panel->codes[0][half];
    for (int64_t k = k0; k < k0 + kPanelK && k < w.k; k += 512 / BITS) {
      const __mmask64 mask = first64(((w.k - k) * BITS + 7) / 8);
      for (int i = 0; i < 16; ++i)
        r[i] = i < count ? _mm512_maskz_loadu_epi8(mask, w.codes + (first + i) * w.row_bytes + k * BITS / 8) : _mm512_setzero_si512();
      transpose16(r);
      for (int j = 0; j < 16; ++j)
#pragma GCC unroll 4
        for (int p = 0; p < PLANES; ++p, out += 2) _mm512_store_si512(out, centred<BITS>(r[j], p));
    }
  }
}

// ---- products -----------------------------------------------------------------------------------------------------------------------

// Tiles 0 to 3: products, up to 16 rows of x by 16 of W. 4 and 5: rows of x by RUN codes, in turn. 6 and 7: RUN codes by 16 rows of W.
template <int RUN>
static void configure(int rows) {
  TileConfig config = {};
  config.palette = 1;
  for (int t = 0; t < 8; ++t) {
    config.rows[t] = (uint8_t)(t < 6 ? rows : RUN / 4);
    config.row_bytes[t] = (uint16_t)(t == 4 || t == 5 ? RUN : 64);
  }
  HOTSET_TILE_CONFIGURE(config);
}

#define HOTSET_PRODUCT(C, A, B, run)                                                  \
  do {                                                                                \
    HOTSET_TILE_ZERO(C);                                                              \
    HOTSET_TILE_LOAD(A, q + (run) * RUN, stride);                                     \
    HOTSET_TILE_LOAD(B, &panel->codes[(run) * (RUN / 4)][half], 2 * sizeof(__m512i)); \
    HOTSET_TILE_DOT_I8(C, A, B);                                                      \
    HOTSET_TILE_STORE(C, panel->products[C], 64);                                     \
  } while (0)

// d and sums of q of ROWS rows of x from i on, for the runs of a panel.
template <int RUN, int ROWS, bool ZEROS>
static void gather_rows(Panel* panel, const Row& rows, int64_t i, int64_t k0, int runs) {
  for (int run = 0; run < runs; run += 16) {
    __m512i r[16];
    for (int m = 0; m < 16; ++m) r[m] = _mm512_loadu_si512(rows.d(i + (m < ROWS ? m : 0)) + k0 / RUN + run);
    transpose16(r);
    for (int g = 0; g < 16; ++g) panel->d[run + g] = _mm512_castsi512_ps(r[g]);
    if (!ZEROS) continue;
    for (int m = 0; m < 16; ++m) r[m] = _mm512_loadu_si512(rows.d(i + (m < ROWS ? m : 0)) + rows.runs + k0 / RUN + run);
    transpose16(r);
    for (int g = 0; g < 16; ++g) panel->sums[run + g] = _mm512_castsi512_ps(r[g]);
  }
}

// sum += products c of a run, scaled.
template <int ROWS, bool ZEROS>
HOTSET_INLINE void add_products(const Panel* panel, int run, int c, int half, __m512 sum[ROWS]) {
  const __m512 scale = panel->scale[run][half], offset = panel->offset[run][half];
  const float* d = (const float*)&panel->d[run];
  const float* sums = (const float*)&panel->sums[run];
#pragma GCC unroll 16
  for (int i = 0; i < ROWS; ++i) {
    __m512 value = _mm512_cvtepi32_ps(_mm512_load_si512(panel->products[c][i]));
    if (ZEROS) value = _mm512_fmadd_ps(offset, _mm512_set1_ps(sums[i]), value);
    sum[i] = _mm512_fmadd_ps(_mm512_mul_ps(value, _mm512_set1_ps(d[i])), scale, sum[i]);
  }
}

// ROWS rows of x from i on, which gather_rows has seen, by one half of a panel.
template <int RUN, int ROWS, bool ZEROS>
static __attribute__((noinline)) void tile(Panel* panel, const int8_t* q, int64_t stride, int runs, int half, __m512 sum_out[ROWS]) {
  __m512 sum[ROWS];
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r) sum[r] = _mm512_setzero_ps();
  // A run's products are read two runs later.
  int run = 0;
  for (; run + 4 <= runs; run += 4) {
    HOTSET_PRODUCT(0, 4, 6, run);
    if (run > 0) add_products<ROWS, ZEROS>(panel, run - 2, 2, half, sum);
    HOTSET_PRODUCT(1, 5, 7, run + 1);
    if (run > 0) add_products<ROWS, ZEROS>(panel, run - 1, 3, half, sum);
    HOTSET_PRODUCT(2, 4, 6, run + 2);
    add_products<ROWS, ZEROS>(panel, run, 0, half, sum);
    HOTSET_PRODUCT(3, 5, 7, run + 3);
    add_products<ROWS, ZEROS>(panel, run + 1, 1, half, sum);
  }
  if (run > 0) {
    add_products<ROWS, ZEROS>(panel, run - 2, 2, half, sum);
    add_products<ROWS, ZEROS>(panel, run - 1, 3, half, sum);
  }
  for (; run < runs; ++run) {
    HOTSET_PRODUCT(0, 4, 6, run);
    add_products<ROWS, ZEROS>(panel, run, 0, half, sum);
  }
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r) sum_out[r] = sum[r];
}

template <int RUN, int ROWS, bool ZEROS>
static void row_tile(Panel* panel, const Row& rows, int64_t i, int64_t k0, int runs, const Store& out) {
  gather_rows<RUN, ROWS, ZEROS>(panel, rows, i, k0, runs);
  for (int half = 0; half < (out.mask[1] ? 2 : 1); ++half) {
    __m512 sum[ROWS];
    tile<RUN, ROWS, ZEROS>(panel, rows.q(i) + k0, rows.stride(), runs, half, sum);
    for (int r = 0; r < ROWS; ++r) store_sum(out, i + r, half, sum[r]);
  }
}

template <int RUN, bool ZEROS>
static void tiles(Panel* panel, const Row& rows, int64_t m0, int64_t m1, int64_t k0, int runs, const Store& out) {
  int64_t i = m0;
  if (i + kTileRows <= m1) configure<RUN>(kTileRows);
  for (; i + kTileRows <= m1; i += kTileRows) row_tile<RUN, kTileRows, ZEROS>(panel, rows, i, k0, runs, out);
  while (i < m1) {
    const int left = (int)(m1 - i), size = left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
    configure<RUN>(size);
    if (size == 8) row_tile<RUN, 8, ZEROS>(panel, rows, i, k0, runs, out);
    if (size == 4) row_tile<RUN, 4, ZEROS>(panel, rows, i, k0, runs, out);
    if (size == 2) row_tile<RUN, 2, ZEROS>(panel, rows, i, k0, runs, out);
    if (size == 1) row_tile<RUN, 1, ZEROS>(panel, rows, i, k0, runs, out);
    i += size;
  }
}

template <int BITS, int RUN>
static void multiply(const QuantMatrix& w, const void* prepared, int64_t m, int64_t m0, int64_t m1, int64_t n0, int64_t n1,
                     const float* bias, float* y, int64_t ldy, void* scratch) {
  if (m < kAmxRows) return fewer_rows<BITS, RUN>().multiply(w, prepared, m, m0, m1, n0, n1, bias, y, ldy, scratch);
  if (n0 >= n1 || m0 >= m1) return;
  const Row rows = Row::make(prepared, w.k, RUN);
  const int shift = block_shift(w);
  Panel* panel = (Panel*)scratch;
  // One panel after the other. Prepared rows that do not stay in the cache are walked a column of panels at a time.
  const bool rows_fit = (m1 - m0) * rows.stride() <= kRowsInCache;
  const int64_t outer_end = rows_fit ? n1 : w.k, outer_step = rows_fit ? kPanelN : kPanelK;
  const int64_t inner_begin = rows_fit ? 0 : n0, inner_end = rows_fit ? w.k : n1, inner_step = rows_fit ? kPanelK : kPanelN;
  for (int64_t outer = rows_fit ? n0 : 0; outer < outer_end; outer += outer_step) {
    for (int64_t inner = inner_begin; inner < inner_end; inner += inner_step) {
      const int64_t n = rows_fit ? outer : inner, k0 = rows_fit ? inner : outer;
      unpack_panel<BITS, RUN>(w, n, n1, k0, shift, panel);
      const int runs = (int)((smaller(kPanelK, w.k - k0) + RUN - 1) / RUN);
      const Store out = {bias ? bias + n : nullptr, y + n, ldy, {first16(n1 - n), first16(n1 - n - 16)}, k0 == 0, k0 + kPanelK >= w.k};
      if (w.zero_points)
        tiles<RUN, true>(panel, rows, m0, m1, k0, runs, out);
      else
        tiles<RUN, false>(panel, rows, m0, m1, k0, runs, out);
    }
  }
  HOTSET_TILE_RELEASE();
}

template <int BITS, int RUN>
static size_t scratch_bytes(int64_t m, int64_t n, int64_t k) {
  return m < kAmxRows ? fewer_rows<BITS, RUN>().scratch_bytes(m, n, k) : sizeof(Panel);
}

template <int BITS, int RUN>
static const QuantGemm& fewer_rows() {
  constexpr int kWidth = BITS == 2 ? 0 : BITS == 4 ? 1 : 2;
  return RUN == 16 ? kQuantI8Avx2Block16[kWidth] : kQuantI8Avx512Vnni[kWidth];
}

#define HOTSET_TABLES(RUN)                                                                \
  {                                                                                       \
      {prepared_bytes<2, RUN>, prepare<2, RUN>, scratch_bytes<2, RUN>, multiply<2, RUN>}, \
      {prepared_bytes<4, RUN>, prepare<4, RUN>, scratch_bytes<4, RUN>, multiply<4, RUN>}, \
      {prepared_bytes<8, RUN>, prepare<8, RUN>, scratch_bytes<8, RUN>, multiply<8, RUN>}, \
  }

}  // namespace

const QuantGemm kQuantI8Amx[3] = HOTSET_TABLES(32);
const QuantGemm kQuantI8AmxBlock16[3] = HOTSET_TABLES(16);

}  // namespace hotset::cpu

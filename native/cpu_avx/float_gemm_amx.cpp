// SPDX-License-Identifier: Apache-2.0
// Float products of many rows with bfloat16 and float16 weights on AMX tiles; everything else goes to the AVX-512 table.
//
// tdpbf16ps: C[16][16] += A[16][2 j + i] * B[j][2 n + i] over i < 2 and 16 rows j of B, products exact, sums float32.
// A float32 is the exact sum of three bfloat16 (8 significant bits each, cut off, not rounded), a float16 of two. So
//   x * w = (x1 + x2 + x3) * w                     3 products with bfloat16 weights
//         = (x1 + x2 + x3) * w1 + (x1 + x2) * w2   5 with float16; the sixth, x3 * w2, lies 2^-24 below x * w
// against one FMA of a sixteenth of the width: 512 products a cycle become 170 or 102, where two FMA units make 32.
// The unit takes subnormal numbers as zero: activations below 2^-102 lose digits. An infinite weight gives NaN.
//   Four C, 32 rows of x by 32 columns, take 4 to 20 products for each 4 to 8 tiles loaded, so that the tile unit bounds the loop.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // gcc bug 105593: its own intrinsics
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "cpu_avx/float_gemm_isa.h"
#include "cpu_avx/tiles.h"
#include "cpu_avx/transpose_avx512.h"

namespace hotset::cpu {
namespace {

#include "cpu_avx/vector_avx512.h"

// From these numbers of rows on the tiles win (tests/bench/README.md): five products of float16 are paid for later than three.
constexpr int64_t kBf16Rows = 12, kF16Rows = 24;
constexpr int kKc = 256;           // of a panel
constexpr int64_t kMc = 256;       // rows of x split at a time
constexpr int kStride = kKc + 32;  // bfloat16 from row to row of a part: an odd number of cache lines

inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

struct Scratch {
  uint16_t w[2][kKc / 2][32][2];  // [part][pair of k][column][k]: rows of B
  float sums[32][32];
  uint16_t x[3][kMc][kStride];  // [part][row][k]: rows of A
};

// The upper halves of 16 floats.
inline __m256i cut(V v) { return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(v), 16)); }
inline V cut_value(V v) {
  return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}

// Rows of x, kc of their columns, as three parts; zeros fill up the last tile.
void split_rows(const float* x, int64_t ldx, int64_t rows, int kc, Scratch* s) {
  const V infinity = set1(__builtin_inff());
  for (int64_t i = 0; i < (rows + 15) / 16 * 16; ++i) {
    for (int k = 0; k < (kc + 31) / 32 * 32; k += 16) {
      const int left = i < rows ? static_cast<int>(least(16, kc - k)) : 0;
      const V v = left > 0 ? load_first(x + i * ldx + k, left) : zero();
      // NaN and infinity have no further parts; a NaN keeps a bit that is not cut off.
      const __mmask16 finite = _mm512_cmp_ps_mask(_mm512_abs_ps(v), infinity, _CMP_LT_OQ), nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
      const V first_part =
          _mm512_castsi512_ps(_mm512_mask_or_epi32(_mm512_castps_si512(v), nan, _mm512_castps_si512(v), _mm512_set1_epi32(0x400000)));
      const V r1 = _mm512_maskz_sub_ps(finite, v, cut_value(v)), r2 = _mm512_maskz_sub_ps(finite, r1, cut_value(r1));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(&s->x[0][i][k]), cut(first_part));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(&s->x[1][i][k]), cut(r1));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(&s->x[2][i][k]), cut(r2));
    }
  }
}

// The first `count` of 16 weights from element i on, as bits of bfloat16: part 0 or 1.
template <int D>
inline __m256i weight_part(const void* data, int64_t i, int count, int part) {
  if (D == 16) return _mm256_maskz_loadu_epi16(first(count), static_cast<const char*>(data) + 2 * i);
  const V v = load_first_as<D>(data, i, count);
  return cut(part == 0 ? v : sub(v, cut_value(v)));
}

// Columns [n, n + width) of W, kc of their k from k0 on; zeros fill up the last tile.
template <int D>
void pack_panel(const FloatMatrix& w, int64_t n, int width, int64_t k0, int kc, Scratch* s) {
  for (int part = 0; part < (D == 16 ? 1 : 2); ++part) {
    for (int half = 0; half < 2; ++half) {
      const int columns = width - 16 * half < 0 ? 0 : static_cast<int>(least(16, width - 16 * half));
      const int64_t first_column = n + 16 * half;
      for (int k = 0; k < kc; k += 32) {
        const int left = static_cast<int>(least(32, kc - k));
        __m512i r[16];
        if (w.stride_k == 1) {
          for (int c = 0; c < 16; ++c) {
            const int64_t at = (first_column + c) * w.stride_n + k0 + k;
            const __m256i low = c < columns ? weight_part<D>(w.data, at, static_cast<int>(least(16, left)), part) : _mm256_setzero_si256();
            const __m256i high = c < columns && left > 16 ? weight_part<D>(w.data, at + 16, left - 16, part) : _mm256_setzero_si256();
            r[c] = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
          }
          avx512::transpose16(r);
        } else {
          for (int j = 0; j < 16; ++j) {
            const int64_t at = (k0 + k + 2 * j) * w.stride_k + first_column;
            const __m256i even = 2 * j < left && columns ? weight_part<D>(w.data, at, columns, part) : _mm256_setzero_si256();
            const __m256i odd =
                2 * j + 1 < left && columns ? weight_part<D>(w.data, at + w.stride_k, columns, part) : _mm256_setzero_si256();
            r[j] = _mm512_or_si512(_mm512_cvtepu16_epi32(even), _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
          }
        }
        for (int j = 0; j < 16; ++j) _mm512_storeu_si512(s->w[part][k / 2 + j][16 * half], r[j]);
      }
    }
  }
}

#define HOTSET_FOUR_PRODUCTS(x_part)                            \
  do {                                                          \
    HOTSET_TILE_LOAD(4, &s->x[x_part][i][k], 2 * kStride);      \
    HOTSET_TILE_LOAD(5, &s->x[x_part][second][k], 2 * kStride); \
    HOTSET_TILE_DOT_BF16(0, 4, 6);                              \
    HOTSET_TILE_DOT_BF16(1, 4, 7);                              \
    HOTSET_TILE_DOT_BF16(2, 5, 6);                              \
    HOTSET_TILE_DOT_BF16(3, 5, 7);                              \
  } while (0)

#define HOTSET_LOAD_WEIGHTS(w_part)                                  \
  do {                                                               \
    HOTSET_TILE_LOAD(6, s->w[w_part][k / 2][0], sizeof s->w[0][0]);  \
    HOTSET_TILE_LOAD(7, s->w[w_part][k / 2][16], sizeof s->w[0][0]); \
  } while (0)

// s->sums = rows i ... i + 31 of x (the second 16 may repeat the first) times the panel.
template <int D>
void products(Scratch* s, int64_t i, int64_t second, int kc) {
  HOTSET_TILE_ZERO(0);
  HOTSET_TILE_ZERO(1);
  HOTSET_TILE_ZERO(2);
  HOTSET_TILE_ZERO(3);
  for (int k = 0; k < kc; k += 32) {
    HOTSET_LOAD_WEIGHTS(0);
    HOTSET_FOUR_PRODUCTS(0);
    HOTSET_FOUR_PRODUCTS(1);
    HOTSET_FOUR_PRODUCTS(2);
    if (D == 16) continue;
    HOTSET_LOAD_WEIGHTS(1);
    HOTSET_FOUR_PRODUCTS(0);
    HOTSET_FOUR_PRODUCTS(1);
  }
  HOTSET_TILE_STORE(0, s->sums[0], sizeof s->sums[0]);
  HOTSET_TILE_STORE(1, s->sums[0] + 16, sizeof s->sums[0]);
  HOTSET_TILE_STORE(2, s->sums[16], sizeof s->sums[0]);
  HOTSET_TILE_STORE(3, s->sums[16] + 16, sizeof s->sums[0]);
}

// y (+)= s->sums for `rows` rows; `fresh`: nothing in y yet; bias only with the last panel of a sum.
void add_sums(const Scratch* s, int64_t rows, int width, bool fresh, const float* bias, float* y, int64_t ldy) {
  for (int half = 0; half < 2 && width > 16 * half; ++half) {
    const int count = static_cast<int>(least(16, width - 16 * half));
    const V offset = bias ? load_first(bias + 16 * half, count) : zero();
    for (int64_t r = 0; r < rows; ++r) {
      float* out = y + r * ldy + 16 * half;
      V v = load(s->sums[r] + 16 * half);
      if (!fresh) v = add(v, load_first(out, count));
      store_first(out, add(v, offset), count);
    }
  }
}

template <int D>
void tiles(const FloatMatrix& w, const float* x, int64_t ldx, int64_t m0, int64_t m1, int64_t n0, int64_t n1, const float* bias, float* y,
           int64_t ldy, Scratch* s) {
  TileConfig config = {};
  config.palette = 1;
  for (int t = 0; t < 8; ++t) config.rows[t] = 16, config.row_bytes[t] = 64;
  HOTSET_TILE_CONFIGURE(config);
  for (int64_t m = m0; m < m1; m += kMc) {
    const int64_t rows = least(kMc, m1 - m);
    for (int64_t k = 0; k < w.k; k += kKc) {
      const int kc = static_cast<int>(least(kKc, w.k - k));
      split_rows(x + m * ldx + k, ldx, rows, kc, s);
      for (int64_t n = n0; n < n1; n += 32) {
        const int width = static_cast<int>(least(32, n1 - n));
        pack_panel<D>(w, n, width, k, kc, s);
        for (int64_t i = 0; i < rows; i += 32) {
          products<D>(s, i, i + 16 < rows ? i + 16 : i, kc);
          add_sums(s, least(32, rows - i), width, k == 0, bias && k + kc == w.k ? bias + n : nullptr, y + (m + i) * ldy + n, ldy);
        }
      }
    }
  }
  HOTSET_TILE_RELEASE();
}

size_t scratch_bytes(int64_t m, int64_t n, int64_t k) {
  const size_t other = kFloatGemmAvx512.scratch_bytes(m, n, k);
  return m < kBf16Rows || other > sizeof(Scratch) ? other : sizeof(Scratch);
}

void multiply(const FloatMatrix& w, const float* x, int64_t ldx, int64_t m0, int64_t m1, int64_t n0, int64_t n1, const float* bias,
              float* y, int64_t ldy, void* scratch) {
  const bool in_order = w.stride_n == 1 || w.stride_k == 1;
  if (m1 - m0 < (w.dtype == 16 ? kBf16Rows : kF16Rows) || n0 >= n1 || w.dtype == 1 || !in_order || w.k == 0)
    kFloatGemmAvx512.multiply(w, x, ldx, m0, m1, n0, n1, bias, y, ldy, scratch);
  else if (w.dtype == 16)
    tiles<16>(w, x, ldx, m0, m1, n0, n1, bias, y, ldy, static_cast<Scratch*>(scratch));
  else
    tiles<10>(w, x, ldx, m0, m1, n0, n1, bias, y, ldy, static_cast<Scratch*>(scratch));
}

}  // namespace

extern const FloatGemm kFloatGemmAmx = {"amx", scratch_bytes, multiply};

}  // namespace hotset::cpu

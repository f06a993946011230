// SPDX-License-Identifier: Apache-2.0
// Quantised GEMM with exact float activations for AVX2 and FMA.
//
// As the AVX-512 version with half the lanes: a chunk is 32 bytes of a row of W, and dword l of it holds the STEPS = 32 / BITS codes of
// k = k0 + l * STEPS + i. There is no table look-up of 16 floats. Instead a plane of bytes (code - 2^(BITS-1)) is shuffled so that one
// byte of each dword comes to its top, which converts to float as the code times 2^24, and the scale takes 2^-24 with it.
#include "cpu_avx/quant_gemm_avx2.h"

namespace hotset::cpu {
namespace {

using namespace avx2;

constexpr int kFewRows = 3;  // most rows of x that the lanes-along-K method takes
constexpr int64_t kPanelK = 256;
constexpr int kPanelN = 16;
constexpr float kByteScale = 0x1p-24f;

template <int BITS>
constexpr int kSteps = 32 / BITS;
template <int BITS>
constexpr int kStepShift = BITS == 8 ? 2 : BITS == 4 ? 3 : 4;
template <int BITS>
constexpr int64_t kChunk = 256 / BITS;
template <int BITS>
constexpr int64_t kChunkFloats = kChunk<BITS> + 8;

// ---- prepared rows: for each chunk its steps, then the sums of the lanes over the steps ---------------------------------------------

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
  const __m256i at = _mm256_slli_epi32(lanes(), kStepShift<BITS>);
  for (int64_t m = m0; m < m1; ++m) {
    float* out = (float*)prepared + m * row_floats<BITS>(k);
    for (int64_t k0 = 0; k0 < k; k0 += kChunk<BITS>) {
      const float* p = x + m * ldx + k0;
      __m256 sum = _mm256_setzero_ps();
      for (int i = 0; i < kSteps<BITS>; ++i) {
        const __m256i valid = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)smaller(k - k0 - i, 256)), at);
        const __m256 value = _mm256_mask_i32gather_ps(_mm256_setzero_ps(), p + i, at, _mm256_castsi256_ps(valid), 4);
        sum = _mm256_add_ps(sum, value);
        _mm256_store_ps(out, value);
        out += 8;
      }
      _mm256_store_ps(out, sum);
      out += 8;
    }
  }
}

// ---- decoding -----------------------------------------------------------------------------------------------------------------------

// Bytes of (code - 2^(BITS-1)) of plane p: step j * PLANES + p is byte j of a dword.
template <int BITS>
HOTSET_INLINE __m256i plane(__m256i dwords, int p) {
  if (BITS == 8) return _mm256_xor_si256(dwords, _mm256_set1_epi8((char)0x80));
  const __m256i codes = _mm256_and_si256(p == 0 ? dwords : _mm256_srli_epi32(dwords, BITS * p), _mm256_set1_epi8((1 << BITS) - 1));
  return _mm256_sub_epi8(codes, _mm256_set1_epi8(1 << (BITS - 1)));
}

// Byte j of each dword, times 2^24.
HOTSET_INLINE __m256 byte_as_float(__m256i bytes, int j) {
  if (j == 3) return _mm256_cvtepi32_ps(_mm256_and_si256(bytes, _mm256_set1_epi32((int)0xff000000u)));
  const __m256i to_top = _mm256_broadcastsi128_si256(j == 0   ? _mm_setr_epi8(-1, -1, -1, 0, -1, -1, -1, 4, -1, -1, -1, 8, -1, -1, -1, 12)
                                                     : j == 1 ? _mm_setr_epi8(-1, -1, -1, 1, -1, -1, -1, 5, -1, -1, -1, 9, -1, -1, -1, 13)
                                                              : _mm_setr_epi8(-1, -1, -1, 2, -1, -1, -1, 6, -1, -1, -1, 10, -1, -1, -1, 14));
  return _mm256_cvtepi32_ps(_mm256_shuffle_epi8(bytes, to_top));
}

// ---- few rows: lanes along K --------------------------------------------------------------------------------------------------------

template <int BITS, int MR, bool ZEROS>
static void few_rows(const QuantMatrix& w, const float* x, int64_t ldx, int64_t n0, int64_t n1, const float* bias, float* y,
                     int64_t ldy) {
  constexpr int PLANES = 8 / BITS;
  const int shift = block_shift(w);
  const int64_t ahead = prefetch_distance(w);
  for (int64_t n = n0; n < n1; n += 4) {
    prefetch_scales(w, n);
    __m256 sum[4][MR];
    int64_t row[4];  // rows past the end repeat the last one
    const uint8_t* codes[4];
    for (int r = 0; r < 4; ++r) {
      row[r] = smaller(n + r, n1 - 1);
      codes[r] = w.codes + row[r] * w.row_bytes;
      for (int m = 0; m < MR; ++m) sum[r][m] = _mm256_setzero_ps();
    }
    const float* chunk = x;
    for (int64_t k0 = 0; k0 < w.k; k0 += kChunk<BITS>, chunk += kChunkFloats<BITS>) {
      const Blocks blocks = blocks_at(k0, w.k, kStepShift<BITS>, shift);
      const int64_t bytes_left = ((w.k - k0) * BITS + 7) / 8;
      for (int r = 0; r < 4; ++r) {
        const __m256i dwords = load_codes(codes[r] + k0 * BITS / 8, bytes_left);
        _mm_prefetch((const char*)codes[r] + k0 * BITS / 8 + ahead, _MM_HINT_T0);
        const __m256 scale = _mm256_mul_ps(scales_of(w, row[r], blocks), _mm256_set1_ps(kByteScale));
        __m256 dot[MR];
        for (int m = 0; m < MR; ++m) dot[m] = _mm256_setzero_ps();
        if (ZEROS) {
          const __m256i difference = _mm256_sub_epi32(_mm256_set1_epi32(1 << (BITS - 1)), zeros_of<BITS>(w, row[r], blocks));
          const __m256 offset = _mm256_mul_ps(_mm256_cvtepi32_ps(difference), _mm256_set1_ps(1.0f / kByteScale));
          for (int m = 0; m < MR; ++m)
            dot[m] = _mm256_mul_ps(offset, _mm256_load_ps(chunk + m * ldx + 8 * kSteps<BITS>));
        }
#pragma GCC unroll 4
        for (int p = 0; p < PLANES; ++p) {
          const __m256i bytes = plane<BITS>(dwords, p);
#pragma GCC unroll 4
          for (int j = 0; j < 4; ++j) {
            const __m256 value = byte_as_float(bytes, j);
            for (int m = 0; m < MR; ++m) dot[m] = _mm256_fmadd_ps(value, _mm256_load_ps(chunk + m * ldx + 8 * (j * PLANES + p)), dot[m]);
          }
        }
        for (int m = 0; m < MR; ++m) sum[r][m] = _mm256_fmadd_ps(dot[m], scale, sum[r][m]);
      }
    }
    for (int m = 0; m < MR; ++m)
      store4(y + m * ldy + n, sum4(sum[0][m], sum[1][m], sum[2][m], sum[3][m]), bias ? bias + n : nullptr, n1 - n);
  }
}

// ---- many rows: lanes along N -------------------------------------------------------------------------------------------------------

// Scratch of one panel: weights[k - k0][half], 8 rows of W each.
struct Panel {
  __m256 weights[kPanelK][2];
};

template <int BITS>
static void decode_panel(const QuantMatrix& w, int64_t n, int64_t n1, int64_t k0, int shift, Panel* panel) {
  constexpr int PLANES = 8 / BITS;
  for (int half = 0; half < 2; ++half) {
    const int64_t first = n + 8 * half, count = smaller(8, n1 - first);
    for (int64_t k = k0; k < k0 + kPanelK && k < w.k; k += kChunk<BITS>) {
      const Blocks blocks = blocks_at(k, w.k, kStepShift<BITS>, shift);
      const int64_t bytes_left = ((w.k - k) * BITS + 7) / 8;
      __m256i codes[8], scale[8], zero[8];
      for (int i = 0; i < 8; ++i) {
        const bool valid = i < count;
        codes[i] = valid ? load_codes(w.codes + (first + i) * w.row_bytes + k * BITS / 8, bytes_left) : _mm256_setzero_si256();
        scale[i] = valid ? _mm256_castps_si256(scales_of(w, first + i, blocks)) : _mm256_setzero_si256();
        zero[i] = valid && w.zero_points ? zeros_of<BITS>(w, first + i, blocks) : _mm256_set1_epi32(1 << (BITS - 1));
      }
      transpose8(codes);
      transpose8(scale);
      if (w.zero_points) transpose8(zero);
      __m256* out = &panel->weights[k - k0][half];
      for (int l = 0; l < 8; ++l, out += 2 * kSteps<BITS>) {
        const __m256 s = _mm256_mul_ps(_mm256_castsi256_ps(scale[l]), _mm256_set1_ps(kByteScale));
        const __m256i difference = _mm256_sub_epi32(_mm256_set1_epi32(1 << (BITS - 1)), zero[l]);
        const __m256 offset = _mm256_mul_ps(_mm256_cvtepi32_ps(difference), _mm256_set1_ps(1.0f / kByteScale));
#pragma GCC unroll 4
        for (int p = 0; p < PLANES; ++p) {
          const __m256i bytes = plane<BITS>(codes[l], p);
#pragma GCC unroll 4
          for (int j = 0; j < 4; ++j) out[2 * (j * PLANES + p)] = _mm256_mul_ps(_mm256_add_ps(byte_as_float(bytes, j), offset), s);
        }
      }
    }
  }
}

// MR rows of x from row i on by `dwords` dwords of codes of a panel; x is at the panel's first chunk.
template <int BITS, int MR>
static void many_rows_tile(const Panel* panel, const float* x, int64_t ldx, int64_t i, int dwords, const Store& out) {
  __m256 sum[MR][2];
  for (int m = 0; m < MR; ++m) {
    sum[m][0] = sum[m][1] = _mm256_setzero_ps();
    prefetch_y(out, i + m);
  }
  const __m256* weights = panel->weights[0];
  x += i * ldx;
  for (int l = 0; l < dwords; ++l) {
    const float* at = x + l / 8 * kChunkFloats<BITS> + l % 8;
#pragma GCC unroll 16
    for (int step = 0; step < kSteps<BITS>; ++step) {
      const __m256 w0 = weights[0], w1 = weights[1];
      weights += 2;
      for (int m = 0; m < MR; ++m) {
        const __m256 value = _mm256_broadcast_ss(at + m * ldx + 8 * step);
        sum[m][0] = _mm256_fmadd_ps(w0, value, sum[m][0]);
        sum[m][1] = _mm256_fmadd_ps(w1, value, sum[m][1]);
      }
    }
  }
  for (int m = 0; m < MR; ++m)
    for (int half = 0; half < 2; ++half) store_sum(out, i + m, half, sum[m][half]);
}

template <int BITS>
static void many_rows_tiles(const Panel* panel, const float* x, int64_t ldx, int64_t m0, int64_t m1, int dwords, const Store& out) {
  // Tiles of at most 6 rows and of nearly equal size.
  const int64_t tiles = (m1 - m0 + 5) / 6;
  int64_t i = m0;
  for (int64_t t = 0; t < tiles; ++t) {
    const int64_t size = (m1 - i + (tiles - t) - 1) / (tiles - t);
    switch (size) {
      case 1: many_rows_tile<BITS, 1>(panel, x, ldx, i, dwords, out); break;
      case 2: many_rows_tile<BITS, 2>(panel, x, ldx, i, dwords, out); break;
      case 3: many_rows_tile<BITS, 3>(panel, x, ldx, i, dwords, out); break;
      case 4: many_rows_tile<BITS, 4>(panel, x, ldx, i, dwords, out); break;
      case 5: many_rows_tile<BITS, 5>(panel, x, ldx, i, dwords, out); break;
      default: many_rows_tile<BITS, 6>(panel, x, ldx, i, dwords, out); break;
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
  if (n0 >= n1) return;
  const float* x = (const float*)prepared;
  const int64_t ldx = row_floats<BITS>(w.k);
  if (m <= kFewRows) {
    x += m0 * ldx;
    y += m0 * ldy;
    if (m1 - m0 == 1) few_rows_any<BITS, 1>(w, x, ldx, n0, n1, bias, y, ldy);
    if (m1 - m0 == 2) few_rows_any<BITS, 2>(w, x, ldx, n0, n1, bias, y, ldy);
    if (m1 - m0 == 3) few_rows_any<BITS, 3>(w, x, ldx, n0, n1, bias, y, ldy);
    return;
  }
  const int shift = block_shift(w);
  Panel* panel = (Panel*)scratch;
  for (int64_t n = n0; n < n1; n += kPanelN) {
    for (int64_t k0 = 0; k0 < w.k; k0 += kPanelK) {
      decode_panel<BITS>(w, n, n1, k0, shift, panel);
      const int dwords = (int)((smaller(kPanelK, w.k - k0) + kSteps<BITS> - 1) / kSteps<BITS>);
      const Store out = {bias ? bias + n : nullptr, y + n, ldy, {first8(n1 - n), first8(n1 - n - 8)}, k0 == 0, k0 + kPanelK >= w.k};
      many_rows_tiles<BITS>(panel, x + k0 / kChunk<BITS> * kChunkFloats<BITS>, ldx, m0, m1, dwords, out);
    }
  }
}

static size_t scratch_bytes(int64_t m, int64_t, int64_t) { return m <= kFewRows ? 0 : sizeof(Panel); }

}  // namespace

const QuantGemm kQuantF32Avx2[3] = {
    {prepared_bytes<2>, prepare<2>, scratch_bytes, multiply<2>},
    {prepared_bytes<4>, prepare<4>, scratch_bytes, multiply<4>},
    {prepared_bytes<8>, prepare<8>, scratch_bytes, multiply<8>},
};

}  // namespace hotset::cpu

// SPDX-License-Identifier: Apache-2.0
// Quantised GEMM with exact float activations for NEON.
//
// A chunk is 16 bytes of a row of W, and dword l of it holds the STEPS = 32 / BITS codes of k = k0 + l * STEPS + i. A plane of bytes
// (code - 2^(BITS-1)) goes through tbl so that one byte of each dword comes to its top; scvtf reads that as a fixed-point number with
// 24 fraction bits, which is the code as a float: two instructions for four codes.
//   few rows:  lanes run along K. Prepared step i of a chunk is x[k0 + l * STEPS + i] in lane l, then one vector has the sums of the
//              lanes over the steps, which a zero point other than 2^(BITS-1) multiplies.
//   many rows: lanes run along N; a panel of 8 rows of W x 256 codes is decoded once (scales applied), then used for all rows of x.
#include "cpu_avx/quant_gemm_neon.h"

namespace hotset::cpu {
namespace {

using namespace neon;

constexpr int kFewRows = 3;  // most rows of x that the lanes-along-K method takes
constexpr int64_t kPanelK = 256;
constexpr int kPanelN = 8;
constexpr int kTileRows = 8;  // 16 sums, and a row of weights, of 32 registers

template <int BITS>
constexpr int kSteps = 32 / BITS;
template <int BITS>
constexpr int kStepShift = BITS == 8   ? 2
                           : BITS == 4 ? 3
                                       : 4;
template <int BITS>
constexpr int64_t kChunk = 128 / BITS;
template <int BITS>
constexpr int64_t kChunkFloats = kChunk<BITS> + 4;

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
  for (int64_t m = m0; m < m1; ++m) {
    float* out = (float*)prepared + m * row_floats<BITS>(k);
    for (int64_t k0 = 0; k0 < k; k0 += kChunk<BITS>, out += kChunkFloats<BITS>) {
      const float* p = x + m * ldx + k0;
      float padded[kChunk<BITS>] = {0};
      if (k - k0 < kChunk<BITS>) {
        memcpy(padded, p, (size_t)(k - k0) * 4);
        p = padded;
      }
      float32x4_t sum = vdupq_n_f32(0.0f);
      for (int i = 0; i < kSteps<BITS>; i += 4) {
        uint32x4_t r[4];
        for (int l = 0; l < 4; ++l) r[l] = vreinterpretq_u32_f32(vld1q_f32(p + l * kSteps<BITS> + i));
        transpose4(r);
        for (int j = 0; j < 4; ++j) {
          const float32x4_t step = vreinterpretq_f32_u32(r[j]);
          vst1q_f32(out + 4 * (i + j), step);
          sum = vaddq_f32(sum, step);
        }
      }
      vst1q_f32(out + kChunk<BITS>, sum);
    }
  }
}

// ---- decoding -----------------------------------------------------------------------------------------------------------------------

// Bytes of (code - 2^(BITS-1)) of plane p: step j * PLANES + p is byte j of a dword.
template <int BITS, int P>
HOTSET_INLINE uint8x16_t plane(uint8x16_t bytes) {
  if (BITS == 8) return veorq_u8(bytes, vdupq_n_u8(0x80));
  uint8x16_t codes = bytes;
  if (P > 0) codes = vshrq_n_u8(bytes, BITS * P > 0 ? (BITS * P < 8 ? BITS * P : 7) : 1);
  if ((P + 1) * BITS < 8) codes = vandq_u8(codes, vdupq_n_u8((1 << BITS) - 1));
  return vsubq_u8(codes, vdupq_n_u8(1 << (BITS - 1)));
}

// Brings byte j of each dword to its top and zeros below: index 255 reads as zero.
struct ToTop {
  uint8x16_t index[4];
};
HOTSET_INLINE ToTop to_top() {
  ToTop t;
  for (int j = 0; j < 4; ++j) {
    const uint32_t dwords[4] = {0x00ffffffu | (uint32_t)j << 24, 0x00ffffffu | (uint32_t)(4 + j) << 24,
                                0x00ffffffu | (uint32_t)(8 + j) << 24, 0x00ffffffu | (uint32_t)(12 + j) << 24};
    t.index[j] = vreinterpretq_u8_u32(vld1q_u32(dwords));
  }
  return t;
}
HOTSET_INLINE float32x4_t byte_as_float(uint8x16_t bytes, const ToTop& t, int j) {
  return vcvtq_n_f32_s32(vreinterpretq_s32_u8(vqtbl1q_u8(bytes, t.index[j])), 24);
}

// f(step, codes of the step as float) for all steps of a chunk.
template <int BITS, int P, class F>
HOTSET_INLINE void each_step_of_plane(uint8x16_t bytes, const ToTop& t, const F& f) {
  const uint8x16_t codes = plane<BITS, P>(bytes);
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) f(j * (8 / BITS) + P, byte_as_float(codes, t, j));
}
template <int BITS, class F>
HOTSET_INLINE void each_step(uint8x16_t bytes, const ToTop& t, const F& f) {
  each_step_of_plane<BITS, 0>(bytes, t, f);
  if (BITS <= 4) each_step_of_plane<BITS, 1>(bytes, t, f);
  if (BITS == 2) each_step_of_plane<BITS, 2>(bytes, t, f);
  if (BITS == 2) each_step_of_plane<BITS, 3>(bytes, t, f);
}

template <int BITS>
HOTSET_INLINE float32x4_t offset_of(int32x4_t zeros) {
  return vcvtq_f32_s32(vsubq_s32(vdupq_n_s32(1 << (BITS - 1)), zeros));
}

// ---- few rows: lanes along K --------------------------------------------------------------------------------------------------------

template <int BITS, int MR, bool ZEROS>
static void few_rows(const QuantMatrix& w, const float* x, int64_t ldx, int64_t n0, int64_t n1, const float* bias, float* y, int64_t ldy) {
  const int shift = block_shift(w);
  const ToTop top = to_top();
  for (int64_t n = n0; n < n1; n += 4) {
    float32x4_t sum[4][MR];
    for (int r = 0; r < 4; ++r)
      for (int m = 0; m < MR; ++m) sum[r][m] = vdupq_n_f32(0.0f);
    const float* chunk = x;
    for (int64_t k0 = 0; k0 < w.k; k0 += kChunk<BITS>, chunk += kChunkFloats<BITS>) {
      const Blocks blocks = blocks_at(k0, w.k, kStepShift<BITS>, shift);
      const int64_t left = ((w.k - k0) * BITS + 7) / 8;
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) {
        const int64_t row = smaller(n + r, n1 - 1);  // rows past the end repeat the last one
        const uint8x16_t bytes = load_codes(w.codes + row * w.row_bytes + k0 * BITS / 8, left);
        const float32x4_t scale = scales_of(w, row, blocks);
        float32x4_t dot[MR];
        for (int m = 0; m < MR; ++m) dot[m] = vdupq_n_f32(0.0f);
        if (ZEROS) {
          const float32x4_t offset = offset_of<BITS>(zeros_of<BITS>(w, row, blocks));
          for (int m = 0; m < MR; ++m) dot[m] = vmulq_f32(offset, vld1q_f32(chunk + m * ldx + kChunk<BITS>));
        }
        each_step<BITS>(bytes, top, [&](int step, float32x4_t value) __attribute__((always_inline)) {
#pragma GCC unroll 4
          for (int m = 0; m < MR; ++m) dot[m] = vfmaq_f32(dot[m], value, vld1q_f32(chunk + m * ldx + 4 * step));
        });
        for (int m = 0; m < MR; ++m) sum[r][m] = vfmaq_f32(sum[r][m], dot[m], scale);
      }
    }
    for (int r = 0; r < 4 && n + r < n1; ++r) {
      float offset = 0;
      if (bias) memcpy(&offset, bias + n + r, 4);
      for (int m = 0; m < MR; ++m) y[m * ldy + n + r] = vaddvq_f32(sum[r][m]) + offset;
    }
  }
}

// ---- many rows: lanes along N -------------------------------------------------------------------------------------------------------

// Scratch of one panel: weights[k - k0][half], 4 rows of W each.
struct Panel {
  float32x4_t weights[kPanelK][2];
};

template <int BITS>
static void decode_panel(const QuantMatrix& w, int64_t n, int64_t n1, int64_t k0, int shift, Panel* panel) {
  const ToTop top = to_top();
  for (int half = 0; half < 2; ++half) {
    for (int64_t k = k0; k < k0 + kPanelK && k < w.k; k += kChunk<BITS>) {
      const Blocks blocks = blocks_at(k, w.k, kStepShift<BITS>, shift);
      const int64_t left = ((w.k - k) * BITS + 7) / 8;
      uint32x4_t codes[4], scale[4], zero[4];
      for (int r = 0; r < 4; ++r) {
        const int64_t row = smaller(n + 4 * half + r, n1 - 1);
        codes[r] = vreinterpretq_u32_u8(load_codes(w.codes + row * w.row_bytes + k * BITS / 8, left));
        scale[r] = vreinterpretq_u32_f32(scales_of(w, row, blocks));
        zero[r] = vreinterpretq_u32_s32(w.zero_points ? zeros_of<BITS>(w, row, blocks) : vdupq_n_s32(1 << (BITS - 1)));
      }
      transpose4(codes);
      transpose4(scale);
      if (w.zero_points) transpose4(zero);
      float32x4_t(*out)[2] = panel->weights + (k - k0);
#pragma GCC unroll 4
      for (int l = 0; l < 4; ++l, out += kSteps<BITS>) {
        const float32x4_t s = vreinterpretq_f32_u32(scale[l]), offset = offset_of<BITS>(vreinterpretq_s32_u32(zero[l]));
        each_step<BITS>(vreinterpretq_u8_u32(codes[l]), top, [&](int step, float32x4_t value) __attribute__((always_inline)) {
          out[step][half] = vmulq_f32(vaddq_f32(value, offset), s);
        });
      }
    }
  }
}

// MR rows of x from row i on by `dwords` dwords of codes of a panel; x is at the panel's first chunk.
template <int BITS, int MR>
static __attribute__((noinline)) void many_rows_tile(const Panel* panel, const float* x, int64_t ldx, int64_t i, int dwords,
                                                     const Store& out) {
  float32x4_t sum[MR][2];
  for (int m = 0; m < MR; ++m) sum[m][0] = sum[m][1] = vdupq_n_f32(0.0f);
  const float32x4_t(*weights)[2] = panel->weights;
  x += i * ldx;
  for (int l = 0; l < dwords; ++l) {
    const float* at = x + l / 4 * kChunkFloats<BITS> + l % 4;
#pragma GCC unroll 4
    for (int step = 0; step < kSteps<BITS>; ++step, ++weights) {
      const float32x4_t w0 = weights[0][0], w1 = weights[0][1];
#pragma GCC unroll 8
      for (int m = 0; m < MR; ++m) {
        const float32x4_t value = vld1q_dup_f32(at + m * ldx + 4 * step);
        sum[m][0] = vfmaq_f32(sum[m][0], w0, value);
        sum[m][1] = vfmaq_f32(sum[m][1], w1, value);
      }
    }
  }
  for (int m = 0; m < MR; ++m) store_sums(out, i + m, sum[m][0], sum[m][1]);
}

template <int BITS>
static void many_rows_tiles(const Panel* panel, const float* x, int64_t ldx, int64_t m0, int64_t m1, int dwords, const Store& out) {
  // Tiles of at most 8 rows and of nearly equal size.
  const int64_t tiles = (m1 - m0 + kTileRows - 1) / kTileRows;
  int64_t i = m0;
  for (int64_t t = 0; t < tiles; ++t) {
    const int64_t size = (m1 - i + (tiles - t) - 1) / (tiles - t);
    switch (size) {
#define HOTSET_TILE(MR)                                      \
  case MR:                                                   \
    many_rows_tile<BITS, MR>(panel, x, ldx, i, dwords, out); \
    break;
      HOTSET_TILE(1) HOTSET_TILE(2) HOTSET_TILE(3) HOTSET_TILE(4) HOTSET_TILE(5) HOTSET_TILE(6) HOTSET_TILE(7) HOTSET_TILE(8)
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
      const Store out = {bias ? bias + n : nullptr, y + n, ldy, (int)smaller(kPanelN, n1 - n), k0 == 0, k0 + kPanelK >= w.k};
      many_rows_tiles<BITS>(panel, x + k0 / kChunk<BITS> * kChunkFloats<BITS>, ldx, m0, m1, dwords, out);
    }
  }
}

static size_t scratch_bytes(int64_t m, int64_t, int64_t) { return m <= kFewRows ? 0 : sizeof(Panel); }

}  // namespace

const QuantGemm kQuantF32Neon[3] = {
    {prepared_bytes<2>, prepare<2>, scratch_bytes, multiply<2>},
    {prepared_bytes<4>, prepare<4>, scratch_bytes, multiply<4>},
    {prepared_bytes<8>, prepare<8>, scratch_bytes, multiply<8>},
};

}  // namespace hotset::cpu

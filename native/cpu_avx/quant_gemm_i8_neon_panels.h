// SPDX-License-Identifier: Apache-2.0
// The many rows of quant_gemm_i8_neon_body.h, with sdot and with smmla. Included after it.

// Scratch of one panel, 256 codes of 8 rows, each code less 2^(BITS-1).
//   sdot:  codes[(chunk * 4 + dword) * PLANES + plane][half] are 4 codes of 4 rows
//   smmla: codes[(chunk * PLANES + plane) * 2 + half][pair] are 8 codes of 2 rows
// Scales and 2^(BITS-1) - zero of each run: of the rows in order (sdot), or s0 s1 s0 s1 of each pair (smmla).
struct Panel {
  int8x16_t codes[kPanelK / 4 * 2];
  float scale[16][16];
  int32_t offset[16][16];
};

template <int BITS, int P>
HOTSET_INLINE int8x16_t centred(uint8x16_t bytes) {
  const int8x16_t codes = plane<BITS, P>(bytes);
  return BITS == 8 ? codes : vsubq_s8(codes, vdupq_n_s8(1 << (BITS - 1)));
}

template <int BITS, int P, bool MATRIX>
HOTSET_INLINE void unpack_plane(const uint8x16_t bytes[8], int chunk, Panel* panel) {
  constexpr int PLANES = 8 / BITS;
  int8x16_t v[8];
#pragma GCC unroll 8
  for (int r = 0; r < 8; ++r) v[r] = centred<BITS, P>(bytes[r]);
  if (MATRIX) {
    int8x16_t* out = panel->codes + (chunk * PLANES + P) * 8;
#pragma GCC unroll 4
    for (int pair = 0; pair < 4; ++pair) {
      const int64x2_t a = vreinterpretq_s64_s8(v[2 * pair]), b = vreinterpretq_s64_s8(v[2 * pair + 1]);
      out[pair] = vreinterpretq_s8_s64(vzip1q_s64(a, b));
      out[4 + pair] = vreinterpretq_s8_s64(vzip2q_s64(a, b));
    }
    return;
  }
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    uint32x4_t t[4];
    for (int r = 0; r < 4; ++r) t[r] = vreinterpretq_u32_s8(v[4 * half + r]);
    transpose4(t);
    for (int dword = 0; dword < 4; ++dword) panel->codes[((chunk * 4 + dword) * PLANES + P) * 2 + half] = vreinterpretq_s8_u32(t[dword]);
  }
}

template <int BITS, int RUN, bool MATRIX>
static void unpack_panel(const QuantMatrix& w, int64_t n, int64_t n1, int64_t k0, int shift, Panel* panel) {
  for (int64_t run = 0; run < kPanelK / RUN && k0 + run * RUN < w.k; run += 4) {
    const Blocks blocks = blocks_at(k0 + run * RUN, w.k, kRunShift<RUN>, shift);
    for (int r = 0; r < 8; ++r) {
      const int64_t row = smaller(n + r, n1 - 1);
      float scale[4];
      int32_t zero[4] = {0, 0, 0, 0};
      vst1q_f32(scale, scales_of(w, row, blocks));
      if (w.zero_points) vst1q_s32(zero, zeros_of<BITS>(w, row, blocks));
      const int at = MATRIX ? r / 2 * 4 + r % 2 : r;
      for (int g = 0; g < 4; ++g) {
        panel->scale[run + g][at] = scale[g];
        panel->offset[run + g][at] = (1 << (BITS - 1)) - zero[g];
        if (!MATRIX) continue;
        panel->scale[run + g][at + 2] = scale[g];
        panel->offset[run + g][at + 2] = (1 << (BITS - 1)) - zero[g];
      }
    }
  }
  for (int64_t k = k0; k < k0 + kPanelK && k < w.k; k += 128 / BITS) {
    const int64_t left = ((w.k - k) * BITS + 7) / 8;
    const int chunk = (int)((k - k0) / (128 / BITS));
    uint8x16_t bytes[8];
    for (int r = 0; r < 8; ++r) bytes[r] = load_codes(w.codes + smaller(n + r, n1 - 1) * w.row_bytes + k * BITS / 8, left);
    unpack_plane<BITS, 0, MATRIX>(bytes, chunk, panel);
    if (BITS <= 4) unpack_plane<BITS, 1, MATRIX>(bytes, chunk, panel);
    if (BITS == 2) unpack_plane<BITS, 2, MATRIX>(bytes, chunk, panel);
    if (BITS == 2) unpack_plane<BITS, 3, MATRIX>(bytes, chunk, panel);
  }
}

// Four rows of x; those past the end repeat the last one.
template <int RUN>
struct FourRows {
  const int8_t* q[4];
  const float* d[4];
  const int32_t* sums[4];

  HOTSET_INLINE FourRows make(const Row<RUN>& rows, int64_t i, int64_t m1, int64_t k0) {
    FourRows f;
    for (int m = 0; m < 4; ++m) {
      const int64_t row = smaller(i + m, m1 - 1);
      f.q[m] = rows.q(row) + k0;
      f.d[m] = rows.d(row) + k0 / RUN;
      f.sums[m] = rows.sums(row) + k0 / RUN;
    }
    return f;
  }
};

// 4 codes at q + 16 * plane + 4 * dword of each row by 4 codes of 8 rows.
template <int DWORD>
HOTSET_INLINE void dot_dword(const int8x16_t* codes, const int8x16_t x[4], int32x4_t dot[4][2]) {
#pragma GCC unroll 4
  for (int m = 0; m < 4; ++m) {
    dot[m][0] = vdotq_laneq_s32(dot[m][0], codes[0], x[m], DWORD);
    dot[m][1] = vdotq_laneq_s32(dot[m][1], codes[1], x[m], DWORD);
  }
}

template <int BITS, int RUN, bool ZEROS>
static __attribute__((noinline)) void sdot_tile(const Panel* panel, const FourRows<RUN>& x, int64_t i, int64_t count, int runs,
                                                const Store& out) {
  constexpr int PLANES = 8 / BITS, kDwords = RUN * BITS / 32;  // of a run; a chunk has 4
  float32x4_t sum[4][2];
  for (int m = 0; m < 4; ++m) sum[m][0] = sum[m][1] = vdupq_n_f32(0.0f);
  for (int g = 0; g < runs; ++g) {
    int32x4_t dot[4][2];
    for (int m = 0; m < 4; ++m) dot[m][0] = dot[m][1] = vdupq_n_s32(0);
#pragma GCC unroll 2
    for (int part = 0; part < (kDwords > 4 ? 2 : 1); ++part) {
      const int dword = g * kDwords + 4 * part, first = dword % 4;  // first: 0 unless a chunk has several runs
      const int8x16_t* codes = panel->codes + dword * PLANES * 2;
#pragma GCC unroll 4
      for (int p = 0; p < PLANES; ++p) {
        int8x16_t v[4];
        for (int m = 0; m < 4; ++m) {
          const int8_t* q = x.q[m] + dword / 4 * (128 / BITS) + 16 * p + 4 * first;
          if (kDwords >= 4) {
            v[m] = vld1q_s8(q);
          } else if (kDwords == 2) {
            v[m] = vcombine_s8(vld1_s8(q), vdup_n_s8(0));
          } else {
            int32_t four;
            memcpy(&four, q, 4);
            v[m] = vreinterpretq_s8_s32(vdupq_n_s32(four));
          }
        }
        dot_dword<0>(codes + p * 2, v, dot);
        if (kDwords >= 2) dot_dword<1>(codes + (PLANES + p) * 2, v, dot);
        if (kDwords >= 4) dot_dword<2>(codes + (2 * PLANES + p) * 2, v, dot);
        if (kDwords >= 4) dot_dword<3>(codes + (3 * PLANES + p) * 2, v, dot);
      }
    }
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const float32x4_t scale = vld1q_f32(panel->scale[g] + 4 * half);
      const int32x4_t offset = vld1q_s32(panel->offset[g] + 4 * half);
#pragma GCC unroll 4
      for (int m = 0; m < 4; ++m) {
        if (ZEROS) dot[m][half] = vmlaq_n_s32(dot[m][half], offset, x.sums[m][g]);
        sum[m][half] = vfmaq_f32(sum[m][half], vmulq_n_f32(vcvtq_f32_s32(dot[m][half]), x.d[m][g]), scale);
      }
    }
  }
  for (int m = 0; m < count; ++m) store_sums(out, i + m, sum[m][0], sum[m][1]);
}

#if defined(__ARM_FEATURE_MATMUL_INT8)
// Each run is whole vectors of 8 codes: 2-bit codes in blocks of 16 are not.
template <int BITS, int RUN, bool ZEROS>
static __attribute__((noinline)) void smmla_tile(const Panel* panel, const FourRows<RUN>& x, int64_t i, int64_t count, int runs,
                                                 const Store& out) {
  constexpr int PLANES = 8 / BITS, kHalves = RUN * BITS / 64;  // 8 bytes of W, of a run
  float32x4_t sum[2][4];
  for (int m = 0; m < 2; ++m)
    for (int pair = 0; pair < 4; ++pair) sum[m][pair] = vdupq_n_f32(0.0f);
  for (int g = 0; g < runs; ++g) {
    int32x4_t dot[2][4];
    for (int m = 0; m < 2; ++m)
      for (int pair = 0; pair < 4; ++pair) dot[m][pair] = vdupq_n_s32(0);
#pragma GCC unroll 4
    for (int h = 0; h < kHalves; ++h) {
      const int at = g * kHalves + h;  // half at % 2 of chunk at / 2
#pragma GCC unroll 4
      for (int p = 0; p < PLANES; ++p) {
        const int8x16_t* codes = panel->codes + ((at / 2 * PLANES + p) * 2 + at % 2) * 4;
        const int64_t to_q = at / 2 * (128 / BITS) + 16 * p + at % 2 * 8;
        const int8x16_t a0 = vcombine_s8(vld1_s8(x.q[0] + to_q), vld1_s8(x.q[1] + to_q));
        const int8x16_t a1 = vcombine_s8(vld1_s8(x.q[2] + to_q), vld1_s8(x.q[3] + to_q));
#pragma GCC unroll 4
        for (int pair = 0; pair < 4; ++pair) {
          dot[0][pair] = vmmlaq_s32(dot[0][pair], a0, codes[pair]);
          dot[1][pair] = vmmlaq_s32(dot[1][pair], a1, codes[pair]);
        }
      }
    }
#pragma GCC unroll 2
    for (int m = 0; m < 2; ++m) {
      const float32x4_t d = vcombine_f32(vld1_dup_f32(x.d[2 * m] + g), vld1_dup_f32(x.d[2 * m + 1] + g));
      const int32x4_t sums = vcombine_s32(vld1_dup_s32(x.sums[2 * m] + g), vld1_dup_s32(x.sums[2 * m + 1] + g));
#pragma GCC unroll 4
      for (int pair = 0; pair < 4; ++pair) {
        if (ZEROS) dot[m][pair] = vmlaq_s32(dot[m][pair], vld1q_s32(panel->offset[g] + 4 * pair), sums);
        sum[m][pair] = vfmaq_f32(sum[m][pair], vmulq_f32(vcvtq_f32_s32(dot[m][pair]), d), vld1q_f32(panel->scale[g] + 4 * pair));
      }
    }
  }
  for (int m = 0; m < count; ++m) {
    const float32x4_t* s = sum[m / 2];
    if (m % 2 == 0)
      store_sums(out, i + m, vcombine_f32(vget_low_f32(s[0]), vget_low_f32(s[1])), vcombine_f32(vget_low_f32(s[2]), vget_low_f32(s[3])));
    else
      store_sums(out, i + m, vcombine_f32(vget_high_f32(s[0]), vget_high_f32(s[1])),
                 vcombine_f32(vget_high_f32(s[2]), vget_high_f32(s[3])));
  }
}
template <int BITS, int RUN>
constexpr bool kMatrix = BITS != 2 || RUN != 16;
#else
template <int BITS, int RUN>
constexpr bool kMatrix = false;
#endif

template <int BITS, int RUN, bool ZEROS>
static void many_rows(const Panel* panel, const Row<RUN>& rows, int64_t m0, int64_t m1, int64_t k0, int runs, const Store& out) {
  for (int64_t i = m0; i < m1; i += 4) {
    const FourRows<RUN> x = FourRows<RUN>::make(rows, i, m1, k0);
    const int64_t count = smaller(4, m1 - i);
#if defined(__ARM_FEATURE_MATMUL_INT8)
    if constexpr (kMatrix<BITS, RUN>) {
      smmla_tile<BITS, RUN, ZEROS>(panel, x, i, count, runs, out);
      continue;
    }
#endif
    sdot_tile<BITS, RUN, ZEROS>(panel, x, i, count, runs, out);
  }
}

template <int BITS, int RUN>
static void panels(const QuantMatrix& w, const Row<RUN>& rows, int64_t m0, int64_t m1, int64_t n0, int64_t n1, const float* bias, float* y,
                   int64_t ldy, Panel* panel) {
  const int shift = block_shift(w);
  for (int64_t n = n0; n < n1; n += kPanelN) {
    for (int64_t k0 = 0; k0 < w.k; k0 += kPanelK) {
      unpack_panel<BITS, RUN, kMatrix<BITS, RUN>>(w, n, n1, k0, shift, panel);
      const int runs = (int)((smaller(kPanelK, w.k - k0) + RUN - 1) / RUN);
      const Store out = {bias ? bias + n : nullptr, y + n, ldy, (int)smaller(8, n1 - n), k0 == 0, k0 + kPanelK >= w.k};
      if (w.zero_points)
        many_rows<BITS, RUN, true>(panel, rows, m0, m1, k0, runs, out);
      else
        many_rows<BITS, RUN, false>(panel, rows, m0, m1, k0, runs, out);
    }
  }
}

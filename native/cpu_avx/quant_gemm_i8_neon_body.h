// SPDX-License-Identifier: Apache-2.0
// Quantised GEMM with int8 activations on NEON; included inside the unnamed namespace of quant_gemm_i8_neon.cpp, _neondot.cpp and
// _neoni8mm.cpp, which differ in the instructions that the compiler may use.
//
//   base   smull and smlal make 16-bit products (at most 4 * 3 * 127, 2 * 15 * 127 or 128 * 127 in a lane), saddlp adds pairs of them
//   sdot   each 32-bit lane adds four products of signed bytes
//   smmla  C[2][2] += A[2][8] * B[2][8], signed bytes
//
// Codes of 8 bits are taken less 128 to be signed bytes. A chunk is 16 bytes of a row of W: plane p of it, (bytes >> BITS * p) & mask,
// holds the codes of k = k0 + i * PLANES + p. Prepared activations have that order, so a code is never moved between lanes.
// A run is 32 codes, a group of activations, or 16 for blocks of 16: every sum of integers is over one run.
//   few rows:  four runs are a step; the sums of a chunk's lanes are joined to one lane a run before they are scaled.
//   many rows: (sdot, smmla) lanes run along N; a panel of 8 rows of W x 256 codes is unpacked once, then used for all rows of x.

using namespace neon;

constexpr int kFewRows = 4;        // rows of x that one pass over W takes
constexpr int64_t kFewRowsN = 32;  // rows of W that stay in the cache for the next rows of x
constexpr int64_t kPanelK = 256;
constexpr int kPanelN = 8;
template <int RUN>
constexpr int kRunShift = RUN == 16 ? 4 : 5;
template <int BITS>
constexpr int kCentre = BITS == 8 ? 128 : 0;  // what few rows take off a code

// ---- prepared rows ------------------------------------------------------------------------------------------------------------------

// One row: codes q of the padded k, then for each run d of its group and the sum of q (int32).
template <int RUN>
struct Row {
  int64_t code_bytes, runs;
  const char* base;

  static inline __attribute__((always_inline)) Row make(const void* prepared, int64_t k) {
    Row r;
    r.code_bytes = round_up(k, 128);
    r.runs = r.code_bytes / RUN;
    r.base = (const char*)prepared;
    return r;
  }
  inline __attribute__((always_inline)) int64_t stride() const { return odd_lines(code_bytes + 8 * runs); }
  inline __attribute__((always_inline)) const int8_t* q(int64_t i) const { return (const int8_t*)(base + i * stride()); }
  inline __attribute__((always_inline)) const float* d(int64_t i) const { return (const float*)(base + i * stride() + code_bytes); }
  inline __attribute__((always_inline)) const int32_t* sums(int64_t i) const { return (const int32_t*)(d(i) + runs); }
};

template <int BITS, int RUN>
static size_t prepared_bytes(int64_t m, int64_t k) {
  return (size_t)(m * Row<RUN>::make(nullptr, k).stride());
}

// 32 codes of the group at p, of which `left` exist, in order; the largest magnitude.
HOTSET_INLINE float quantise_group(const float* p, int64_t left, int8_t* codes, int32x4_t r[8]) {
  float padded[32] = {0};
  if (left < 32) {
    if (left > 0) memcpy(padded, p, (size_t)left * 4);
    p = padded;
  }
  float32x4_t v[8];
  uint32x4_t bits = vdupq_n_u32(0);
  for (int j = 0; j < 8; ++j) {
    v[j] = vld1q_f32(p + 4 * j);
    // Bits of |x| order like the numbers, and NaN comes last.
    bits = vmaxq_u32(bits, vreinterpretq_u32_f32(vabsq_f32(v[j])));
  }
  const uint32_t largest_bits = vmaxvq_u32(bits);
  float largest;
  memcpy(&largest, &largest_bits, 4);
  const float scale = largest < 0x1p-100f ? 0.0f : 127.0f / largest;
  for (int j = 0; j < 8; ++j) r[j] = vcvtnq_s32_f32(vmulq_n_f32(v[j], scale));
  for (int j = 0; j < 8; j += 4)
    vst1q_s8(codes + 4 * j, vcombine_s8(vqmovn_s16(vcombine_s16(vqmovn_s32(r[j]), vqmovn_s32(r[j + 1]))),
                                        vqmovn_s16(vcombine_s16(vqmovn_s32(r[j + 2]), vqmovn_s32(r[j + 3])))));
  return largest;
}

template <int BITS, int RUN>
static void prepare(const float* x, int64_t ldx, int64_t, int64_t k, int64_t m0, int64_t m1, void* prepared) {
  const Row<RUN> rows = Row<RUN>::make(prepared, k);
  for (int64_t i = m0; i < m1; ++i) {
    int8_t* q = (int8_t*)rows.q(i);
    float* d = (float*)rows.d(i);
    int32_t* sums = (int32_t*)rows.sums(i);
    for (int64_t k0 = 0; k0 < rows.code_bytes; k0 += 128, q += 128) {
      int8_t codes[128];
      for (int g = 0; g < 4; ++g) {
        int32x4_t r[8];
        const float largest = quantise_group(x + i * ldx + k0 + 32 * g, k - k0 - 32 * g, codes + 32 * g, r);
        const int32_t low = vaddvq_s32(vaddq_s32(vaddq_s32(r[0], r[1]), vaddq_s32(r[2], r[3])));
        const int32_t high = vaddvq_s32(vaddq_s32(vaddq_s32(r[4], r[5]), vaddq_s32(r[6], r[7])));
        *d++ = largest / 127.0f;
        *sums++ = RUN == 32 ? low + high : low;
        if (RUN == 16) {
          *d++ = largest / 127.0f;
          *sums++ = high;
        }
      }
      if (BITS == 8) {
        memcpy(q, codes, 128);
      } else if (BITS == 4) {
        for (int c = 0; c < 128; c += 32) {
          const int8x16x2_t planes = vld2q_s8(codes + c);
          vst1q_s8(q + c, planes.val[0]);
          vst1q_s8(q + c + 16, planes.val[1]);
        }
      } else {
        for (int c = 0; c < 128; c += 64) {
          const int8x16x4_t planes = vld4q_s8(codes + c);
          for (int p = 0; p < 4; ++p) vst1q_s8(q + c + 16 * p, planes.val[p]);
        }
      }
    }
  }
}

// ---- few rows -----------------------------------------------------------------------------------------------------------------------

template <int BITS, int P>
HOTSET_INLINE int8x16_t plane(uint8x16_t bytes) {
  if (BITS == 8) return vreinterpretq_s8_u8(veorq_u8(bytes, vdupq_n_u8(0x80)));
  uint8x16_t codes = bytes;
  if (P > 0) codes = vshrq_n_u8(bytes, BITS * P > 0 ? (BITS * P < 8 ? BITS * P : 7) : 1);
  if ((P + 1) * BITS < 8) codes = vandq_u8(codes, vdupq_n_u8((1 << BITS) - 1));
  return vreinterpretq_s8_u8(codes);
}

// The planes of a chunk.
template <int BITS>
HOTSET_INLINE void planes(uint8x16_t bytes, int8x16_t out[8 / BITS]) {
  out[0] = plane<BITS, 0>(bytes);
  if constexpr (BITS <= 4) out[1] = plane<BITS, 1>(bytes);
  if constexpr (BITS == 2) out[2] = plane<BITS, 2>(bytes), out[3] = plane<BITS, 3>(bytes);
}

// Sums of the products of N planes that share their lanes, by dword.
template <int N>
HOTSET_INLINE int32x4_t dot_planes(const int8x16_t codes[N], const int8_t* q) {
#if defined(__ARM_FEATURE_DOTPROD)
  int32x4_t sum = vdotq_s32(vdupq_n_s32(0), codes[0], vld1q_s8(q));
#pragma GCC unroll 4
  for (int p = 1; p < N; ++p) sum = vdotq_s32(sum, codes[p], vld1q_s8(q + 16 * p));
  return sum;
#else
  int8x16_t x = vld1q_s8(q);
  int16x8_t low = vmull_s8(vget_low_s8(codes[0]), vget_low_s8(x)), high = vmull_high_s8(codes[0], x);
#pragma GCC unroll 4
  for (int p = 1; p < N; ++p) {
    x = vld1q_s8(q + 16 * p);
    low = vmlal_s8(low, vget_low_s8(codes[p]), vget_low_s8(x));
    high = vmlal_high_s8(high, codes[p], x);
  }
  return vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high));
#endif
}

// The sums of four runs: of one row of W from `codes` on, `left` bytes, by MR rows of x from q on.
template <int BITS, int RUN, int MR, bool PARTIAL>
HOTSET_INLINE void dot_step(const uint8_t* codes, int64_t left, const int8_t* q, int64_t stride, int32x4_t dot[MR]) {
  constexpr int PLANES = 8 / BITS, kChunks = RUN * BITS / 32;  // of the step, and dwords of a run
  int8x16_t all[kChunks * PLANES];
#pragma GCC unroll 8
  for (int c = 0; c < kChunks; ++c)
    planes<BITS>(PARTIAL ? load_codes(codes + 16 * c, left - 16 * c) : vld1q_u8(codes + 16 * c), all + c * PLANES);
#pragma GCC unroll 4
  for (int m = 0; m < MR; ++m, q += stride) {
    int32x4_t part[kChunks];
#pragma GCC unroll 8
    for (int c = 0; c < kChunks; ++c) part[c] = dot_planes<PLANES>(all + c * PLANES, q + c * (128 / BITS));
    // Neighbours are joined until each lane is a run.
#pragma GCC unroll 3
    for (int n = kChunks / 2; n > 0; n /= 2)
#pragma GCC unroll 4
      for (int c = 0; c < n; ++c) part[c] = vpaddq_s32(part[2 * c], part[2 * c + 1]);
    dot[m] = part[0];
  }
}

template <int BITS, int RUN, int MR, bool ZEROS>
static void few_rows(const QuantMatrix& w, const Row<RUN>& rows, int64_t i, int64_t n0, int64_t n1, const float* bias, float* y,
                     int64_t ldy) {
  constexpr int NR = MR > 2 ? 2 : 4;
  const int shift = block_shift(w);
  const int64_t stride = rows.stride();
  for (int64_t n = n0; n < n1; n += NR) {
    float32x4_t sum[NR][MR];
    for (int r = 0; r < NR; ++r)
      for (int m = 0; m < MR; ++m) sum[r][m] = vdupq_n_f32(0.0f);
    for (int64_t k0 = 0; k0 < w.k; k0 += 4 * RUN) {
      const Blocks blocks = blocks_at(k0, w.k, kRunShift<RUN>, shift);
      const int64_t left = ((w.k - k0) * BITS + 7) / 8;
#pragma GCC unroll 4
      for (int r = 0; r < NR; ++r) {
        const int64_t row = smaller(n + r, n1 - 1);  // rows past the end repeat the last one
        const float32x4_t scale = scales_of(w, row, blocks);
        int32x4_t zero = vdupq_n_s32((1 << (BITS - 1)) - kCentre<BITS>);
        if (ZEROS) zero = vsubq_s32(zeros_of<BITS>(w, row, blocks), vdupq_n_s32(kCentre<BITS>));
        int32x4_t dot[MR];
        const uint8_t* codes = w.codes + row * w.row_bytes + k0 * BITS / 8;
        if (left >= RUN * BITS / 2)
          dot_step<BITS, RUN, MR, false>(codes, left, rows.q(i) + k0, stride, dot);
        else
          dot_step<BITS, RUN, MR, true>(codes, left, rows.q(i) + k0, stride, dot);
#pragma GCC unroll 4
        for (int m = 0; m < MR; ++m) {
          if (ZEROS || BITS != 8) dot[m] = vmlsq_s32(dot[m], zero, vld1q_s32(rows.sums(i + m) + k0 / RUN));
          const float32x4_t d = vld1q_f32(rows.d(i + m) + k0 / RUN);
          sum[r][m] = vfmaq_f32(sum[r][m], vmulq_f32(vcvtq_f32_s32(dot[m]), d), scale);
        }
      }
    }
    for (int r = 0; r < NR && n + r < n1; ++r) {
      float offset = 0;
      if (bias) memcpy(&offset, bias + n + r, 4);
      for (int m = 0; m < MR; ++m) y[(i + m) * ldy + n + r] = vaddvq_f32(sum[r][m]) + offset;
    }
  }
}

template <int BITS, int RUN, int MR>
static void few_rows_any(const QuantMatrix& w, const Row<RUN>& rows, int64_t i, int64_t n0, int64_t n1, const float* bias, float* y,
                         int64_t ldy) {
  if (w.zero_points)
    few_rows<BITS, RUN, MR, true>(w, rows, i, n0, n1, bias, y, ldy);
  else
    few_rows<BITS, RUN, MR, false>(w, rows, i, n0, n1, bias, y, ldy);
}

template <int BITS, int RUN>
static void passes_over_w(const QuantMatrix& w, const Row<RUN>& rows, int64_t m0, int64_t m1, int64_t n0, int64_t n1, const float* bias,
                          float* y, int64_t ldy) {
  for (int64_t n = n0; n < n1; n += kFewRowsN) {
    const int64_t end = smaller(n1, n + kFewRowsN);
    for (int64_t i = m0; i < m1;) {
      const int64_t tile = smaller(m1 - i, kFewRows);
      if (tile == 1) few_rows_any<BITS, RUN, 1>(w, rows, i, n, end, bias, y, ldy);
      if (tile == 2) few_rows_any<BITS, RUN, 2>(w, rows, i, n, end, bias, y, ldy);
      if (tile == 3) few_rows_any<BITS, RUN, 3>(w, rows, i, n, end, bias, y, ldy);
      if (tile == 4) few_rows_any<BITS, RUN, 4>(w, rows, i, n, end, bias, y, ldy);
      i += tile;
    }
  }
}

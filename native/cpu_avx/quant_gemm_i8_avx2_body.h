// SPDX-License-Identifier: Apache-2.0
// Quantised GEMM with int8 activations on 32-byte vectors; included inside the unnamed namespace of quant_gemm_i8_avx2.cpp and
// quant_gemm_i8_avx2vnni.cpp, after kMr, the rows of the register tile of many rows.
//
// As the AVX-512 VNNI version with half the lanes: a chunk is 32 bytes of a row of W, plane p of it holds k = k0 + i * PLANES + p.
// A run is 32 codes, a group of activations, or 16 for blocks of 16: the codes of a run share one weight scale, so that every sum of
// integers is over one run.

using namespace avx2;

template <int RUN>
constexpr int kRunShift = RUN == 16 ? 4 : 5;

constexpr int kFewRows = 3;  // most rows of x that the lanes-along-K method takes
constexpr int64_t kPanelK = 256;
constexpr int kPanelN = 16;

// ---- prepared rows ------------------------------------------------------------------------------------------------------------------

// One row: codes q of the padded k, then for each run d of its group, sum of q, and -2^(BITS-1) * sum of q.
template <int BITS, int RUN>
struct Row {
  int64_t code_bytes, runs;  // runs is padded to 16
  const char* base;

  static inline __attribute__((always_inline)) Row make(const void* prepared, int64_t k) {
    Row r;
    r.code_bytes = round_up(k, BITS == 2 ? 128 : 64);
    r.runs = round_up((k + RUN - 1) / RUN, 16);
    r.base = (const char*)prepared;
    return r;
  }
  inline __attribute__((always_inline)) int64_t stride() const { return odd_lines(code_bytes + 12 * runs); }
  inline __attribute__((always_inline)) const int8_t* q(int64_t i) const { return (const int8_t*)(base + i * stride()); }
  inline __attribute__((always_inline)) const float* d(int64_t i) const { return (const float*)(base + i * stride() + code_bytes); }
};

template <int BITS, int RUN>
static size_t prepared_bytes(int64_t m, int64_t k) {
  return (size_t)(m * Row<BITS, RUN>::make(nullptr, k).stride());
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

template <int BITS, int RUN>
static void prepare(const float* x, int64_t ldx, int64_t, int64_t k, int64_t m0, int64_t m1, void* prepared) {
  const Row<BITS, RUN> rows = Row<BITS, RUN>::make(prepared, k);
  constexpr int kRuns = 32 / RUN;  // of a group
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
    float* sums = d + rows.runs;
    int32_t* shifts = (int32_t*)(sums + rows.runs);
    for (int64_t r = groups * kRuns; r < rows.runs; ++r) {
      d[r] = 0;
      sums[r] = 0;
      shifts[r] = 0;
    }
    for (int64_t g = 0; g < smaller(groups, rows.runs / kRuns); ++g) {
      const float* p = x + i * ldx + g * 32;
      const int64_t left = k - g * 32;
      __m256 v[4];
      __m256i bits = _mm256_setzero_si256();
      for (int j = 0; j < 4; ++j) {
        v[j] = left >= 8 * j + 8 ? _mm256_loadu_ps(p + 8 * j)
               : left > 8 * j    ? _mm256_maskload_ps(p + 8 * j, first8(left - 8 * j))
                                 : _mm256_setzero_ps();
        // Bits of |x| order like the numbers, and NaN comes last.
        bits = _mm256_max_epi32(bits, _mm256_and_si256(_mm256_castps_si256(v[j]), magnitude));
      }
      const int32_t largest_bits = largest_lane(bits);
      float largest;
      memcpy(&largest, &largest_bits, 4);
      const __m256 scale = _mm256_set1_ps(largest < 0x1p-100f ? 0.0f : 127.0f / largest);
      __m256i r[4];
      for (int j = 0; j < 4; ++j) r[j] = _mm256_cvtps_epi32(_mm256_mul_ps(v[j], scale));
      const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(r[0], r[1]), _mm256_packs_epi32(r[2], r[3]));
      const __m256i codes = _mm256_permutevar8x32_epi32(packed, in_order);
      const __m256i low = _mm256_add_epi32(r[0], r[1]), high = _mm256_add_epi32(r[2], r[3]);
      for (int j = 0; j < kRuns; ++j) {
        const int32_t sum = sum_lanes(kRuns == 1 ? _mm256_add_epi32(low, high) : j == 0 ? low : high);
        d[g * kRuns + j] = largest / 127.0f;
        sums[g * kRuns + j] = (float)sum;
        shifts[g * kRuns + j] = (int32_t)(-(1 << (BITS - 1)) * (int64_t)sum);
      }
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
#if defined(__AVXVNNI__)
  if (BITS == 8) return _mm256_dpbusd_avx_epi32(_mm256_setzero_si256(), bytes, load_q(q));
  __m256i sum = _mm256_dpbusd_avx_epi32(_mm256_setzero_si256(), low_codes<BITS>(bytes, 0), load_q(q));
  sum = _mm256_dpbusd_avx_epi32(sum, low_codes<BITS>(bytes, BITS), load_q(q + 32));
  if (BITS == 2) {
    sum = _mm256_dpbusd_avx_epi32(sum, low_codes<BITS>(bytes, 2 * BITS), load_q(q + 64));
    sum = _mm256_dpbusd_avx_epi32(sum, low_codes<BITS>(bytes, 3 * BITS), load_q(q + 96));
  }
  return sum;
#else
  const __m256i one = _mm256_set1_epi16(1);
  if (BITS == 8) {
    const __m256i low = _mm256_maddubs_epi16(low_codes<8>(bytes, 0), load_q(q)),
                  high = _mm256_maddubs_epi16(low_codes<8>(bytes, 4), load_q(q));
    return _mm256_add_epi32(_mm256_madd_epi16(low, one), _mm256_madd_epi16(high, _mm256_set1_epi16(16)));
  }
  __m256i pairs = _mm256_add_epi16(_mm256_maddubs_epi16(low_codes<BITS>(bytes, 0), load_q(q)),
                                   _mm256_maddubs_epi16(low_codes<BITS>(bytes, BITS), load_q(q + 32)));
  if (BITS == 2) {
    pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(low_codes<BITS>(bytes, 2 * BITS), load_q(q + 64)));
    pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(low_codes<BITS>(bytes, 3 * BITS), load_q(q + 96)));
  }
  return _mm256_madd_epi16(pairs, one);
#endif
}

template <int BITS, int RUN, int MR, bool ZEROS>
static void few_rows(const QuantMatrix& w, const Row<BITS, RUN>& rows, int64_t i, int64_t n0, int64_t n1, const float* bias, float* y,
                     int64_t ldy) {
  const int shift = block_shift(w);
  constexpr int64_t kStep = 8 * RUN;  // codes whose runs fill one vector of scales
  const __m256i lane_run = _mm256_srli_epi32(lanes(), (BITS == 8 ? 3 : BITS == 4 ? 2 : 1) - (RUN == 16));
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
    for (int64_t k0 = 0; k0 < w.k; k0 += kStep) {
      const Blocks blocks = blocks_at(k0, w.k, kRunShift<RUN>, shift);
      __m256 scale[4][MR];
      for (int r = 0; r < 4; ++r) {
        const __m256 s = scales_of(w, row[r], blocks);
        __m256 zero;
        if (ZEROS) zero = _mm256_cvtepi32_ps(zeros_of<BITS>(w, row[r], blocks));
        for (int m = 0; m < MR; ++m) {
          const float* d = rows.d(i + m) + k0 / RUN;
          scale[r][m] = _mm256_mul_ps(s, _mm256_load_ps(d));
          const __m256 q_sum = _mm256_load_ps(d + rows.runs);
          shifted[r][m] = _mm256_fmadd_ps(scale[r][m], ZEROS ? _mm256_mul_ps(zero, q_sum) : q_sum, shifted[r][m]);
        }
      }
      __m256i index = lane_run;
      for (int64_t k = k0; k < k0 + kStep && k < w.k; k += 256 / BITS) {
        const int64_t bytes_left = ((w.k - k) * BITS + 7) / 8;
        for (int r = 0; r < 4; ++r) {
          const __m256i bytes = load_codes(codes[r] + k * BITS / 8, bytes_left);
          _mm_prefetch((const char*)codes[r] + k * BITS / 8 + ahead, _MM_HINT_T0);
          for (int m = 0; m < MR; ++m) {
            const __m256 dot = _mm256_cvtepi32_ps(dot_chunk<BITS>(bytes, rows.q(i + m) + k));
            sum[r][m] = _mm256_fmadd_ps(dot, _mm256_permutevar8x32_ps(scale[r][m], index), sum[r][m]);
          }
        }
        index = _mm256_add_epi32(index, _mm256_set1_epi32(256 / BITS / RUN));
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

#if defined(__AVXVNNI__)
template <int BITS>
constexpr int kParts = 1;
#else
template <int BITS>
constexpr int kParts = BITS == 8 ? 2 : 1;  // half codes: bytes below 16
#endif

// Scratch of one panel, 256 codes of 16 rows. Each vector holds codes (or half codes) of 4 k for 8 rows, as
// codes[((dword * PLANES + plane) * kParts + part) * 2 + half].
struct Panel {
  __m256i codes[2 * kPanelK / 4 * 2];
  __m256 scale[16][2];   // [run][half]
  __m256 offset[16][2];  // 2^(BITS-1) - zero
};

template <int BITS, int RUN>
static void unpack_panel(const QuantMatrix& w, int64_t n, int64_t n1, int64_t k0, int shift, Panel* panel) {
  constexpr int kVectors = 8 / BITS * kParts<BITS>;  // of each dword
  for (int half = 0; half < 2; ++half) {
    const int64_t first = n + 8 * half, count = smaller(8, n1 - first);
    __m256i r[8];
    for (int run = 0; run < kPanelK / RUN && k0 + run * RUN < w.k; run += 8) {
      const Blocks blocks = blocks_at(k0 + run * RUN, w.k, kRunShift<RUN>, shift);
      for (int i = 0; i < 8; ++i) r[i] = i < count ? _mm256_castps_si256(scales_of(w, first + i, blocks)) : _mm256_setzero_si256();
      transpose8(r);
      for (int g = 0; g < 8; ++g) panel->scale[run + g][half] = _mm256_castsi256_ps(r[g]);
      if (!w.zero_points) continue;
      for (int i = 0; i < 8; ++i) r[i] = i < count ? zeros_of<BITS>(w, first + i, blocks) : _mm256_setzero_si256();
      transpose8(r);
      for (int g = 0; g < 8; ++g)
        panel->offset[run + g][half] = _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_set1_epi32(1 << (BITS - 1)), r[g]));
    }
    __m256i* out = panel->codes + half;
    for (int64_t k = k0; k < k0 + kPanelK && k < w.k; k += 256 / BITS) {
      const int64_t bytes_left = ((w.k - k) * BITS + 7) / 8;
      for (int i = 0; i < 8; ++i)
        r[i] = i < count ? load_codes(w.codes + (first + i) * w.row_bytes + k * BITS / 8, bytes_left) : _mm256_setzero_si256();
      transpose8(r);
      for (int j = 0; j < 8; ++j)
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v, out += 2) *out = kVectors == 1 ? r[j] : low_codes<BITS>(r[j], v * (BITS == 8 ? 4 : BITS));
    }
  }
}

// dot += sums of the products of the kVectors dwords from `codes` and q on.
template <int BITS, int COUNT, int MR>
HOTSET_INLINE void dot_dwords(const __m256i* codes, const char* const q[MR], __m256i dot[MR][2]) {
  constexpr int PLANES = 8 / BITS;
#if defined(__AVXVNNI__)
#pragma GCC unroll 8
  for (int j = 0; j < COUNT; ++j, codes += 2) {
    for (int m = 0; m < MR; ++m) {
      int32_t four;
      memcpy(&four, q[m] + 32 * (j % PLANES) + 4 * (j / PLANES), 4);
      const __m256i x = _mm256_set1_epi32(four);
      dot[m][0] = _mm256_dpbusd_avx_epi32(dot[m][0], codes[0], x);
      dot[m][1] = _mm256_dpbusd_avx_epi32(dot[m][1], codes[1], x);
    }
  }
#else
#pragma GCC unroll 2
  for (int part = 0; part < kParts<BITS>; ++part) {
    const __m256i* c = codes + 2 * part;
    __m256i pairs[MR][2];
#pragma GCC unroll 8
    for (int j = 0; j < COUNT; ++j, c += 2 * kParts<BITS>) {
      for (int m = 0; m < MR; ++m) {
        int32_t four;
        memcpy(&four, q[m] + 32 * (j % PLANES) + 4 * (j / PLANES), 4);
        const __m256i x = _mm256_set1_epi32(four);
        const __m256i p0 = _mm256_maddubs_epi16(c[0], x), p1 = _mm256_maddubs_epi16(c[1], x);
        pairs[m][0] = j == 0 ? p0 : _mm256_add_epi16(pairs[m][0], p0);
        pairs[m][1] = j == 0 ? p1 : _mm256_add_epi16(pairs[m][1], p1);
      }
    }
    const __m256i weight = _mm256_set1_epi16(part == 0 ? 1 : 16);
    for (int m = 0; m < MR; ++m)
      for (int half = 0; half < 2; ++half) dot[m][half] = _mm256_add_epi32(dot[m][half], _mm256_madd_epi16(pairs[m][half], weight));
  }
#endif
}

// MR rows of x from i on by one panel. A run is RUN / 4 dwords of codes of one plane.
template <int BITS, int RUN, int MR, bool ZEROS>
static void many_rows_tile(const Panel* panel, const Row<BITS, RUN>& rows, int64_t i, int64_t k0, int runs, const Store& out) {
  constexpr int kChunkRuns = 256 / BITS / RUN;
  __m256 sum[MR][2];
  for (int m = 0; m < MR; ++m) {
    sum[m][0] = sum[m][1] = _mm256_setzero_ps();
    prefetch_y(out, i + m);
  }
  const int64_t to_d = rows.code_bytes + k0 / RUN * 4, to_sum = to_d + 4 * rows.runs, to_shift = to_sum + 4 * rows.runs;
  const char* base[MR];
  for (int m = 0; m < MR; ++m) base[m] = (const char*)rows.q(i + m);
  for (int g = 0; g < runs; ++g) {
    const int64_t to_q = k0 + g / kChunkRuns * (256 / BITS) + g % kChunkRuns * (RUN * BITS / 8);
    const char* q[MR];
    __m256i dot[MR][2];
    for (int m = 0; m < MR; ++m) {
      q[m] = base[m] + to_q;
      __asm__("" : "+r"(q[m]));  // one pointer a row and small offsets; left alone, gcc keeps many sums of offsets in memory
      const int32_t* shift = (const int32_t*)(base[m] + to_shift) + g;
      dot[m][0] = dot[m][1] = _mm256_set1_epi32(*shift);
    }
    dot_dwords<BITS, RUN / 4, MR>(panel->codes + g * (RUN / 4 * kParts<BITS> * 2), q, dot);
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

template <int BITS, int RUN, bool ZEROS>
static void many_rows_tiles(const Panel* panel, const Row<BITS, RUN>& rows, int64_t m0, int64_t m1, int64_t k0, int runs,
                            const Store& out) {
  // Tiles of kMr rows; a last row alone is shared with the tile before it.
  for (int64_t i = m0; i < m1;) {
    const int64_t left = m1 - i, tile = left == kMr + 1 ? 2 : smaller(left, kMr);
    if (tile == 4) many_rows_tile<BITS, RUN, 4, ZEROS>(panel, rows, i, k0, runs, out);
    if (tile == 3) many_rows_tile<BITS, RUN, 3, ZEROS>(panel, rows, i, k0, runs, out);
    if (tile == 2) many_rows_tile<BITS, RUN, 2, ZEROS>(panel, rows, i, k0, runs, out);
    if (tile == 1) many_rows_tile<BITS, RUN, 1, ZEROS>(panel, rows, i, k0, runs, out);
    i += tile;
  }
}

template <int BITS, int RUN, int MR>
static void few_rows_any(const QuantMatrix& w, const Row<BITS, RUN>& rows, int64_t i, int64_t n0, int64_t n1, const float* bias, float* y,
                         int64_t ldy) {
  if (w.zero_points)
    few_rows<BITS, RUN, MR, true>(w, rows, i, n0, n1, bias, y, ldy);
  else
    few_rows<BITS, RUN, MR, false>(w, rows, i, n0, n1, bias, y, ldy);
}

template <int BITS, int RUN>
static void multiply(const QuantMatrix& w, const void* prepared, int64_t m, int64_t m0, int64_t m1, int64_t n0, int64_t n1,
                     const float* bias, float* y, int64_t ldy, void* scratch) {
  if (n0 >= n1) return;
  const Row<BITS, RUN> rows = Row<BITS, RUN>::make(prepared, w.k);
  if (m <= kFewRows) {
    if (m1 - m0 == 1) few_rows_any<BITS, RUN, 1>(w, rows, m0, n0, n1, bias, y, ldy);
    if (m1 - m0 == 2) few_rows_any<BITS, RUN, 2>(w, rows, m0, n0, n1, bias, y, ldy);
    if (m1 - m0 == 3) few_rows_any<BITS, RUN, 3>(w, rows, m0, n0, n1, bias, y, ldy);
    return;
  }
  const int shift = block_shift(w);
  Panel* panel = (Panel*)scratch;
  for (int64_t n = n0; n < n1; n += kPanelN) {
    for (int64_t k0 = 0; k0 < w.k; k0 += kPanelK) {
      unpack_panel<BITS, RUN>(w, n, n1, k0, shift, panel);
      const int runs = (int)((smaller(kPanelK, w.k - k0) + RUN - 1) / RUN);
      const Store out = {bias ? bias + n : nullptr, y + n, ldy, {first8(n1 - n), first8(n1 - n - 8)}, k0 == 0, k0 + kPanelK >= w.k};
      if (w.zero_points)
        many_rows_tiles<BITS, RUN, true>(panel, rows, m0, m1, k0, runs, out);
      else
        many_rows_tiles<BITS, RUN, false>(panel, rows, m0, m1, k0, runs, out);
    }
  }
}

static size_t scratch_bytes(int64_t m, int64_t, int64_t) { return m <= kFewRows ? 0 : sizeof(Panel); }

#define HOTSET_TABLES(RUN)                                                        \
  {                                                                               \
      {prepared_bytes<2, RUN>, prepare<2, RUN>, scratch_bytes, multiply<2, RUN>}, \
      {prepared_bytes<4, RUN>, prepare<4, RUN>, scratch_bytes, multiply<4, RUN>}, \
      {prepared_bytes<8, RUN>, prepare<8, RUN>, scratch_bytes, multiply<8, RUN>}, \
  }

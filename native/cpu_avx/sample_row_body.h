// SPDX-License-Identifier: Apache-2.0
// Passes over logits on sixteen lanes, written once with the compiler's vector types and compiled for each instruction set.
// Included inside an unnamed namespace.

typedef float Lanes __attribute__((vector_size(64)));
typedef int32_t IntLanes __attribute__((vector_size(64)));
typedef uint32_t BitLanes __attribute__((vector_size(64)));
typedef double DoubleLanes __attribute__((vector_size(128)));

static inline Lanes load(const float* p) {
  Lanes v;
  memcpy(&v, p, sizeof v);
  return v;
}

static inline Lanes all(float f) { return Lanes{} + f; }

// Elements [i, n) and `rest` in the lanes behind them.
static inline Lanes load_tail(const float* p, int64_t count, float rest) {
  float lane[16];
  for (int j = 0; j < 16; ++j) lane[j] = j < count ? p[j] : rest;
  return load(lane);
}

static inline Lanes choose(IntLanes mask, Lanes yes, Lanes no) { return (Lanes)((mask & (IntLanes)yes) | (~mask & (IntLanes)no)); }

static inline double reduce(DoubleLanes v) {
  double s = 0;
  for (int j = 0; j < 16; ++j) s += v[j];
  return s;
}

static inline Lanes larger(Lanes v, Lanes best) {  // best where v is NaN
#if defined(__AVX512F__)
  return (Lanes)_mm512_maskz_max_ps(0xffff, (__m512)v, (__m512)best);
#else
  return choose(v > best, v, best);
#endif
}

static void group_maxima(const float* x, int64_t n, float* out) {
  for (int64_t from = 0; from < n; from += kSampleChunk) {
    const int64_t to = from + kSampleChunk < n ? from + kSampleChunk : n;
    Lanes best[4] = {all(-INFINITY), all(-INFINITY), all(-INFINITY), all(-INFINITY)};
    int64_t i = from;
    for (; i + 64 <= to; i += 64)
      for (int j = 0; j < 4; ++j) best[j] = larger(load(x + i + 16 * j), best[j]);
    for (; i < to; i += 16) best[0] = larger(to - i >= 16 ? load(x + i) : load_tail(x + i, to - i, -INFINITY), best[0]);
    const Lanes all_four = larger(larger(best[3], best[2]), larger(best[1], best[0]));
    memcpy(out, &all_four, sizeof all_four);
    out += 16;
  }
}

static double exp_weights(const float* x, int64_t n, float largest, float scale, float* w) {
  // 2^t with t = k + f, |f| <= 1/2: a polynomial in f, to whose exponent k is added.
  const Lanes log2_scale = all(scale * 1.44269504f), magic = all(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  DoubleLanes total = {};
  for (int64_t from = 0; from < n; from += 4096) {
    const int64_t to = from + 4096 < n ? from + 4096 : n;
    Lanes sum = {};
    for (int64_t i = from; i < to; i += 16) {
      const Lanes v = to - i >= 16 ? load(x + i) : load_tail(x + i, to - i, -INFINITY);
      const Lanes t = (v - all(largest)) * log2_scale;
      const IntLanes usable = t >= all(-125.5f);  // false for NaN; the result is a normal number
      const Lanes shifted = t + magic, f = t - (shifted - magic);
      Lanes p = all(0.00132764713f);
      p = p * f + all(0.00967554096f);
      p = p * f + all(0.05550713f);
      p = p * f + all(0.2402212f);
      p = p * f + all(0.69314694f);
      p = p * f + all(1.0f);
      const Lanes e = (Lanes)((BitLanes)usable & ((BitLanes)p + ((BitLanes)shifted << 23)));
      memcpy(w + i, &e, sizeof e);
      sum += e;
    }
    total += __builtin_convertvector(sum, DoubleLanes);
  }
  return reduce(total);
}

static int64_t collect(const float* x, int64_t n, float threshold, int32_t* ids) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; i += 16) {
    const Lanes v = n - i >= 16 ? load(x + i) : load_tail(x + i, n - i, NAN);
#if defined(__AVX512F__)
    const __mmask16 mask = _mm512_cmp_ps_mask((__m512)v, _mm512_set1_ps(threshold), _CMP_GE_OQ);
    if (!mask) continue;
    const __m512i id = _mm512_add_epi32(_mm512_set1_epi32((int)i), _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    _mm512_storeu_si512(ids + count, _mm512_maskz_compress_epi32(mask, id));
    count += __builtin_popcount(mask);
#else
    const IntLanes mask = v >= all(threshold);
#if defined(__aarch64__)
    int64_t pairs[8], any = 0;
    memcpy(pairs, &mask, sizeof pairs);
    for (int j = 0; j < 8; ++j) any |= pairs[j];
#else
    int any = 0;
    for (int j = 0; j < 16; ++j) any |= mask[j];
#endif
    if (!any) continue;
    for (int j = 0; j < 16; ++j) {
      ids[count] = (int32_t)(i + j);
      count += mask[j] & 1;
    }
#endif
  }
  return count;
}

static double sum_above(const float* w, int64_t n, float threshold) {
  DoubleLanes total = {};
  for (int64_t from = 0; from < n; from += 4096) {
    const int64_t to = from + 4096 < n ? from + 4096 : n;
    Lanes sum[2] = {};
    int64_t i = from;
    for (; i + 32 <= to; i += 32) {
      const Lanes a = load(w + i), b = load(w + i + 16);
      sum[0] += choose(a > all(threshold), a, Lanes{});
      sum[1] += choose(b > all(threshold), b, Lanes{});
    }
    for (; i < to; i += 16) {
      const Lanes v = to - i >= 16 ? load(w + i) : load_tail(w + i, to - i, -INFINITY);
      sum[0] += choose(v > all(threshold), v, Lanes{});
    }
    total += __builtin_convertvector(sum[0] + sum[1], DoubleLanes);
  }
  return reduce(total);
}

static const SampleKernels kSampleKernels = {group_maxima, exp_weights, collect, sum_above};

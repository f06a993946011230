// SPDX-License-Identifier: Apache-2.0
// Passes over logits on sixteen lanes, written once with the compiler's vector types and compiled for each instruction set.
// Included inside an unnamed namespace.

typedef float Lanes __attribute__((vector_size(64)));
typedef int32_t IntLanes __attribute__((vector_size(64)));
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

static void block_maxima(const float* x, int64_t n, int64_t block, float* out) {
  for (int64_t from = 0; from < n; from += block) {
    const int64_t to = from + block < n ? from + block : n;
    Lanes best = all(-INFINITY);
    for (int64_t i = from; i < to; i += 16) {
      const Lanes v = to - i >= 16 ? load(x + i) : load_tail(x + i, to - i, -INFINITY);
      best = choose(v > best, v, best);  // false for NaN
    }
    float m = -INFINITY;
    for (int j = 0; j < 16; ++j) m = best[j] > m ? best[j] : m;
    *out++ = m;
  }
}

// exp(a) for a <= 0: a = k ln 2 + r, |r| <= ln 2 / 2; Taylor polynomial of degree 6 in r; 2^k by the exponent field.
static inline Lanes exp_nonpositive(Lanes a) {
  const IntLanes usable = a >= all(-87.0f);  // false for NaN
  const Lanes magic = all(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Lanes k = (a * all(1.44269504f) + magic) - magic;
  const Lanes r = (a - k * all(0.693359375f)) - k * all(-2.12194440e-4f);  // ln 2 in two parts, the first exact times k
  Lanes p = all(1.0f / 720);
  p = p * r + all(1.0f / 120);
  p = p * r + all(1.0f / 24);
  p = p * r + all(1.0f / 6);
  p = p * r + all(0.5f);
  p = p * r + all(1.0f);
  p = p * r + all(1.0f);
  const IntLanes scale = (__builtin_convertvector(k, IntLanes) + 127) << 23;
  return choose(usable, p * (Lanes)scale, Lanes{});
}

static double exp_weights(const float* x, int64_t n, float largest, float scale, float* w) {
  DoubleLanes total = {};
  for (int64_t from = 0; from < n; from += 4096) {
    const int64_t to = from + 4096 < n ? from + 4096 : n;
    Lanes sum = {};
    for (int64_t i = from; i < to; i += 16) {
      const Lanes v = to - i >= 16 ? load(x + i) : load_tail(x + i, to - i, -INFINITY);
      const Lanes e = exp_nonpositive((v - all(largest)) * all(scale));
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
    int any = 0;
    for (int j = 0; j < 16; ++j) any |= mask[j];
    if (!any) continue;
    for (int j = 0; j < 16; ++j) {
      ids[count] = (int32_t)(i + j);
      count += mask[j] & 1;
    }
#endif
  }
  return count;
}

static double split(const float* w, int64_t n, float pivot, float* high, int64_t* n_high, float* low) {
  DoubleLanes total = {};
  int64_t h = 0, l = 0;
  for (int64_t from = 0; from < n; from += 4096) {
    const int64_t to = from + 4096 < n ? from + 4096 : n;
    Lanes sum = {};
    for (int64_t i = from; i < to; i += 16) {
      const int64_t left = to - i < 16 ? to - i : 16;
      const Lanes v = left == 16 ? load(w + i) : load_tail(w + i, left, 0.0f);
#if defined(__AVX512F__)
      const __mmask16 valid = (__mmask16)((1u << left) - 1);
      const __mmask16 mask = _mm512_mask_cmp_ps_mask(valid, (__m512)v, _mm512_set1_ps(pivot), _CMP_GE_OQ);
      const __mmask16 rest = (__mmask16)(valid & ~mask);
      sum += (Lanes)_mm512_maskz_mov_ps(mask, (__m512)v);
      _mm512_storeu_ps(high + h, _mm512_maskz_compress_ps(mask, (__m512)v));
      _mm512_storeu_ps(low + l, _mm512_maskz_compress_ps(rest, (__m512)v));
      h += __builtin_popcount(mask);
      l += __builtin_popcount(rest);
#else
      const IntLanes mask = v >= all(pivot);
      Lanes taken = choose(mask, v, Lanes{});
      for (int64_t j = left; j < 16; ++j) taken[j] = 0;
      sum += taken;
      for (int64_t j = 0; j < left; ++j) {
        high[h] = low[l] = v[j];
        h += mask[j] & 1;
        l += 1 - (mask[j] & 1);
      }
#endif
    }
    total += __builtin_convertvector(sum, DoubleLanes);
  }
  *n_high = h;
  return reduce(total);
}

static double sum_above(const float* w, int64_t n, float threshold) {
  DoubleLanes total = {};
  for (int64_t from = 0; from < n; from += 4096) {
    const int64_t to = from + 4096 < n ? from + 4096 : n;
    Lanes sum = {};
    for (int64_t i = from; i < to; i += 16) {
      const Lanes v = to - i >= 16 ? load(w + i) : load_tail(w + i, to - i, -INFINITY);
      sum += choose(v > all(threshold), v, Lanes{});
    }
    total += __builtin_convertvector(sum, DoubleLanes);
  }
  return reduce(total);
}

static const SampleKernels kSampleKernels = {block_maxima, exp_weights, collect, split, sum_above};

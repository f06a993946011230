// SPDX-License-Identifier: Apache-2.0
// The gated unit over vector primitives: those of vector_avx512.h, and
//   lower(a, b) higher(a, b)   minimum and maximum; b when either is NaN
//   divide(a, b), round(v)     to the nearest integer
//   scale(p, n)                p * 2^n for integral n in [-126, 127]
//   split(p, &even, &odd)      2 * kLanes floats

// exp(x) to 2 ulp for |x| <= 87; beyond, the value at that end. NaN stays.
inline V exp_clamped(V x) {
  x = higher(set1(-87.0f), lower(set1(87.0f), x));
  const V n = round(mul(x, set1(1.44269504088896341f)));
  V r = fma(n, set1(-0.693359375f), x);  // ln 2 in two parts
  r = fma(n, set1(2.12194440e-4f), r);
  V p = set1(1.0f / 5040);  // Taylor: |r| <= 0.347, the next term is below 6e-9
  p = fma(p, r, set1(1.0f / 720));
  p = fma(p, r, set1(1.0f / 120));
  p = fma(p, r, set1(1.0f / 24));
  p = fma(p, r, set1(1.0f / 6));
  p = fma(p, r, set1(0.5f));
  p = fma(p, r, set1(1.0f));
  p = fma(p, r, set1(1.0f));
  return scale(p, n);
}

struct Unit {
  V minus_alpha, beta, limit, minus_limit;
  bool limit_after;

  V operator()(V g, V l) const {
    l = add(higher(minus_limit, lower(limit, l)), beta);
    if (!limit_after) g = lower(limit, g);
    V a = divide(g, add(set1(1.0f), exp_clamped(mul(minus_alpha, g))));
    if (limit_after) a = lower(limit, a);
    return mul(a, l);
  }
};

inline void run(const Swiglu& s, const float* gate, const float* value, int64_t n, float* out) {
  const Unit unit = {set1(-s.alpha), set1(s.beta), set1(s.limit), set1(-s.limit), s.limit_after};
  int64_t i = 0;
  V g, l;
  for (; i + kLanes <= n; i += kLanes) {
    if (value) {
      g = load(gate + i);
      l = load(value + i);
    } else {
      split(gate + 2 * i, &g, &l);
    }
    store(out + i, unit(g, l));
  }
  const int rest = static_cast<int>(n - i);
  if (rest == 0) return;
  if (value) {
    g = load_first(gate + i, rest);
    l = load_first(value + i, rest);
  } else {
    float pairs[2 * kLanes] = {};
    memcpy(pairs, gate + 2 * i, static_cast<size_t>(rest) * 2 * sizeof(float));
    split(pairs, &g, &l);
  }
  store_first(out + i, unit(g, l), rest);
}

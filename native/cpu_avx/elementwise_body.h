// SPDX-License-Identifier: Apache-2.0
// Elementwise loops over a vector type; included like float_gemm_body.h. Beside the names of vector_*.h:
//   lower(a, b) higher(a, b)     minimum and maximum; b when either is NaN
//   divide(a, b) root(v) round(v)  the last to the nearest integer
//   scale(p, n)                  p * 2^n, n integral in [-152, 130]; overflows and underflows as the product would
//   magnitude(v) with_sign(a, s) |v|; a with the sign of s
//   below(a, b, yes, no)         a < b ? yes : no
//   first_element<D>(p)          one element as float

struct AddOp { static V apply(V a, V b) { return add(a, b); } };
struct SubOp { static V apply(V a, V b) { return sub(a, b); } };
struct MulOp { static V apply(V a, V b) { return mul(a, b); } };
struct DivOp { static V apply(V a, V b) { return divide(a, b); } };

template <class Op, int D>
void arithmetic_loop(const void* a, bool a_one, const void* b, bool b_one, void* out, int64_t n) {
  const V av = a_one ? set1(first_element<D>(a)) : zero(), bv = b_one ? set1(first_element<D>(b)) : zero();
  int64_t i = 0;
  if (!a_one && !b_one)
    for (; i + kLanes <= n; i += kLanes) store_as<D>(out, i, Op::apply(load_as<D>(a, i), load_as<D>(b, i)));
  else if (b_one && !a_one)
    for (; i + kLanes <= n; i += kLanes) store_as<D>(out, i, Op::apply(load_as<D>(a, i), bv));
  else
    for (; i + kLanes <= n; i += kLanes) store_as<D>(out, i, Op::apply(av, b_one ? bv : load_as<D>(b, i)));
  if (const int rest = static_cast<int>(n - i))
    store_first_as<D>(out, i, Op::apply(a_one ? av : load_first_as<D>(a, i, rest), b_one ? bv : load_first_as<D>(b, i, rest)), rest);
}

// exp(x): x = n ln 2 + r, |r| <= ln 2 / 2; Taylor polynomial of degree 7 in r (the next term is below 6e-9).
inline V vexp(V x) {
  x = higher(set1(-105.0f), lower(set1(89.5f), x));  // beyond: 0 and infinity
  const V n = round(mul(x, set1(1.44269504088896341f)));
  V r = fma(n, set1(-0.693359375f), x);  // ln 2 in two parts, the first exact times n
  r = fma(n, set1(2.12194440e-4f), r);
  V p = set1(1.0f / 5040);
  p = fma(p, r, set1(1.0f / 720));
  p = fma(p, r, set1(1.0f / 120));
  p = fma(p, r, set1(1.0f / 24));
  p = fma(p, r, set1(1.0f / 6));
  p = fma(p, r, set1(0.5f));
  p = fma(p, r, set1(1.0f));
  p = fma(p, r, set1(1.0f));
  return scale(p, n);
}

inline V vsigmoid(V x) { return divide(set1(1.0f), add(set1(1.0f), vexp(sub(zero(), x)))); }

struct ExpOp { static V apply(V x, V) { return vexp(x); } };
struct SigmoidOp { static V apply(V x, V) { return vsigmoid(x); } };
struct SwishOp { static V apply(V x, V p) { return mul(x, vsigmoid(mul(p, x))); } };
struct TanhOp {
  // 1 - 2 / (exp(2|x|) + 1) loses digits near 0, where an odd polynomial of degree 11 takes over.
  static V apply(V x, V) {
    const V a = magnitude(x), z = mul(x, x);
    const V far = sub(set1(1.0f), divide(set1(2.0f), add(vexp(add(a, a)), set1(1.0f))));
    V p = set1(-5.70498872745e-3f);
    p = fma(p, z, set1(2.06390887954e-2f));
    p = fma(p, z, set1(-5.37397155531e-2f));
    p = fma(p, z, set1(1.33314422036e-1f));
    p = fma(p, z, set1(-3.33332819422e-1f));
    const V near = fma(mul(p, z), x, x);
    return below(a, set1(0.625f), near, with_sign(far, x));
  }
};
// 0.5 x (1 + tanh(u)) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3)
struct GeluTanhOp {
  static V apply(V x, V) {
    const V u = mul(mul(x, set1(1.5957691216057308f)), fma(mul(x, x), set1(0.044715f), set1(1.0f)));
    return mul(x, vsigmoid(u));
  }
};

// Below 1 an even polynomial times x; above, 1 - exp(-x^2) q(t), t = 1 / (1 + x / 2): both fitted at Chebyshev nodes,
// 1e-9 and 5e-8 off. From 4 on the result rounds to 1.
inline V verf(V x) {
  const V a = magnitude(x), z = mul(a, a);
  V p = set1(7.88249712e-5f);
  p = fma(p, z, set1(-8.018855e-4f));
  p = fma(p, z, set1(5.18931194e-3f));
  p = fma(p, z, set1(-2.68543288e-2f));
  p = fma(p, z, set1(0.112835975f));
  p = fma(p, z, set1(-0.376126269f));
  p = fma(p, z, set1(1.12837917f));
  const V c = lower(set1(4.0f), a), t = divide(set1(1.0f), fma(c, set1(0.5f), set1(1.0f)));
  V q = set1(-0.0535406161f);
  q = fma(q, t, set1(-0.0573387353f));
  q = fma(q, t, set1(0.403838363f));
  q = fma(q, t, set1(0.101268245f));
  q = fma(q, t, set1(0.33084068f));
  q = fma(q, t, set1(0.273618153f));
  q = fma(q, t, set1(6.06408739e-4f));
  const V far = sub(set1(1.0f), mul(q, vexp(sub(zero(), mul(c, c)))));
  return below(a, set1(1.0f), mul(x, p), with_sign(far, x));
}

struct ErfOp { static V apply(V x, V) { return verf(x); } };
struct GeluOp { static V apply(V x, V) { return mul(mul(set1(0.5f), x), add(set1(1.0f), verf(mul(x, set1(0.70710678f))))); } };
struct ReluOp { static V apply(V x, V) { return higher(zero(), x); } };
struct SqrtOp { static V apply(V x, V) { return root(x); } };

template <class Op, int D>
void function_loop(const void* in, void* out, int64_t n, const float* p) {
  const V pv = set1(p[0]);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store_as<D>(out, i, Op::apply(load_as<D>(in, i), pv));
  if (const int rest = static_cast<int>(n - i)) store_first_as<D>(out, i, Op::apply(load_first_as<D>(in, i, rest), pv), rest);
}

void softmax_row(const float* in, float* out, int64_t n) {
  const int rest = static_cast<int>(n % kLanes);
  const int64_t whole = n - rest;
  float largest = -__builtin_inff();
  if (whole > 0) {
    V m = load(in);
    for (int64_t i = kLanes; i < whole; i += kLanes) m = higher(load(in + i), m);
    float lane[kLanes];
    store(lane, m);
    for (int j = 0; j < kLanes; ++j) largest = lane[j] > largest ? lane[j] : largest;
  }
  for (int64_t i = whole; i < n; ++i) largest = in[i] > largest ? in[i] : largest;
  const V shift = set1(largest);
  V total = zero();
  for (int64_t i = 0; i < whole; i += kLanes) {  // a NaN that the maximum dropped comes back here
    const V e = vexp(sub(load(in + i), shift));
    store(out + i, e);
    total = add(total, e);
  }
  if (rest) {
    store_first(out + whole, vexp(sub(load_first(in + whole, rest), shift)), rest);
    total = add(total, load_first(out + whole, rest));
  }
  const V factor = set1(1.0f / sum(total));
  for (int64_t i = 0; i < whole; i += kLanes) store(out + i, mul(load(out + i), factor));
  if (rest) store_first(out + whole, mul(load_first(out + whole, rest), factor), rest);
}

#define HOTSET_TYPES(loop, Op) {loop<Op, 1>, loop<Op, 10>, loop<Op, 16>}
constexpr ElementwiseKernels kTable = {
    {HOTSET_TYPES(arithmetic_loop, AddOp), HOTSET_TYPES(arithmetic_loop, SubOp), HOTSET_TYPES(arithmetic_loop, MulOp), HOTSET_TYPES(arithmetic_loop, DivOp)},
    {HOTSET_TYPES(function_loop, ExpOp), HOTSET_TYPES(function_loop, SigmoidOp), HOTSET_TYPES(function_loop, SwishOp), HOTSET_TYPES(function_loop, TanhOp),
     HOTSET_TYPES(function_loop, GeluTanhOp), HOTSET_TYPES(function_loop, ErfOp), HOTSET_TYPES(function_loop, GeluOp), HOTSET_TYPES(function_loop, ReluOp),
     HOTSET_TYPES(function_loop, SqrtOp)},
    softmax_row};
#undef HOTSET_TYPES

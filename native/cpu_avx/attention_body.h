// SPDX-License-Identifier: Apache-2.0
// The attention algorithm over vector primitives. An instruction set's file defines, in an unnamed namespace, the vector V
// of kLanes floats, its primitives v*, kMr (rows of the register tile) and kNv (vectors of it), and includes this.
//
// Few rows: dot products with the rows of K as they lie. Many rows: K is transposed block by block, so that both products
// are C[r][n] += A[r][k] * B[k][n] with B read along n; V is such a B as it lies.

constexpr float kInf = __builtin_inff();
constexpr int kBlock = kAttentionKeyBlock;
constexpr int kDotRows = 6;  // up to here transposing K costs more than horizontal sums

// 1 ulp for x <= 88; 0 for -inf, NaN stays.
inline V vexp(V x) {
  const V clamped = vmax(vset(kExpLowest), x);
  const V n = vround(vmul(clamped, vset(1.44269504088896341f)));
  V r = vfma(n, vset(-0.693359375f), clamped);
  r = vfma(n, vset(2.12194440e-4f), r);
  V p = vset(1.9875691500e-4f);
  p = vfma(p, r, vset(1.3981999507e-3f));
  p = vfma(p, r, vset(8.3334519073e-3f));
  p = vfma(p, r, vset(4.1665795894e-2f));
  p = vfma(p, r, vset(1.6666665459e-1f));
  p = vfma(p, r, vset(5.0000001201e-1f));
  p = vfma(p, vmul(r, r), vadd(r, vset(1.0f)));
  return vldexp(p, n, x);
}

inline float exp1(float x) { return vfirst(vexp(vset(x))); }

inline V vtanh(V x) {
  const V z = vmul(x, x);
  V p = vset(-5.70498872745e-3f);
  p = vfma(p, z, vset(2.06390887954e-2f));
  p = vfma(p, z, vset(-5.37397155531e-2f));
  p = vfma(p, z, vset(1.33314422036e-1f));
  p = vfma(p, z, vset(-3.33332819422e-1f));
  p = vfma(vmul(p, z), x, x);
  const V t = vmin(vset(20.0f), vmax(vset(-20.0f), vadd(x, x)));  // NaN stays: it is the second operand
  const V e = vexp(t);
  return vselect_small(x, 0.625f, p, vdiv(vsub(e, vset(1.0f)), vadd(e, vset(1.0f))));
}

template <KvFormat f>
inline ptrdiff_t bytes_at(int c) {
  if constexpr (f == KvFormat::f32) return 4 * static_cast<ptrdiff_t>(c);
  if constexpr (f == KvFormat::f16 || f == KvFormat::bf16) return 2 * static_cast<ptrdiff_t>(c);
  if constexpr (f == KvFormat::i4) return c / 2;
  return c;
}

template <KvFormat f>
inline V vload_as(const unsigned char* p) {
  if constexpr (f == KvFormat::f32) return vload(reinterpret_cast<const float*>(p));
  if constexpr (f == KvFormat::f16) return vload_f16(p);
  if constexpr (f == KvFormat::bf16) return vload_bf16(p);
  if constexpr (f == KvFormat::i8) return vload_i8(p);
  if constexpr (f == KvFormat::i4) return vload_i4(p);
  if constexpr (f == KvFormat::f8) return vload_f8(p);
}

// The first n < kLanes elements at p, the other lanes undefined but finite.
template <KvFormat f>
inline V vload_tail(const unsigned char* p, int n) {
  unsigned char copy[4 * kLanes] = {};
  __builtin_memcpy(copy, p, static_cast<size_t>(bytes_at<f>(n + (f == KvFormat::i4))));
  return vload_as<f>(copy);
}

template <KvFormat f>
void load_rows(const unsigned char* src, ptrdiff_t stride, int n, int d, float* dst, int ld) {
  for (int i = 0; i < n; ++i, src += stride, dst += ld) {
    int c = 0;
    for (; c + kLanes <= d; c += kLanes) vstore(dst + c, vload_as<f>(src + bytes_at<f>(c)));
    if (c < d) vstore(dst + c, vload_tail<f>(src + bytes_at<f>(c), d - c));
    for (c += c < d ? kLanes : 0; c < ld; c += kLanes) vstore(dst + c, vset(0.0f));
  }
}

void load_block(KvFormat f, const unsigned char* src, ptrdiff_t stride, int n, int d, float* dst, int ld) {
  switch (f) {
    case KvFormat::f32:
      return load_rows<KvFormat::f32>(src, stride, n, d, dst, ld);
    case KvFormat::f16:
      return load_rows<KvFormat::f16>(src, stride, n, d, dst, ld);
    case KvFormat::bf16:
      return load_rows<KvFormat::bf16>(src, stride, n, d, dst, ld);
    case KvFormat::i8:
      return load_rows<KvFormat::i8>(src, stride, n, d, dst, ld);
    case KvFormat::i4:
      return load_rows<KvFormat::i4>(src, stride, n, d, dst, ld);
    case KvFormat::f8:
      return load_rows<KvFormat::f8>(src, stride, n, d, dst, ld);
  }
}

struct Rows {
  const unsigned char* p;  // float32 rows
  ptrdiff_t stride;        // bytes
  const float* at(int i) const { return reinterpret_cast<const float*>(p + i * stride); }
};

// Rows as float32 with whole vectors: where they lie if possible, else converted into `buffer`.
Rows float_rows(KvFormat f, const void* src, ptrdiff_t stride, int n, int d, float* buffer) {
  const unsigned char* p = static_cast<const unsigned char*>(src);
  const int ld = attention_ld(d);
  if (f == KvFormat::f32 && d == ld) return {p, stride};
  load_block(f, p, stride, n, d, buffer, ld);
  return {reinterpret_cast<const unsigned char*>(buffer), static_cast<ptrdiff_t>(ld) * 4};
}

// kt[c][j] = K[j][c]; columns from n on are 0.
void transpose(const Rows& k, int n, int d, float* kt) {
  for (int j = 0; j < n; j += kLanes) {
    for (int c = 0; c < d; c += kLanes) {
      V v[kLanes];
      for (int i = 0; i < kLanes; ++i) v[i] = j + i < n ? vload(k.at(j + i) + c) : vset(0.0f);
      vtranspose(v);
      for (int i = 0; i < kLanes; ++i) vstore(kt + (c + i) * kBlock + j, v[i]);
    }
  }
}

template <int mr, int nv, bool accumulate>
void gemm_tile(int k, const float* a, int lda, const unsigned char* b, ptrdiff_t b_stride, float* c, int ldc) {
  V acc[mr][nv];
#pragma GCC unroll 8
  for (int r = 0; r < mr; ++r) {
#pragma GCC unroll 8
    for (int i = 0; i < nv; ++i) acc[r][i] = accumulate ? vload(c + r * ldc + i * kLanes) : vset(0.0f);
  }
  for (int x = 0; x < k; ++x, b += b_stride) {
    V w[nv];
#pragma GCC unroll 8
    for (int i = 0; i < nv; ++i) w[i] = vload(reinterpret_cast<const float*>(b) + i * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < mr; ++r) {
      const V s = vset(a[r * lda + x]);
#pragma GCC unroll 8
      for (int i = 0; i < nv; ++i) acc[r][i] = vfma(s, w[i], acc[r][i]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < mr; ++r) {
#pragma GCC unroll 8
    for (int i = 0; i < nv; ++i) vstore(c + r * ldc + i * kLanes, acc[r][i]);
  }
}

template <int nv, bool accumulate>
void gemm_rows(int rows, int k, const float* a, int lda, const Rows& b, int n0, float* c, int ldc) {
  const unsigned char* p = b.p + 4 * static_cast<ptrdiff_t>(n0);
  int r = 0;
  for (; r + kMr <= rows; r += kMr) gemm_tile<kMr, nv, accumulate>(k, a + r * lda, lda, p, b.stride, c + r * ldc + n0, ldc);
  a += r * lda;
  c += r * ldc + n0;
  switch (rows - r) {
    case 1:
      return gemm_tile<1, nv, accumulate>(k, a, lda, p, b.stride, c, ldc);
    case 2:
      return gemm_tile<2, nv, accumulate>(k, a, lda, p, b.stride, c, ldc);
    case 3:
      return gemm_tile<3, nv, accumulate>(k, a, lda, p, b.stride, c, ldc);
    case 4:
      return gemm_tile<4, nv, accumulate>(k, a, lda, p, b.stride, c, ldc);
    case 5:
      return gemm_tile<5, nv, accumulate>(k, a, lda, p, b.stride, c, ldc);
  }
}

// C[r][j] (+)= sum over x < k of A[r][x] * B[x][j] for j < n, a multiple of 16.
template <bool accumulate>
void gemm(int rows, int n, int k, const float* a, int lda, const Rows& b, float* c, int ldc) {
  int j = 0;
  for (; j + kNv * kLanes <= n; j += kNv * kLanes) gemm_rows<kNv, accumulate>(rows, k, a, lda, b, j, c, ldc);
  if constexpr (kNv == 4) {
    if (j + 2 * kLanes <= n) {
      gemm_rows<2, accumulate>(rows, k, a, lda, b, j, c, ldc);
      j += 2 * kLanes;
    }
    if (j < n) gemm_rows<1, accumulate>(rows, k, a, lda, b, j, c, ldc);
  }
}

// x[r][j] = q_r . k_j for `pairs` rows at a time, kLanes sums at a time.
template <int nr>
void dots(const float* q, int ldq, const Rows& k, int n, float* x) {
  constexpr int kKeys = kLanes / nr;
  for (int j = 0; j < n; j += kKeys) {
    V acc[kLanes];
    const float* row[kKeys];
#pragma GCC unroll 16
    for (int i = 0; i < kKeys; ++i) row[i] = k.at(j + i < n ? j + i : n - 1);
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) acc[i] = vset(0.0f);
    for (int c = 0; c < ldq; c += kLanes) {
      V s[nr];
#pragma GCC unroll 4
      for (int r = 0; r < nr; ++r) s[r] = vload(q + r * ldq + c);
#pragma GCC unroll 16
      for (int i = 0; i < kKeys; ++i) {
        const V w = vload(row[i] + c);
#pragma GCC unroll 4
        for (int r = 0; r < nr; ++r) acc[r * kKeys + i] = vfma(w, s[r], acc[r * kKeys + i]);
      }
    }
    const V sums = vsum_each(acc);
    if constexpr (nr == 1)
      vstore(x + j, sums);
    else
      vstore_halves(x + j, x + kBlock + j, sums);
  }
}

template <KvFormat f>
inline V bias_at(const void* base, int64_t j, int n) {
  const unsigned char* p = static_cast<const unsigned char*>(base) + (f == KvFormat::f32 ? 4 : 2) * j;
  return n >= kLanes ? vload_as<f>(p) : vload_tail<f>(p, n);
}

inline V bool_bias_at(const void* base, int64_t j, int n) {
  float t[kLanes];
  const unsigned char* p = static_cast<const unsigned char*>(base) + j;
  for (int i = 0; i < kLanes; ++i) t[i] = i < n && p[i] ? 0.0f : -kInf;
  return vload(t);
}

// Softcap and biases of logits x[0, n) of keys j0...
void finish_logits(const AttentionTile& t, int r, int64_t j0, int n, float* x) {
  for (int c = 0; c < n; c += kLanes) {
    V v = vload(x + c);
    if (t.softcap > 0) v = vmul(vset(t.softcap), vtanh(vdiv(v, vset(t.softcap))));
    switch (t.bias_format) {
      case BiasFormat::none:
        break;
      case BiasFormat::f32:
        v = vadd(v, bias_at<KvFormat::f32>(t.bias[r], j0 + c, n - c));
        break;
      case BiasFormat::f16:
        v = vadd(v, bias_at<KvFormat::f16>(t.bias[r], j0 + c, n - c));
        break;
      case BiasFormat::bf16:
        v = vadd(v, bias_at<KvFormat::bf16>(t.bias[r], j0 + c, n - c));
        break;
      case BiasFormat::boolean:
        v = vadd(v, bool_bias_at(t.bias[r], j0 + c, n - c));
        break;
    }
    if (t.key_bias) v = vadd(v, bias_at<KvFormat::f32>(t.key_bias, j0 + c, n - c));
    vstore(x + c, v);
  }
}

// Turns logits x[0, n) into weights relative to the new m; keys outside [lo, hi) get 0.
void softmax_row(const AttentionTile& t, int r, int n, int lo, int hi, float* x) {
  V top = vset(-kInf);
  for (int c = 0; c < n; c += kLanes) {
    V v = vload(x + c);
    if (c < lo || c + kLanes > hi) {
      v = vkeep(v, lo - c, hi - c, -kInf);
      vstore(x + c, v);
    }
    top = vmax(top, v);
  }
  const float old = t.m[r], block_max = vmax_lanes(top), m = block_max > old ? block_max : old;
  const float m_finite = m == -kInf ? 0.0f : m;
  V sum = vset(0.0f);
  const V shift = vset(m_finite);
  for (int c = 0; c < n; c += kLanes) {
    const V p = vexp(vsub(vload(x + c), shift));
    vstore(x + c, p);
    sum = vadd(sum, p);
  }
  float l = t.l[r];
  if (m != old) {
    const float shrink = exp1(old - m_finite);
    l *= shrink;
    float* acc = t.acc + static_cast<ptrdiff_t>(r) * attention_ld(t.dv);
    if (shrink != 1.0f)
      for (int c = 0; c < t.dv; c += kLanes) vstore(acc + c, vmul(vload(acc + c), vset(shrink)));
  }
  t.m[r] = m;
  t.l[r] = l + vsum(sum);
}

inline int clamp_index(int64_t i, int n) { return i < 0 ? 0 : i > n ? n : static_cast<int>(i); }

void attend(const AttentionTile& t) {
  const int ldq = attention_ld(t.d), lda = attention_ld(t.dv);
  float* const x = t.scratch;
  float* const kt = x + static_cast<ptrdiff_t>(kBlock) * t.rows;
  float* const kf = kt + kBlock * ldq;
  float* const vf = kf + kBlock * ldq;
  const unsigned char* const k = static_cast<const unsigned char*>(t.k);
  const unsigned char* const v = static_cast<const unsigned char*>(t.v);
  for (int64_t j0 = t.begin; j0 < t.end; j0 += kBlock) {
    const int n = t.end - j0 < kBlock ? static_cast<int>(t.end - j0) : kBlock;
    int r0 = 0, r1 = t.rows;  // rows that see something of this block
    while (r0 < r1 && t.hi[r0] <= j0) ++r0;
    while (r0 < r1 && t.lo[r1 - 1] >= j0 + n) --r1;
    const int rows = r1 - r0;
    if (rows == 0) continue;
    const float* q = t.q + static_cast<ptrdiff_t>(r0) * ldq;
    float* const xr = x + r0 * kBlock;
    const Rows keys = float_rows(t.k_format, k + (j0 - t.first) * t.k_stride, t.k_stride, n, t.d, kf);
    if (rows > kDotRows) {
      transpose(keys, n, t.d, kt);
      const Rows columns = {reinterpret_cast<const unsigned char*>(kt), kBlock * 4};
      gemm<false>(rows, (n + 15) & ~15, t.d, q, ldq, columns, xr, kBlock);
    } else {
      int r = 0;
      for (; r + 2 <= rows; r += 2) dots<2>(q + r * ldq, ldq, keys, n, xr + r * kBlock);
      if (r < rows) dots<1>(q + r * ldq, ldq, keys, n, xr + r * kBlock);
    }
    const bool plain = t.softcap <= 0 && t.bias_format == BiasFormat::none && !t.key_bias;
    for (int r = r0; r < r1; ++r) {
      float* const row = x + r * kBlock;
      const int lo = clamp_index(t.lo[r] - j0, n), hi = clamp_index(t.hi[r] - j0, n);
      if (lo >= hi) {
        for (int c = 0; c < n; c += kLanes) vstore(row + c, vset(0.0f));
        continue;
      }
      if (!plain) finish_logits(t, r, j0, n, row);
      if (t.logits) __builtin_memcpy(t.logits + r * t.logits_ld + j0 + lo, row + lo, 4 * static_cast<size_t>(hi - lo));
      softmax_row(t, r, n, lo, hi, row);
    }
    const Rows values = float_rows(t.v_format, v + (j0 - t.first) * t.v_stride, t.v_stride, n, t.dv, vf);
    gemm<true>(rows, lda, n, xr, kBlock, values, t.acc + static_cast<ptrdiff_t>(r0) * lda, lda);
  }
}

void rotate(float* x, const float* cos, const float* sin, int64_t half, bool interleaved) {
  int64_t i = 0;
  if (!interleaved) {
    for (; i + kLanes <= half; i += kLanes) {
      const V a = vload(x + i), b = vload(x + half + i), c = vload(cos + i), s = vload(sin + i);
      vstore(x + i, vsub(vmul(a, c), vmul(b, s)));
      vstore(x + half + i, vadd(vmul(b, c), vmul(a, s)));
    }
  }
  const int64_t step = interleaved ? 2 : 1, other = interleaved ? 1 : half;
  for (; i < half; ++i) {
    const float a = x[i * step], b = x[i * step + other], c = cos[i], s = sin[i];
    x[i * step] = a * c - b * s;
    x[i * step + other] = b * c + a * s;
  }
}

void scale(const float* x, float a, const float* s, int64_t step, float* y, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    V v = vmul(vload(x + i), vset(a));
    if (s) v = vmul(v, step ? vload(s + i) : vset(s[0]));
    vstore(y + i, v);
  }
  for (; i < n; ++i) y[i] = s ? x[i] * a * s[i * step] : x[i] * a;
}

inline int round_even(float x) { return static_cast<int>(vfirst(vround(vset(x)))); }

// clamp(x / s) rounded to e4m3fn. Its values are multiples of 2^(e - 3), e the exponent, at least -6.
inline unsigned char f8_code(float x) {
  unsigned u;
  __builtin_memcpy(&u, &x, 4);
  const unsigned sign = (u >> 24) & 0x80, magnitude = u & 0x7fffffff;
  if (magnitude > 0x7f800000) return static_cast<unsigned char>(sign | 0x7f);
  if (magnitude >= 0x43e00000) return static_cast<unsigned char>(sign | 0x7e);  // 448 and above saturate
  int e = static_cast<int>(magnitude >> 23) - 127;
  if (e < -6) {
    float a;
    __builtin_memcpy(&a, &magnitude, 4);
    return static_cast<unsigned char>(sign | static_cast<unsigned>(round_even(a * 512.0f)));  // 8 is the smallest normal
  }
  const unsigned rounded = magnitude + 0x7ffff + ((magnitude >> 20) & 1);
  const unsigned code = (rounded >> 20) - (120u << 3);
  return static_cast<unsigned char>(sign | (code > 0x7e ? 0x7e : code));
}

void quantize(KvFormat f, const float* x, const float* s, int64_t step, void* codes, int64_t n) {
  unsigned char* const out = static_cast<unsigned char*>(codes);
  if (f == KvFormat::f8) {
    for (int64_t i = 0; i < n; ++i) out[i] = f8_code(x[i] / s[i * step]);
    return;
  }
  const float low = f == KvFormat::i8 ? -128.0f : -8.0f, high = f == KvFormat::i8 ? 127.0f : 7.0f;
  for (int64_t i = 0; i < n; i += kLanes) {
    float t[kLanes] = {}, d[kLanes];
    const int m = n - i < kLanes ? static_cast<int>(n - i) : kLanes;
    for (int c = 0; c < kLanes; ++c) d[c] = c < m ? s[(i + c) * step] : 1.0f;
    __builtin_memcpy(t, x + i, 4 * static_cast<size_t>(m));
    V v = vdiv(vload(t), vload(d));
    v = vround(vmin(vset(high), vmax(v, vset(low))));  // a NaN becomes `low`
    vstore(t, v);
    if (f == KvFormat::i8) {
      for (int c = 0; c < m; ++c) out[i + c] = static_cast<unsigned char>(static_cast<signed char>(t[c]));
    } else {
      for (int c = 0; c < m; c += 2) {
        const int u = static_cast<int>(t[c]) + 8, w = c + 1 < m ? static_cast<int>(t[c + 1]) + 8 : 8;
        out[(i + c) / 2] = static_cast<unsigned char>(u + 16 * w);
      }
    }
  }
}

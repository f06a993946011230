// SPDX-License-Identifier: Apache-2.0
// Float products over a vector type. Included once by each instruction set's file, inside its unnamed namespace, after its
// vector_*.h and:
//
//   kMr                           rows of the packed tile, two vectors wide: kMr * 2 sums + 3 registers
//   kDotRows                      rows of the tile of dot products, four columns wide
//   transpose(V rows[kLanes])
//
// Three loops:
//   few rows, W[N][K]   dot products over K, one vector sum for each output
//   few rows, B[K][N]   y += x[k] * B[k] over four or eight k at once, so that memory is read in long runs
//   many rows           panels of kKc x 2 vectors are widened and packed, then a register tile runs over them

constexpr int kKc = 256;          // panel: kKc * 2 * kLanes floats, half of a first-level cache
constexpr int64_t kMc = 512;      // rows of x that stay in the second-level cache while the panels of one kKc pass by
constexpr int kPanel = 2 * kLanes;

inline float get(const float* p) {
  float f;
  memcpy(&f, p, sizeof f);
  return f;
}
inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// --- few rows, W[N][K]

template <int D, int MR, int NR>
inline void dot_tile(const FloatMatrix& w, const float* x, int64_t ldx, int64_t n, const float* bias, float* y, int64_t ldy) {
  V acc[MR][NR];
#pragma GCC unroll 8
  for (int i = 0; i < MR; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < NR; ++j) acc[i][j] = zero();
  const int64_t base = n * w.stride_n;
  int64_t k = 0;
  for (; k + kLanes <= w.k; k += kLanes) {
    V xv[MR];
#pragma GCC unroll 8
    for (int i = 0; i < MR; ++i) xv[i] = load(x + i * ldx + k);
#pragma GCC unroll 8
    for (int j = 0; j < NR; ++j) {
      const V wv = load_as<D>(w.data, base + j * w.stride_n + k);
#pragma GCC unroll 8
      for (int i = 0; i < MR; ++i) acc[i][j] = fma(xv[i], wv, acc[i][j]);
    }
  }
  if (const int rest = static_cast<int>(w.k - k)) {
    for (int j = 0; j < NR; ++j) {
      const V wv = load_first_as<D>(w.data, base + j * w.stride_n + k, rest);
#pragma GCC unroll 8
      for (int i = 0; i < MR; ++i) acc[i][j] = fma(load_first(x + i * ldx + k, rest), wv, acc[i][j]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < MR; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < NR; ++j) y[i * ldy + n + j] = sum(acc[i][j]) + (bias ? get(bias + n + j) : 0.0f);
}

template <int D, int MR, int NR>
inline void dot_rows(const FloatMatrix& w, const float* x, int64_t ldx, int64_t n0, int64_t n1, const float* bias, float* y, int64_t ldy) {
  int64_t n = n0;
  for (; n + NR <= n1; n += NR) dot_tile<D, MR, NR>(w, x, ldx, n, bias, y, ldy);
  for (; n < n1; ++n) dot_tile<D, MR, 1>(w, x, ldx, n, bias, y, ldy);
}

template <int D>
void dots(const FloatMatrix& w, const float* x, int64_t ldx, int64_t m0, int64_t m1, int64_t n0, int64_t n1, const float* bias,
          float* y, int64_t ldy) {
  // Blocks of columns whose weights stay in the second-level cache for the next group of rows.
  const int64_t step = m1 - m0 > kDotRows ? 64 : n1 - n0;
  for (int64_t n = n0; n < n1; n += step) {
    const int64_t end = least(n + step, n1);
    int64_t i = m0;
    for (; i + kDotRows <= m1; i += kDotRows) dot_rows<D, kDotRows, 4>(w, x + i * ldx, ldx, n, end, bias, y + i * ldy, ldy);
    for (; i + 2 <= m1; i += 2) dot_rows<D, 2, 4>(w, x + i * ldx, ldx, n, end, bias, y + i * ldy, ldy);
    if (i < m1) dot_rows<D, 1, 8>(w, x + i * ldx, ldx, n, end, bias, y + i * ldy, ldy);
  }
}

// --- few rows, B[K][N]

// y_i += x_i[k + r] * B[k + r] for MR rows i and KR values r, columns [n0, n1).
template <int D, int MR, int KR>
inline void add_scaled_rows(const FloatMatrix& w, const float* x, int64_t ldx, int64_t k, int64_t n0, int64_t n1, float* y, int64_t ldy) {
  const int64_t base = k * w.stride_k;
  V xv[MR][KR];
#pragma GCC unroll 8
  for (int i = 0; i < MR; ++i)
#pragma GCC unroll 8
    for (int r = 0; r < KR; ++r) xv[i][r] = set1(get(x + i * ldx + k + r));
  int64_t n = n0;
  for (; n + kLanes <= n1; n += kLanes) {
    V wv[KR];
#pragma GCC unroll 8
    for (int r = 0; r < KR; ++r) wv[r] = load_as<D>(w.data, base + r * w.stride_k + n);
#pragma GCC unroll 8
    for (int i = 0; i < MR; ++i) {
      V acc = k == 0 ? zero() : load(y + i * ldy + n);
#pragma GCC unroll 8
      for (int r = 0; r < KR; ++r) acc = fma(xv[i][r], wv[r], acc);
      store(y + i * ldy + n, acc);
    }
  }
  if (const int rest = static_cast<int>(n1 - n)) {
#pragma GCC unroll 8
    for (int i = 0; i < MR; ++i) {
      V acc = k == 0 ? zero() : load_first(y + i * ldy + n, rest);
#pragma GCC unroll 8
      for (int r = 0; r < KR; ++r) acc = fma(xv[i][r], load_first_as<D>(w.data, base + r * w.stride_k + n, rest), acc);
      store_first(y + i * ldy + n, acc, rest);
    }
  }
}

// All rows over KR values of k: their weights come from memory for the first group and from the cache for the next.
template <int D, int KR>
inline void add_scaled(const FloatMatrix& w, const float* x, int64_t ldx, int64_t rows, int64_t k, int64_t n0, int64_t n1, float* y, int64_t ldy) {
  int64_t i = 0;
  for (; i + kDotRows <= rows; i += kDotRows) add_scaled_rows<D, kDotRows, KR>(w, x + i * ldx, ldx, k, n0, n1, y + i * ldy, ldy);
  for (; i + 2 <= rows; i += 2) add_scaled_rows<D, 2, KR>(w, x + i * ldx, ldx, k, n0, n1, y + i * ldy, ldy);
  if (i < rows) add_scaled_rows<D, 1, KR>(w, x + i * ldx, ldx, k, n0, n1, y + i * ldy, ldy);
}

template <int D>
void columns(const FloatMatrix& w, const float* x, int64_t ldx, int64_t m0, int64_t m1, int64_t n0, int64_t n1, const float* bias,
             float* y, int64_t ldy) {
  const int64_t rows = m1 - m0, width = rows == 1 ? 2048 : 1024;  // the sums of all rows stay in the first-level cache
  x += m0 * ldx;
  y += m0 * ldy;
  for (int64_t n = n0; n < n1; n += width) {
    const int64_t end = least(n + width, n1);
    int64_t k = 0;
    if (rows == 1)
      for (; k + 8 <= w.k; k += 8) add_scaled_rows<D, 1, 8>(w, x, ldx, k, n, end, y, ldy);
    for (; k + 4 <= w.k; k += 4) add_scaled<D, 4>(w, x, ldx, rows, k, n, end, y, ldy);
    for (; k < w.k; ++k) add_scaled<D, 1>(w, x, ldx, rows, k, n, end, y, ldy);
    if (bias)
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = n; j < end; ++j) y[i * ldy + j] += get(bias + j);
  }
}

// --- many rows

// panel[k][j] = weight (n + j, k0 + k), columns from `width` on zero.
template <int D>
void pack_panel(const FloatMatrix& w, int64_t n, int width, int64_t k0, int kc, float* panel) {
  if (w.stride_n == 1) {
    for (int k = 0; k < kc; ++k) {
      const int64_t row = (k0 + k) * w.stride_k + n;
      for (int h = 0; h < 2; ++h) {
        const int left = width - h * kLanes;
        store(panel + k * kPanel + h * kLanes, left >= kLanes ? load_as<D>(w.data, row + h * kLanes)
                                               : left > 0     ? load_first_as<D>(w.data, row + h * kLanes, left)
                                                              : zero());
      }
    }
    return;
  }
  for (int h = 0; h < 2; ++h) {
    const int rows = static_cast<int>(least(width - h * kLanes, kLanes));
    const int64_t base = (n + h * kLanes) * w.stride_n + k0;
    for (int k = 0; k < kc; k += kLanes) {
      const int depth = static_cast<int>(least(kLanes, kc - k));
      V t[kLanes];
      for (int r = 0; r < kLanes; ++r)
        t[r] = r >= rows         ? zero()
               : depth == kLanes ? load_as<D>(w.data, base + r * w.stride_n + k)
                                 : load_first_as<D>(w.data, base + r * w.stride_n + k, depth);
      transpose(t);
      for (int r = 0; r < depth; ++r) store(panel + (k + r) * kPanel + h * kLanes, t[r]);
    }
  }
}

// y tile (+)= x rows * panel; `fresh`: nothing in y yet; bias only with the last panel of a sum.
template <int MR>
void panel_tile(const float* panel, int kc, const float* x, int64_t ldx, float* y, int64_t ldy, int width, bool fresh, const float* bias) {
  V a0[MR], a1[MR];
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i) a0[i] = a1[i] = zero();
  for (int k = 0; k < kc; ++k) {
    const V b0 = load(panel + k * kPanel), b1 = load(panel + k * kPanel + kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i) {
      const V xv = set1(get(x + i * ldx + k));
      a0[i] = fma(xv, b0, a0[i]);
      a1[i] = fma(xv, b1, a1[i]);
    }
  }
  if (width == kPanel) {
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i) {
      float* out = y + i * ldy;
      V r0 = fresh ? a0[i] : add(load(out), a0[i]), r1 = fresh ? a1[i] : add(load(out + kLanes), a1[i]);
      if (bias) r0 = add(r0, load(bias)), r1 = add(r1, load(bias + kLanes));
      store(out, r0);
      store(out + kLanes, r1);
    }
    return;
  }
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i) {
    float spill[kPanel];
    float* out = y + i * ldy;
    store(spill, a0[i]);
    store(spill + kLanes, a1[i]);
    for (int j = 0; j < width; ++j) out[j] = (fresh ? spill[j] : out[j] + spill[j]) + (bias ? get(bias + j) : 0.0f);
  }
}

// A tile of fewer rows: only four heights are compiled, a larger one is a sum of them.
void panel_rows(const float* panel, int kc, const float* x, int64_t ldx, int64_t rows, float* y, int64_t ldy, int width, bool fresh,
                const float* bias) {
  int64_t i = 0;
  for (; i + kMr <= rows; i += kMr) panel_tile<kMr>(panel, kc, x + i * ldx, ldx, y + i * ldy, ldy, width, fresh, bias);
  for (; i + kMr / 2 <= rows; i += kMr / 2) panel_tile<kMr / 2>(panel, kc, x + i * ldx, ldx, y + i * ldy, ldy, width, fresh, bias);
  for (; i + 2 <= rows; i += 2) panel_tile<2>(panel, kc, x + i * ldx, ldx, y + i * ldy, ldy, width, fresh, bias);
  if (i < rows) panel_tile<1>(panel, kc, x + i * ldx, ldx, y + i * ldy, ldy, width, fresh, bias);
}

template <int D>
void packed(const FloatMatrix& w, const float* x, int64_t ldx, int64_t m0, int64_t m1, int64_t n0, int64_t n1, const float* bias,
            float* y, int64_t ldy, float* panel) {
  for (int64_t m = m0; m < m1; m += kMc) {
    const int64_t rows = least(kMc, m1 - m);
    for (int64_t k = 0; k < w.k; k += kKc) {
      const int kc = static_cast<int>(least(kKc, w.k - k));
      const bool last = k + kc == w.k;
      for (int64_t n = n0; n < n1; n += kPanel) {
        const int width = static_cast<int>(least(kPanel, n1 - n));
        pack_panel<D>(w, n, width, k, kc, panel);
        panel_rows(panel, kc, x + m * ldx + k, ldx, rows, y + m * ldy + n, ldy, width, k == 0, last && bias ? bias + n : nullptr);
      }
    }
  }
}

size_t scratch_bytes(int64_t m, int64_t, int64_t) { return m < kPackedRows ? 0 : sizeof(float) * kKc * kPanel; }

template <int D>
void multiply_as(const FloatMatrix& w, const float* x, int64_t ldx, int64_t m0, int64_t m1, int64_t n0, int64_t n1, const float* bias,
                 float* y, int64_t ldy, void* scratch) {
  if (m1 - m0 >= kPackedRows) packed<D>(w, x, ldx, m0, m1, n0, n1, bias, y, ldy, static_cast<float*>(scratch));
  else if (w.stride_k == 1) dots<D>(w, x, ldx, m0, m1, n0, n1, bias, y, ldy);
  else columns<D>(w, x, ldx, m0, m1, n0, n1, bias, y, ldy);
}

void multiply(const FloatMatrix& w, const float* x, int64_t ldx, int64_t m0, int64_t m1, int64_t n0, int64_t n1, const float* bias,
              float* y, int64_t ldy, void* scratch) {
  if (m0 >= m1 || n0 >= n1) return;
  if ((w.stride_n != 1 && w.stride_k != 1) || w.k == 0) kFloatGemmScalar.multiply(w, x, ldx, m0, m1, n0, n1, bias, y, ldy, scratch);
  else if (w.dtype == 1) multiply_as<1>(w, x, ldx, m0, m1, n0, n1, bias, y, ldy, scratch);
  else if (w.dtype == 10) multiply_as<10>(w, x, ldx, m0, m1, n0, n1, bias, y, ldy, scratch);
  else multiply_as<16>(w, x, ldx, m0, m1, n0, n1, bias, y, ldy, scratch);
}

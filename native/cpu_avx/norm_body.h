// SPDX-License-Identifier: Apache-2.0
// Normalisation over a vector type: pass 1 forms the float32 row and its sum or sum of squares with four accumulators, pass 2
// (layer normalisation only) the squared deviations, the last pass scales. Included like float_gemm_body.h.

// Calls step(i, u) for whole vectors, u the accumulator to use, and tail(i, n) for the rest.
template <class Step, class Tail>
inline void over_row(int64_t n, Step step, Tail tail) {
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    step(i, 0);
    step(i + kLanes, 1);
    step(i + 2 * kLanes, 2);
    step(i + 3 * kLanes, 3);
  }
  for (; i + kLanes <= n; i += kLanes) step(i, 0);
  if (i < n) tail(i, static_cast<int>(n - i));
}

inline float sum4(const V a[4]) { return sum(add(add(a[0], a[1]), add(a[2], a[3]))); }

// kAddends: 0 the row alone, 1 with skip, 2 with skip and bias.
template <int D, int kAddends>
void rows_as(const NormRows& a, int64_t r0, int64_t r1, float* temp) {
  const int64_t n = a.width;
  const float size = static_cast<float>(n);
  for (int64_t r = r0; r < r1; ++r) {
    const int64_t row = r * n, skip_row = kAddends ? r % a.skip_rows * n : 0;
    // A float32 row without addends is read in place.
    const bool stored = D != 1 || kAddends > 0;
    // One with them becomes the sum output where there is one.
    const bool in_sum = D == 1 && a.sum;
    float* const t = in_sum ? reinterpret_cast<float*>(static_cast<char*>(a.sum) + 4 * row) : temp;
    const float* s = stored || in_sum ? t : reinterpret_cast<const float*>(static_cast<const char*>(a.x) + 4 * row);
    const bool center = a.center;
    V acc[4] = {zero(), zero(), zero(), zero()};
    const auto form = [&](int64_t i) {
      V v = load_as<D>(a.x, row + i);
      if (kAddends > 0) v = add(v, load_as<D>(a.skip, skip_row + i));
      if (kAddends > 1) v = add(v, load_as<D>(a.bias, i));
      if (stored || in_sum) store(t + i, v);
      if (D != 1 && a.sum) store_as<D>(a.sum, row + i, v);
      return v;
    };
    const auto form_first = [&](int64_t i, int m) {
      V v = load_first_as<D>(a.x, row + i, m);
      if (kAddends > 0) v = add(v, load_first_as<D>(a.skip, skip_row + i, m));
      if (kAddends > 1) v = add(v, load_first_as<D>(a.bias, i, m));
      if (stored || in_sum) store_first(t + i, v, m);
      if (D != 1 && a.sum) store_first_as<D>(a.sum, row + i, v, m);
      return v;
    };
    float mean = 0, squares;
    if (center) {
      over_row(n, [&](int64_t i, int u) { acc[u] = add(acc[u], form(i)); }, [&](int64_t i, int m) { acc[1] = add(acc[1], form_first(i, m)); });
      mean = sum4(acc) / size;
      for (V& v : acc) v = zero();
      const V mv = set1(mean);
      over_row(
          n,
          [&](int64_t i, int u) {
            const V v = sub(load(s + i), mv);
            acc[u] = fma(v, v, acc[u]);
          },
          [&](int64_t i, int m) {
            float part[kLanes] = {};
            store(part, sub(load_first(s + i, m), mv));
            const V v = load_first(part, m);
            acc[1] = fma(v, v, acc[1]);
          });
      squares = sum4(acc);
    } else {
      over_row(
          n,
          [&](int64_t i, int u) {
            const V v = form(i);
            acc[u] = fma(v, v, acc[u]);
          },
          [&](int64_t i, int m) {
            const V v = form_first(i, m);
            acc[1] = fma(v, v, acc[1]);
          });
      squares = sum4(acc);
    }
    const float inverse = 1.0f / __builtin_sqrtf(squares / size + a.epsilon);
    const V scale = set1(inverse), mv = set1(mean);
    if (!center) {
      over_row(
          n, [&](int64_t i, int) { store_as<D>(a.y, row + i, mul(mul(load(s + i), scale), load_as<D>(a.gamma, i))); },
          [&](int64_t i, int m) {
            store_first_as<D>(a.y, row + i, mul(mul(load_first(s + i, m), scale), load_first_as<D>(a.gamma, i, m)), m);
          });
    } else {
      over_row(
          n,
          [&](int64_t i, int) {
            V v = mul(mul(sub(load(s + i), mv), scale), load_as<D>(a.gamma, i));
            if (a.beta) v = add(v, load_as<D>(a.beta, i));
            store_as<D>(a.y, row + i, v);
          },
          [&](int64_t i, int m) {
            V v = mul(mul(sub(load_first(s + i, m), mv), scale), load_first_as<D>(a.gamma, i, m));
            if (a.beta) v = add(v, load_first_as<D>(a.beta, i, m));
            store_first_as<D>(a.y, row + i, v, m);
          });
    }
    if (a.mean) a.mean[r] = mean;
    if (a.inverse) a.inverse[r] = inverse;
  }
}

template <int D>
void rows_of(const NormRows& a, int64_t r0, int64_t r1, float* temp) {
  if (a.beta && !a.center) return norm_rows_scalar(a, r0, r1, temp);  // no operator has it
  if (!a.skip) rows_as<D, 0>(a, r0, r1, temp);
  else if (!a.bias) rows_as<D, 1>(a, r0, r1, temp);
  else rows_as<D, 2>(a, r0, r1, temp);
}

void rows_of_any(const NormRows& a, int64_t r0, int64_t r1, float* temp) {
  if (a.dtype == 1) rows_of<1>(a, r0, r1, temp);
  else if (a.dtype == 10) rows_of<10>(a, r0, r1, temp);
  else rows_of<16>(a, r0, r1, temp);
}

// SPDX-License-Identifier: Apache-2.0
// The expert layer against plain loops in double: every storage, few and many rows, workspaces of exactly the size asked for.
#include "experts/expert_layer.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "experts/weight_staging.h"

using namespace hotset;
using namespace hotset::experts;

namespace {

std::mt19937 rng(11);
int failures = 0;

float uniform(float low, float high) { return std::uniform_real_distribution<float>(low, high)(rng); }

// Heap memory of exactly `bytes`, so that a sanitizer sees one byte too many.
struct Free {
  void operator()(void* p) const { std::free(p); }
};
using Block = std::unique_ptr<uint8_t[], Free>;
Block allocate(size_t bytes) {
  const size_t rounded = (bytes + 63) / 64 * 64;
  return Block(static_cast<uint8_t*>(std::aligned_alloc(64, rounded ? rounded : 64)));
}

// One random matrix of each expert, and its values by an identity product per row: the product itself is tested elsewhere.
struct Matrices {
  MatrixForm form;
  std::vector<std::vector<uint8_t>> weights, scales, zero_points, bias;
  std::vector<std::vector<double>> values;  // [n][k]

  MatrixBytes at(size_t e) const {
    MatrixBytes b{weights[e].data(), scales[e].data(), zero_points[e].data(), bias[e].data()};
    b.global_scale = 0.5f + 0.25f * static_cast<float>(e);
    return b;
  }
  double bias_at(size_t e, int64_t n) const {
    float f = 0;
    if (form.bias_dtype != DType::undefined) std::memcpy(&f, bias[e].data() + n * 4, 4);
    return f;
  }
};

MatrixForm make_form(Storage storage, int bits, int64_t n, int64_t k, int64_t block, ZeroPoints zeros, bool bias) {
  MatrixForm f;
  f.storage = storage;
  f.bits = bits;
  f.n = n;
  f.k = k;
  f.block = block;
  if (storage == Storage::fp8) f.scale_rows = block;
  f.row_bytes = stream_bytes(k, bits);
  f.zero_points = zeros;
  f.dtype = storage == Storage::fp4_by_k || storage == Storage::fp4_by_n ? DType::f8e4m3fn : DType::f32;
  if (bias) f.bias_dtype = DType::f32;
  return f;
}

Matrices random_matrices(const MatrixForm& form, int64_t n_experts) {
  Matrices m;
  m.form = form;
  const float size = 1 / std::sqrt(static_cast<float>(form.k));
  for (int64_t e = 0; e < n_experts; ++e) {
    const auto bytes = [](size_t n) {
      std::vector<uint8_t> v(n);
      for (uint8_t& b : v) b = static_cast<uint8_t>(rng());
      return v;
    };
    const auto floats = [](size_t n_bytes, float scale) {
      std::vector<uint8_t> v(n_bytes);
      for (size_t i = 0; i < n_bytes; i += 4) {
        const float f = uniform(-scale, scale);
        std::memcpy(&v[i], &f, 4);
      }
      return v;
    };
    m.weights.push_back(form.storage == Storage::dense ? floats(form.weight_bytes(), size) : bytes(form.weight_bytes()));
    if (form.storage == Storage::fp8)
      for (uint8_t& b : m.weights.back()) b &= 0xbf;  // below 2 and never NaN
    m.scales.push_back(form.is_fp4() ? bytes(form.scale_bytes()) : floats(form.scale_bytes(), size));
    if (form.is_fp4())
      for (uint8_t& b : m.scales.back()) b = static_cast<uint8_t>(0x18 + b % 16);  // 2^-4 ... 2^-2
    m.zero_points.push_back(bytes(form.zero_point_bytes()));
    m.bias.push_back(floats(form.bias_bytes(), 0.5f));
  }
  // Row r of the identity selects column r of W.
  MatrixForm plain = form;
  plain.bias_dtype = DType::undefined;
  const WeightMatrix product(plain, false);
  std::vector<float> one(static_cast<size_t>(form.k)), column(static_cast<size_t>(form.n));
  const Block prepared = allocate(product.prepared_bytes(1)), scratch = allocate(product.scratch_bytes(1, form.n));
  for (int64_t e = 0; e < n_experts; ++e) {
    std::vector<double> values(static_cast<size_t>(form.n * form.k));
    for (int64_t r = 0; r < form.k; ++r) {
      one.assign(one.size(), 0);
      one[static_cast<size_t>(r)] = 1;
      product.prepare(one.data(), form.k, 1, 0, 1, prepared.get());
      product.multiply(m.at(static_cast<size_t>(e)), prepared.get(), 1, 0, 1, 0, form.n, column.data(), form.n, scratch.get());
      for (int64_t n = 0; n < form.n; ++n) values[static_cast<size_t>(n * form.k + r)] = column[static_cast<size_t>(n)];
    }
    m.values.push_back(std::move(values));
  }
  return m;
}

std::vector<double> product(const Matrices& m, size_t e, const std::vector<double>& x) {
  std::vector<double> y(static_cast<size_t>(m.form.n));
  for (int64_t n = 0; n < m.form.n; ++n) {
    double sum = m.bias_at(e, n);
    for (int64_t k = 0; k < m.form.k; ++k) sum += x[static_cast<size_t>(k)] * m.values[e][static_cast<size_t>(n * m.form.k + k)];
    y[static_cast<size_t>(n)] = sum;
  }
  return y;
}

struct Case {
  const char* name;
  Storage storage;
  int bits;
  int64_t block;
  ZeroPoints zeros;
  int64_t hidden, inter;
};

enum class Routes { any, one_expert, dropped };

void check(const Case& c, Pairing pairing, int64_t n_tokens, int n_threads, Routes routes) {
  ExpertLayer layer;
  layer.hidden = c.hidden;
  layer.inter = c.inter;
  layer.n_experts = 5;
  layer.k = 3;
  layer.pairing = pairing;
  layer.activation.kind = pairing == Pairing::none ? ActivationKind::silu : ActivationKind::swiglu;
  const int64_t rows = pairing == Pairing::interleaved || pairing == Pairing::halves ? 2 : 1;
  Matrices fc1 = random_matrices(make_form(c.storage, c.bits, rows * c.inter, c.hidden, c.block, c.zeros, true), layer.n_experts);
  Matrices fc2 = random_matrices(make_form(c.storage, c.bits, c.hidden, c.inter, c.block, c.zeros, true), layer.n_experts);
  Matrices fc3;
  layer.fc1 = WeightMatrix(fc1.form, false);
  MatrixForm without_bias = fc2.form;
  without_bias.bias_dtype = DType::undefined;
  layer.fc2 = WeightMatrix(without_bias, false);
  layer.fc2_bias = DType::f32;
  if (pairing == Pairing::separate) {
    fc3 = random_matrices(make_form(c.storage, c.bits, c.inter, c.hidden, c.block, c.zeros, true), layer.n_experts);
    layer.fc3 = WeightMatrix(fc3.form, false);
  }
  std::vector<ExpertBytes> experts(static_cast<size_t>(layer.n_experts));
  for (size_t e = 0; e < experts.size(); ++e) experts[e] = {fc1.at(e), fc2.at(e), pairing == Pairing::separate ? fc3.at(e) : MatrixBytes()};

  const size_t n = static_cast<size_t>(n_tokens * c.hidden);
  const Block x = allocate(n * 4), y = allocate(n * 4), workspace = allocate(expert_layer_workspace(layer, n_tokens, n_threads));
  float* const xs = reinterpret_cast<float*>(x.get());
  for (size_t i = 0; i < n; ++i) xs[i] = uniform(-1, 1);
  std::vector<int32_t> ids;
  std::vector<float> weights;
  for (int64_t t = 0; t < n_tokens; ++t) {
    const int32_t first = routes == Routes::one_expert ? 1 : static_cast<int32_t>(rng() % 5);
    for (int32_t j = 0; j < 3; ++j) {
      const bool is_dropped = routes == Routes::dropped && (t % 4 == 3 || rng() % 2);
      ids.push_back(is_dropped ? -1 : (first + j) % 5);
      weights.push_back(is_dropped ? NAN : uniform(0, 1));
    }
  }
  ThreadPool pool(n_threads);
  run_expert_layer(layer, {x.get(), y.get(), n_tokens, ids.data(), weights.data(), experts.data(), workspace.get(), &pool});

  double error = 0, largest = 1e-3;
  const float* const ys = reinterpret_cast<const float*>(y.get());
  for (int64_t t = 0; t < n_tokens; t += n_tokens > 20 ? 29 : 1) {
    std::vector<double> token(xs + t * c.hidden, xs + (t + 1) * c.hidden), total(static_cast<size_t>(c.hidden));
    for (size_t j = 0; j < 3; ++j) {
      const size_t route = static_cast<size_t>(t) * 3 + j, e = static_cast<size_t>(ids[route]);
      if (ids[route] < 0) continue;
      const std::vector<double> a = product(fc1, e, token);
      const std::vector<double> b = pairing == Pairing::separate ? product(fc3, e, token) : std::vector<double>();
      std::vector<double> h(static_cast<size_t>(c.inter));
      for (size_t i = 0; i < h.size(); ++i) {
        const double gate = pairing == Pairing::interleaved ? a[2 * i] : a[i];
        const double value = pairing == Pairing::interleaved ? a[2 * i + 1]
                             : pairing == Pairing::halves    ? a[h.size() + i]
                             : pairing == Pairing::separate  ? b[i]
                                                             : 1;
        h[i] = gate / (1 + std::exp(-gate)) * value;
      }
      const std::vector<double> row = product(fc2, e, h);
      for (size_t i = 0; i < total.size(); ++i) total[i] += weights[route] * row[i];
    }
    for (size_t i = 0; i < total.size(); ++i) {
      error = std::fmax(error, std::fabs(total[i] - ys[static_cast<size_t>(t * c.hidden) + i]));
      largest = std::fmax(largest, std::fabs(total[i]));
    }
  }
  if (!(error <= 1e-5 * largest)) {
    std::printf("%s pairing %d tokens %d threads %d: error %g of %g\n", c.name, static_cast<int>(pairing), static_cast<int>(n_tokens),
                n_threads, error, largest);
    ++failures;
  }
}

// What lets buffers of rows be laid one after another before their counts are known.
void check_prepared_bytes() {
  for (int int8 = 0; int8 < 2; ++int8) {
    for (int64_t k : {1, 16, 33, 256, 2880}) {
      const WeightMatrix w(make_form(Storage::raw, 4, 16, k, 32, ZeroPoints::middle, false), int8);
      for (int64_t m = 1; m < 40; ++m) {
        if (w.prepared_bytes(m) <= static_cast<size_t>(m) * w.prepared_bytes(1)) continue;
        std::printf("prepared_bytes: %d rows of %d need more than as many single rows\n", static_cast<int>(m), static_cast<int>(k));
        ++failures;
        break;
      }
    }
  }
}

}  // namespace

int main() {
  const Case cases[] = {
      {"dense", Storage::dense, 0, 0, ZeroPoints::middle, 37, 21},
      {"int4", Storage::raw, 4, 32, ZeroPoints::middle, 96, 48},
      {"int4 odd", Storage::raw, 4, 16, ZeroPoints::packed, 50, 34},
      {"int4 rows", Storage::raw, 4, 1 << 20, ZeroPoints::along_n, 48, 35},
      {"int2 rows", Storage::raw, 2, 1 << 20, ZeroPoints::along_n, 45, 33},
      {"int3 rows", Storage::raw, 3, 1 << 20, ZeroPoints::along_n, 48, 24},
      {"int4 bytes", Storage::raw, 4, 16, ZeroPoints::bytes, 80, 48},
      {"int2", Storage::raw, 2, 32, ZeroPoints::packed, 68, 36},
      {"int3", Storage::raw, 3, 32, ZeroPoints::packed, 72, 40},
      {"int8", Storage::raw, 8, 64, ZeroPoints::middle, 70, 33},
      {"sm80 int4", Storage::sm80, 4, 32, ZeroPoints::middle, 128, 64},
      {"sm80 int8", Storage::sm80, 8, 64, ZeroPoints::packed, 64, 192},
      {"fp4 by k", Storage::fp4_by_k, 0, 16, ZeroPoints::middle, 80, 48},
      {"fp4 by n", Storage::fp4_by_n, 0, 16, ZeroPoints::middle, 80, 48},
      {"fp8", Storage::fp8, 0, 16, ZeroPoints::middle, 50, 35},
  };
  for (const Case& c : cases) {
    for (Pairing pairing : {Pairing::interleaved, Pairing::halves, Pairing::separate, Pairing::none})
      for (int64_t n_tokens : {1, 5, 43}) check(c, pairing, n_tokens, 2, Routes::any);
    check(c, Pairing::interleaved, 300, 3, Routes::one_expert);
    for (int64_t n_tokens : {1, 1, 1, 1, 1, 1, 4, 5, 43, 130}) check(c, Pairing::interleaved, n_tokens, 2, Routes::dropped);
  }
  check_prepared_bytes();
  return failures != 0;
}

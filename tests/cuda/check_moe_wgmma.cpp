// SPDX-License-Identifier: Apache-2.0
// The grouped int4 products of sm_90a against float64 sums of the same rounded weights: random shapes, ragged experts, zero points,
// separate and interleaved value rows. --bench: rates at the shapes of real models.
//
// usage: check_moe_wgmma [SEED] [--bench]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "cuda/fatbins.h"
#include "cuda/moe_wgmma.h"

using namespace hotset;
using namespace hotset::cuda;

namespace {

std::mt19937_64 random_bits;
int failures = 0;

int between(int low, int high) { return low + static_cast<int>(random_bits() % static_cast<uint64_t>(high - low + 1)); }
float uniform(float low, float high) { return low + (high - low) * static_cast<float>(random_bits() >> 40) / 16777216.0f; }

void must(Status status) {
  if (status.ok()) return;
  std::printf("%s\n", status.text().c_str());
  std::exit(2);
}

template <class T>
T must(hotset::Result<T> result) {
  if (!result.ok()) must(result.take_status());
  return std::move(result.value());
}

struct Bench {
  std::shared_ptr<Gpu> gpu;
  OwnStream stream;
  std::vector<DeviceMemory> held;

  void* put(const void* from, size_t bytes) {
    held.push_back(must(DeviceMemory::take(gpu, bytes + 256, Purpose::values, "test")));
    const Current current(*gpu);
    if (from)
      must(gpu->check(driver().memcpy_htod_async(held.back().address(), from, bytes, stream.get()), "copy"));
    else
      must(gpu->check(driver().memset_d8_async(held.back().address(), 0xff, bytes + 256, stream.get()), "fill"));
    must(stream.synchronize());
    return held.back().data();
  }
  template <class T>
  const T* put(const std::vector<T>& v) {
    return static_cast<const T*>(put(v.data(), v.size() * sizeof(T)));
  }
  std::vector<uint16_t> get(const void* p, size_t n) {
    std::vector<uint16_t> v(n);
    const Current current(*gpu);
    must(gpu->check(driver().memcpy_dtoh_async(v.data(), reinterpret_cast<DevicePtr>(p), n * 2, stream.get()), "copy"));
    must(stream.synchronize());
    return v;
  }
};

struct Half {
  DType type;
  uint16_t from(float f) const { return type == DType::f16 ? f32_to_f16(f) : f32_to_bf16(f); }
  float to(uint16_t h) const { return type == DType::f16 ? f16_to_f32(h) : bf16_to_f32(h); }
  float round(float f) const { return to(from(f)); }
};

// One matrix of every expert, on the host and as tables on the device.
struct Bank {
  int n, k, block, blocks, experts;
  std::vector<uint8_t> codes, zeros;
  std::vector<uint16_t> scales, biases;
  const uint64_t *weight_table, *scale_table, *zero_table, *bias_table;

  Bank(Bench& device, Half half, int experts_, int n_, int k_, int block_, bool with_zeros, bool with_bias)
      : n(n_), k(k_), block(block_), blocks((k_ + block_ - 1) / block_), experts(experts_) {
    const size_t rows = static_cast<size_t>(experts) * n;
    codes.resize(rows * k / 2);
    for (uint8_t& c : codes) c = static_cast<uint8_t>(random_bits());
    scales.resize(rows * blocks);
    for (uint16_t& s : scales) s = half.from(uniform(0.5f, 1.5f) * (random_bits() & 1 ? 0.1f : -0.1f) / std::sqrt(static_cast<float>(k)));
    if (with_zeros) zeros.resize(rows * ((blocks + 1) / 2));
    for (uint8_t& z : zeros) z = static_cast<uint8_t>(random_bits());
    if (with_bias) biases.resize(rows);
    for (uint16_t& b : biases) b = half.from(uniform(-1, 1));
    weight_table = table(device, device.put(codes), codes.size());
    scale_table = table(device, device.put(scales), scales.size() * 2);
    zero_table = zeros.empty() ? nullptr : table(device, device.put(zeros), zeros.size());
    bias_table = biases.empty() ? nullptr : table(device, device.put(biases), biases.size() * 2);
  }
  const uint64_t* table(Bench& device, const void* base, size_t bytes) const {
    std::vector<uint64_t> addresses;
    for (int e = 0; e < experts; ++e)
      addresses.push_back(reinterpret_cast<uint64_t>(base) + bytes / static_cast<size_t>(experts) * static_cast<size_t>(e));
    return device.put(addresses);
  }
  double weight(Half half, int e, int row, int column) const {
    const size_t r = static_cast<size_t>(e) * n + row;
    const int code = codes[r * k / 2 + column / 2] >> (column & 1) * 4 & 15;
    const int b = column / block;
    const int zero = zeros.empty() ? 8 : zeros[r * ((blocks + 1) / 2) + b / 2] >> (b & 1) * 4 & 15;
    return half.round(static_cast<float>(code - zero) * half.to(scales[r * blocks + b]));
  }
  double bias(Half half, int e, int row) const { return biases.empty() ? 0 : half.to(biases[static_cast<size_t>(e) * n + row]); }
};

void fill(MoeWgmmaParams& p, const Bank& bank, int n, int out_columns) {
  p.weights = bank.weight_table;
  p.scales = bank.scale_table;
  p.zeros = bank.zero_table;
  p.biases = bank.bias_table;
  p.experts = bank.experts;
  p.n = n;
  p.k = bank.k;
  p.blocks = bank.blocks;
  p.block_shift = 0;
  while ((1 << p.block_shift) < bank.block) ++p.block_shift;
  p.out_columns = out_columns;
  p.row_step = 1;
  p.alpha = 1;
  p.limit = INFINITY;
}

std::vector<int32_t> ragged(int experts, int rows) {
  std::vector<int32_t> offsets{0};
  std::vector<int> cuts;
  for (int e = 1; e < experts; ++e) cuts.push_back(between(0, rows));
  std::sort(cuts.begin(), cuts.end());
  for (int c : cuts) offsets.push_back(c);
  offsets.push_back(rows);
  return offsets;
}

int expert_of(const std::vector<int32_t>& offsets, int row) {
  return static_cast<int>(std::upper_bound(offsets.begin(), offsets.end(), row) - offsets.begin()) - 1;
}

void compare(const char* what, double got, double expected, double bound, int row, int column) {
  if (std::abs(got - expected) <= bound) return;
  if (failures++ < 200) std::printf("FAIL %s row %d column %d: %g, expected %g +- %g\n", what, row, column, got, expected, bound);
}

void check_problem(Bench& device, int round) {
  const Half half{round & 1 ? DType::f16 : DType::bf16};
  const double unit = half.type == DType::f16 ? 0x1p-11 : 0x1p-8;
  const int experts = between(1, 9), k = 32 * between(1, 14), inter = 32 * between(1, 10), tokens = between(1, 500);
  const int routes = between(1, 900);
  const int form = between(0, 2);  // interleaved, halves, separate value rows
  const int blocks[] = {32, 64, 128, 1 << 20};
  const auto pick = [&](int size) {
    int block = blocks[between(0, 3)];
    return size % std::min(block, size) ? 32 : block;
  };
  const int block1 = pick(k), block2 = pick(inter);
  const bool zeros = between(0, 1), biased = between(0, 1);
  const int out = 8 * between(1, 40);
  std::printf("%s experts %d k %d inter %d out %d routes %d form %d blocks %d %d zeros %d bias %d\n", dtype_name(half.type), experts, k,
              inter, out, routes, form, block1, block2, zeros, biased);
  const Bank fc1(device, half, experts, form == 2 ? inter : 2 * inter, k, block1, zeros, biased);
  const Bank fc3(device, half, form == 2 ? experts : 1, inter, k, block1, zeros, biased);
  const Bank fc2(device, half, experts, out, inter, block2, zeros, false);
  std::vector<uint16_t> x(static_cast<size_t>(tokens) * k);
  for (uint16_t& v : x) v = half.from(uniform(-2, 2));
  std::vector<int32_t> sorted(routes), offsets = ragged(experts, routes);
  for (int32_t& t : sorted) t = between(0, tokens - 1);
  const auto* dx = device.put(x);
  const auto* dsorted = device.put(sorted);
  const auto* doffsets = device.put(offsets);
  const int64_t kp = chunk_columns(k), ip = chunk_columns(inter);
  void* gathered = device.put(nullptr, static_cast<size_t>(routes * kp) * 2);
  void* h = device.put(nullptr, static_cast<size_t>(routes * ip) * 2);
  void* y = device.put(nullptr, static_cast<size_t>(routes) * out * 2);
  MoeWgmmaParams p{}, q{};
  fill(p, fc1, inter, static_cast<int>(ip));
  p.offsets = q.offsets = doffsets;
  p.out = h;
  if (form == 0) p.row_step = 2, p.value_row = 1;
  if (form == 1) p.value_row = inter;
  if (form == 2)
    p.value_weights = fc3.weight_table, p.value_scales = fc3.scale_table, p.value_zeros = fc3.zero_table, p.value_biases = fc3.bias_table;
  if (between(0, 1)) p.alpha = 1.702f, p.beta = 1, p.limit = 7, p.limit_after = between(0, 1);
  fill(q, fc2, out, out);
  q.offsets = doffsets;
  q.biases = nullptr;
  q.out = y;
  const Current current(*device.gpu);
  must(moe_gather_chunks(*device.gpu, device.stream.get(), dx, dsorted, routes, k, gathered));
  must(moe_wgmma(*device.gpu, device.stream.get(), half.type, true, p, gathered, routes));
  must(moe_wgmma(*device.gpu, device.stream.get(), half.type, false, q, h, routes));
  must(device.stream.synchronize());
  const auto got_h = device.get(h, static_cast<size_t>(routes * ip) + 64), got_y = device.get(y, static_cast<size_t>(routes) * out + 64);
  for (int i = 0; i < 64; ++i)
    if (got_h[static_cast<size_t>(routes * ip) + i] != 0xffff || got_y[static_cast<size_t>(routes) * out + i] != 0xffff)
      compare("guard", 1, 0, 0, i, 0);
  // A sample of rows; every column of them.
  for (int sample = 0; sample < 12; ++sample) {
    const int row = sample == 0 ? 0 : sample == 1 ? routes - 1 : between(0, routes - 1);
    const int e = expert_of(offsets, row);
    std::vector<double> hidden(static_cast<size_t>(ip));
    for (int at = 0; at < ip; ++at) {
      const int i = (at & ~127) + chunk_column(at & 127);
      const double seen = half.to(got_h[static_cast<size_t>(row * ip + at)]);
      hidden[static_cast<size_t>(i)] = seen;
      if (i >= inter) {
        compare("padding", seen, 0, 0, row, i);
        continue;
      }
      const int gate_row = form == 0 ? 2 * i : i, value_row = form == 0 ? 2 * i + 1 : form == 1 ? inter + i : i;
      const Bank& values = form == 2 ? fc3 : fc1;
      double gate = 0, value = 0, size = 0;
      for (int c = 0; c < k; ++c) {
        const double v = half.to(x[static_cast<size_t>(sorted[row]) * k + c]);
        gate += v * fc1.weight(half, e, gate_row, c);
        value += v * values.weight(half, e, value_row, c);
        size += std::abs(v * fc1.weight(half, e, gate_row, c)) + std::abs(v * values.weight(half, e, value_row, c));
      }
      const double rounding = unit * (std::abs(gate) + std::abs(value));  // of the two sums, before their biases
      gate += fc1.bias(half, e, gate_row);
      value += values.bias(half, e, value_row);
      const auto swiglu = [&](double g, double l) {
        if (!p.limit_after) g = std::min<double>(g, p.limit);
        g = g / (1 + std::exp(-p.alpha * g));
        if (p.limit_after) g = std::min<double>(g, p.limit);
        return g * (std::clamp<double>(l, -p.limit, p.limit) + p.beta);
      };
      const double expected = swiglu(gate, value);
      const double slip = size * 0x1p-20 + rounding;
      const double bound = 1.01 * unit * std::abs(expected) + 1e-5 + 1.8 * slip * (1 + std::abs(gate) + std::abs(value) + p.beta);
      compare("hidden", seen, expected, bound, row, i);
    }
    for (int n = 0; n < out; ++n) {
      double sum = 0, size = 0;
      for (int i = 0; i < inter; ++i) {
        const double product = hidden[static_cast<size_t>(i)] * fc2.weight(half, e, n, i);
        sum += product;
        size += std::abs(product);
      }
      compare("out", half.to(got_y[static_cast<size_t>(row) * out + n]), sum, 1.01 * unit * std::abs(sum) + size * 0x1p-20 + 1e-7, row, n);
    }
  }
  std::printf("  %d failures so far\n", failures);
  device.held.clear();
}

// Rates of useful operations, of a layer whose experts lie on the device once.
void bench(Bench& device, const char* name, int hidden, int inter, int experts, int k, int tokens, bool skewed) {
  const Half half{DType::bf16};
  const Bank fc1(device, half, experts, 2 * inter, hidden, 32, false, true), fc2(device, half, experts, hidden, inter, 32, false, false);
  const int routes = tokens * k;
  std::vector<double> share(static_cast<size_t>(experts));
  for (int e = 0; e < experts; ++e) share[static_cast<size_t>(e)] = skewed ? 1 / std::pow(e + 1.0, 0.8) : 1;
  std::discrete_distribution<int> draw(share.begin(), share.end());
  std::vector<int> count(static_cast<size_t>(experts), 0);
  for (int r = 0; r < routes; ++r) ++count[static_cast<size_t>(draw(random_bits))];
  std::vector<int32_t> offsets{0}, sorted(static_cast<size_t>(routes));
  for (int c : count) offsets.push_back(offsets.back() + c);
  for (int32_t& t : sorted) t = between(0, tokens - 1);
  std::vector<uint16_t> x(static_cast<size_t>(tokens) * static_cast<size_t>(hidden));
  for (uint16_t& v : x) v = half.from(uniform(-2, 2));
  const auto* dx = device.put(x);
  const auto* dsorted = device.put(sorted);
  const auto* doffsets = device.put(offsets);
  const int64_t kp = chunk_columns(hidden), ip = chunk_columns(inter);
  void* gathered = device.put(nullptr, static_cast<size_t>(routes * kp) * 2);
  void* h = device.put(nullptr, static_cast<size_t>(routes * ip) * 2);
  void* y = device.put(nullptr, static_cast<size_t>(routes) * static_cast<size_t>(hidden) * 2);
  MoeWgmmaParams p{}, q{};
  fill(p, fc1, inter, static_cast<int>(ip));
  p.row_step = 2, p.value_row = 1, p.out = h;
  fill(q, fc2, hidden, hidden);
  q.out = y;
  p.offsets = q.offsets = doffsets;
  const Driver& d = driver();
  const Current current(*device.gpu);
  Event events[4];
  for (Event& e : events) must(device.gpu->check(d.event_create(&e, 0), "event"));
  std::vector<float> times[3];
  for (int i = 0; i < 12; ++i) {
    const auto mark = [&](int e) { must(device.gpu->check(d.event_record(events[e], device.stream.get()), "record")); };
    mark(0);
    must(moe_gather_chunks(*device.gpu, device.stream.get(), dx, dsorted, routes, hidden, gathered));
    mark(1);
    must(moe_wgmma(*device.gpu, device.stream.get(), half.type, true, p, gathered, routes));
    mark(2);
    must(moe_wgmma(*device.gpu, device.stream.get(), half.type, false, q, h, routes));
    mark(3);
    must(device.stream.synchronize());
    for (int t = 0; t < 3 && i >= 2; ++t) {
      float ms = 0;
      must(device.gpu->check(d.event_elapsed_time(&ms, events[t], events[t + 1]), "elapsed"));
      times[t].push_back(ms);
    }
  }
  for (Event e : events) d.event_destroy(e);
  float median[3];
  for (int t = 0; t < 3; ++t) {
    std::sort(times[t].begin(), times[t].end());
    median[t] = times[t][times[t].size() / 2];
  }
  const double flops1 = 2.0 * routes * hidden * 2 * inter, flops2 = 2.0 * routes * hidden * inter;
  std::printf(
      "{\"shape\": \"%s\", \"rows\": %d, \"skewed\": %d, \"gather_ms\": %.4f, \"fc1_ms\": %.4f, \"fc2_ms\": %.4f, \"fc1_tflops\": %.0f, "
      "\"fc2_tflops\": %.0f, \"tflops\": %.0f}\n",
      name, tokens, skewed, median[0], median[1], median[2], flops1 / median[1] / 1e9, flops2 / median[2] / 1e9,
      (flops1 + flops2) / (median[0] + median[1] + median[2]) / 1e9);
  device.held.clear();
}

}  // namespace

int main(int argc, char** argv) {
  uint64_t seed = std::random_device{}();
  bool timing = false;
  for (int i = 1; i < argc; ++i) {
    if (!std::strcmp(argv[i], "--bench"))
      timing = true;
    else
      seed = std::strtoull(argv[i], nullptr, 10);
  }
  random_bits.seed(seed);
  int n = 0;
  std::string note;
  if (!device_count(&n, &note) || !find_fatbin("moe_wgmma")) {
    std::printf("%s\n", n ? "built without device code" : note.c_str());
    return 77;
  }
  Bench device;
  device.gpu = must(Gpu::open(0));
  if (!moe_wgmma_takes(device.gpu->limits(), DType::f16, 64, 64, 32, 8)) {
    std::printf("%s has no wgmma\n", device.gpu->info().name.c_str());
    return 77;
  }
  device.stream = must(OwnStream::make(device.gpu));
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  for (int round = 0; round < 24; ++round) check_problem(device, round);
  std::printf("%d failures\n", failures);
  if (timing && !failures) {
    for (const bool skewed : {false, true}) {
      bench(device, "qwen3-30b-a3b", 2048, 768, 128, 8, 4096, skewed);
      bench(device, "gpt-oss-120b", 2880, 2880, 128, 4, 4096, skewed);
      bench(device, "mixtral-8x7b", 4096, 14336, 8, 2, 4096, skewed);
    }
  }
  return failures ? 1 : 0;
}

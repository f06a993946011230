// SPDX-License-Identifier: Apache-2.0
// The best logits on the device against a sort on the host and against the sampler's greedy choice. --bench: microseconds.
#include "cuda/sample.h"

#include "device_arrays.h"
#include "session/device_sampler.h"

using namespace device_check;

namespace {

constexpr DType kFloats[] = {DType::f32, DType::f16, DType::bf16};

// Tokens from logits on the device are those from the same logits on the host.
void check_sampler(const cuda::SampleCall& c, int64_t r, const Values& logits) {
  const size_t row = static_cast<size_t>(r * c.row_stride) * element_bytes(c.type);
  for (const Sampler::Config& config : {Sampler::Config{}, Sampler::Config{true, 20, 0.9f, 0.8f, 1.0f, 5},
                                        Sampler::Config{true, 0, 0.95f, 1.0f, 1.0f, 6}, Sampler::Config{false, 0, 1, 1, 1.5f, 7}}) {
    Sampler host(config), device(config);
    DeviceSampler from_device;
    for (int draw = 0; draw < 3; ++draw) {
      int64_t token = -1, seen = -1;
      const Status status = host.next(c.type, logits.bytes.data() + row, c.n, &token);
      const Status other = from_device.next(device, 0, c.type, static_cast<const char*>(c.logits) + row, c.n, &seen);
      if (status.code() == other.code() && token == seen) continue;
      std::printf("the sampler chooses %lld on the host, %lld on the device: %s\n", static_cast<long long>(token),
                  static_cast<long long>(seen), other.text().c_str());
      std::exit(1);
    }
  }
}

void check(const Device& device, std::mt19937& rng) {
  cuda::SampleCall c;
  c.type = kFloats[rng() % 3];
  c.rows = 1 + rng() % 3;
  c.n = rng() % 3 ? 1 + rng() % 9000 : 1 + rng() % 200000;
  c.row_stride = c.n + rng() % 5;
  c.k = rng() % 2 ? 1 : 1 + static_cast<int>(rng() % 100);
  Values logits(c.type, static_cast<size_t>(c.rows * c.row_stride));
  // Few different values make ties; both zeros, infinities and NaN are among them.
  const int kind = static_cast<int>(rng() % 4);
  std::normal_distribution<float> normal(0, 3);
  const float special[] = {NAN, -INFINITY, 0.0f, -0.0f, kind == 3 ? NAN : INFINITY};
  for (size_t i = 0; i < logits.bytes.size() / element_bytes(c.type); ++i)
    logits.set(i, kind == 3                      ? special[rng() % 2 * (rng() % 50 == 0)]
                  : kind == 2 || rng() % 50 == 0 ? special[rng() % 5]
                  : kind == 1                    ? static_cast<float>(rng() % 7)
                                                 : normal(rng));
  const Array d(device, logits.bytes), ids(device, static_cast<size_t>(c.rows * c.k) * 4),
      values(device, static_cast<size_t>(c.rows * c.k) * 4), workspace(device, cuda::sample_workspace(c.rows, c.n, c.k));
  c.logits = d.data();
  c.ids = static_cast<int32_t*>(ids.data());
  c.values = static_cast<float*>(values.data());
  c.workspace = workspace.data();
  must(cuda::launch_sample(*device.gpu, device.stream.get(), c));
  device.wait("sample");
  const std::vector<uint8_t> got_ids = ids.bytes(), got_values = values.bytes();
  workspace.bytes();
  for (int64_t r = 0; r < c.rows; ++r) {
    const auto at = [&](int64_t i) { return logits.at(static_cast<size_t>(r * c.row_stride + i)); };
    std::vector<int32_t> order;
    for (int64_t i = 0; i < c.n; ++i)
      if (!std::isnan(at(i))) order.push_back(static_cast<int32_t>(i));
    const size_t k = std::min(order.size(), static_cast<size_t>(c.k));
    std::partial_sort(order.begin(), order.begin() + static_cast<long>(k), order.end(),
                      [&](int32_t a, int32_t b) { return at(a) != at(b) ? at(a) > at(b) : a < b; });
    for (size_t i = 0; i < static_cast<size_t>(c.k); ++i) {
      int32_t id = 0;
      std::memcpy(&id, &got_ids[(static_cast<size_t>(r * c.k) + i) * 4], 4);
      const float value = value_at(DType::f32, got_values.data(), static_cast<size_t>(r * c.k) + i);
      const int32_t wanted = i < k ? order[i] : -1;
      if (id == wanted && (wanted < 0 ? value == -INFINITY : value == at(wanted))) continue;
      std::printf("%s n %lld k %d kind %d: candidate %zu of row %lld is %d (%g), expected %d\n", dtype_name(c.type),
                  static_cast<long long>(c.n), c.k, kind, i, static_cast<long long>(r), id, static_cast<double>(value), wanted);
      std::exit(1);
    }
    check_sampler(c, r, logits);
  }
}

void bench(const Device& device, DType type, int64_t n, int k) {
  std::mt19937 rng(1);
  const Values logits(type, static_cast<size_t>(n), rng);
  const Array d(device, logits.bytes), ids(device, static_cast<size_t>(k) * 4), workspace(device, cuda::sample_workspace(1, n, k));
  cuda::SampleCall c;
  c.type = type;
  c.logits = d.data();
  c.n = c.row_stride = n;
  c.k = k;
  c.ids = static_cast<int32_t*>(ids.data());
  c.workspace = workspace.data();
  const double us = microseconds(device, 50, [&](int) { must(cuda::launch_sample(*device.gpu, device.stream.get(), c)); });
  std::printf("%d best of %lld %s: %.2f us\n", k, static_cast<long long>(n), dtype_name(type), us);
}

}  // namespace

int main(int argc, char** argv) {
  const Device device;
  if (argc > 1 && !std::strcmp(argv[1], "--bench")) {
    for (const DType type : {DType::f32, DType::f16})
      for (const int k : {1, 50, 200}) bench(device, type, 201088, k);
    return 0;
  }
  const unsigned seed = choose_seed(argc, argv);
  const int n_cases = argc > 2 ? std::atoi(argv[2]) : 100;
  std::printf("seed %u\n", seed);
  std::mt19937 rng(seed);
  for (int i = 0; i < n_cases; ++i) check(device, rng);
  std::printf("best logits: %d calls right\n", n_cases);
  return 0;
}

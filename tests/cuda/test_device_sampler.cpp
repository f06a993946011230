// SPDX-License-Identifier: Apache-2.0
// Sampling from logits on a GPU, on the stand-in driver: whole rows come over unharmed and on time, kernels are launched where a few
// logits are enough, any call of the driver may fail. What the kernels choose is checked on real GPUs (check_sample.cpp).
#include <random>
#include <vector>

#include "cuda/fatbins.h"
#include "fake_gpu.h"
#include "session/device_sampler.h"

using namespace hotset;

namespace {

int failures = 0;

void expect(bool ok, const std::string& what, const std::string& seen = {}) {
  if (ok) return;
  ++failures;
  std::printf("FAIL %s: '%s'\n", what.c_str(), seen.c_str());
}

struct Logits {
  std::vector<uint16_t> host;  // float16
  std::shared_ptr<cuda::Gpu> gpu;
  cuda::DeviceMemory device;

  explicit Logits(int n) : host(static_cast<size_t>(n)) {
    std::mt19937 random(5);
    std::normal_distribution<float> normal(0, 3);
    for (uint16_t& x : host) x = f32_to_f16(normal(random));
    auto opened = cuda::Gpu::open(0);
    gpu = opened.value();
    auto taken = cuda::DeviceMemory::take(gpu, host.size() * 2, cuda::Purpose::outputs, "logits");
    device = std::move(taken.value());
    auto stream = cuda::OwnStream::make(gpu);
    const cuda::Current current(*gpu);
    expect(cuda::driver().memcpy_htod_async(device.address(), host.data(), host.size() * 2, stream.value().get()) == 0, "upload");
    expect(stream.value().synchronize().ok(), "upload");
  }
  int64_t n() const { return static_cast<int64_t>(host.size()); }
};

void whole_rows() {
  const Logits logits(5000);
  for (const Sampler::Config& config : {Sampler::Config{true, 0, 0.9f, 1.3f, 1.0f, 3}, Sampler::Config{true, 5000, 1.0f, 1.0f, 1.0f, 4}}) {
    Sampler host(config), device(config);
    DeviceSampler from_device;
    for (int i = 0; i < 20; ++i) {
      int64_t wanted = -1, token = -2;
      const Status status = from_device.next(device, 0, DType::f16, logits.device.data(), logits.n(), &token);
      expect(status.ok() && host.next(DType::f16, logits.host.data(), logits.n(), &wanted).ok() && token == wanted,
             "a draw from the whole row", status.text());
    }
  }
  expect(fake::calls("cuLaunchKernelEx") == 0, "whole rows need no kernel");
}

void candidates() {
  const Logits logits(5000);
  fake::reset();
  Sampler greedy{Sampler::Config{}};
  DeviceSampler from_device;
  int64_t token = -1;
  const Status status = from_device.next(greedy, 0, DType::f16, logits.device.data(), logits.n(), &token);
  if (cuda::kFatbinCount == 0) {
    expect(status.code() == Code::unsupported, "a build without device code says so", status.text());
    return;
  }
  const char *first = fake::launched(0), *second = fake::launched(1);
  expect(first && std::string(first) == "hotset_sample_best_of_part_f16" && second && std::string(second) == "hotset_sample_best",
         "a greedy choice is two kernels", first ? first : "none");
  expect(fake::calls("cuMemcpyDtoHAsync") == 0, "no row is copied for a greedy choice");
}

void failing_calls() {
  const Logits logits(300);
  const Sampler::Config config{true, 0, 1.0f, 1.0f, 1.0f, 9};
  const long before = fake::live();
  for (int nth = 1; nth < 100; ++nth) {
    fake::reset();
    fake::fail("", nth, 2);
    Sampler sampler(config);
    int64_t token = -1;
    Status status;
    {
      DeviceSampler from_device;
      status = from_device.next(sampler, 0, DType::f16, logits.device.data(), logits.n(), &token);
    }
    expect(fake::live() == before, "everything is given back after call " + std::to_string(nth) + " failed");
    expect(status.ok() == (token >= 0), "a token or a failure", status.text());
    if (status.ok() && fake::calls("") < nth) return;
  }
  expect(false, "a draw ends");
}

}  // namespace

int main() {
  fake::library();
  whole_rows();
  candidates();
  expect(fake::misuse().empty(), "the driver is used rightly", fake::misuse());
  failing_calls();
  if (!failures) std::printf("ok\n");
  return failures ? 1 : 0;
}

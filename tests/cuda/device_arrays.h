// SPDX-License-Identifier: Apache-2.0
// For programs that check device kernels: a GPU or the end of the program, arrays with guarded ends, times of launches.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "cuda/device.h"
#include "cuda/fatbins.h"

namespace device_check {

using namespace hotset;

// Ends the program when a status is a failure.
inline void must(Status status) {
  if (status.ok()) return;
  std::printf("%s\n", status.text().c_str());
  std::exit(1);
}
template <class T>
T must(Result<T> result) {
  if (!result.ok()) must(result.take_status());
  return std::move(result.value());
}

// The first GPU and a stream of it; exit status 77 without one.
struct Device {
  std::shared_ptr<cuda::Gpu> gpu;
  cuda::OwnStream stream;

  Device() {
    int n = 0;
    std::string note;
    if (!cuda::device_count(&n, &note) || cuda::kFatbinCount == 0) {
      std::printf("%s\n", n == 0 ? note.c_str() : "built without device code");
      std::exit(77);
    }
    gpu = must(cuda::Gpu::open(0));
    stream = must(cuda::OwnStream::make(gpu));
  }
  // Ends the program with the driver's text when something launched has failed.
  void wait(const std::string& what) const {
    const Status status = stream.synchronize();
    if (status.ok()) return;
    std::printf("%s: %s\n", what.c_str(), status.text().c_str());
    std::exit(1);
  }
};

// Bytes on the device between two guards. New ones hold 0xff everywhere: NaN in each float type.
class Array {
 public:
  static constexpr size_t kGuard = 256;
  Array(const Device& device, size_t bytes)
      : device_(device),
        bytes_(bytes),
        memory_(must(cuda::DeviceMemory::take(device.gpu, bytes + 2 * kGuard, cuda::Purpose::values, "check"))) {
    const cuda::Current current(*device.gpu);
    must(device.gpu->check(cuda::driver().memset_d8_async(memory_.address(), 0x5a, memory_.bytes(), device.stream.get()), "memset"));
    must(device.gpu->check(cuda::driver().memset_d8_async(memory_.address() + kGuard, 0xff, bytes, device.stream.get()), "memset"));
    device.wait("memset");
  }
  template <class T>
  Array(const Device& device, const std::vector<T>& from) : Array(device, from.size() * sizeof(T)) {
    upload(from.data());
  }
  void upload(const void* from) {
    const cuda::Current current(*device_.gpu);
    must(device_.gpu->check(cuda::driver().memcpy_htod_async(memory_.address() + kGuard, from, bytes_, device_.stream.get()), "upload"));
    device_.wait("upload");
  }
  std::vector<uint8_t> bytes() const {
    std::vector<uint8_t> all(bytes_ + 2 * kGuard);
    const cuda::Current current(*device_.gpu);
    must(device_.gpu->check(cuda::driver().memcpy_dtoh_async(all.data(), memory_.address(), all.size(), device_.stream.get()), "download"));
    device_.wait("download");
    for (size_t i = 0; i < kGuard; ++i) {
      if (all[i] == 0x5a && all[bytes_ + kGuard + i] == 0x5a) continue;
      std::printf("a kernel wrote outside its output\n");
      std::exit(1);
    }
    return {all.begin() + kGuard, all.end() - kGuard};
  }
  void* data() const { return static_cast<char*>(memory_.data()) + kGuard; }
  size_t size() const { return bytes_; }

 private:
  const Device& device_;
  size_t bytes_;
  cuda::DeviceMemory memory_;
};

// Values of an element type, as numbers and as bytes.
inline size_t element_bytes(DType type) { return static_cast<size_t>(dtype_bits(type)) / 8; }
inline float value_at(DType type, const uint8_t* bytes, size_t i) {
  uint16_t h;
  float f;
  if (type == DType::f32) {
    std::memcpy(&f, bytes + 4 * i, 4);
    return f;
  }
  std::memcpy(&h, bytes + 2 * i, 2);
  return type == DType::f16 ? f16_to_f32(h) : bf16_to_f32(h);
}
inline void set_value(DType type, uint8_t* bytes, size_t i, float f) {
  const uint16_t h = type == DType::f16 ? f32_to_f16(f) : f32_to_bf16(f);
  std::memcpy(bytes + element_bytes(type) * i, type == DType::f32 ? static_cast<const void*>(&f) : &h, element_bytes(type));
}
struct Values {
  DType type;
  std::vector<uint8_t> bytes;
  Values(DType t, size_t n) : type(t), bytes(n * element_bytes(t)) {}
  Values(DType t, size_t n, std::mt19937& rng, float scale = 1) : Values(t, n) {
    std::normal_distribution<float> normal(0, scale);
    for (size_t i = 0; i < n; ++i) set(i, normal(rng));
  }
  float at(size_t i) const { return value_at(type, bytes.data(), i); }
  void set(size_t i, float f) { set_value(type, bytes.data(), i, f); }
};
// Half a unit in the last place of 1.
inline double rounding(DType type) { return type == DType::f32 ? 0x1p-24 : type == DType::f16 ? 0x1p-11 : 0x1p-8; }

// Microseconds of one call: launches are captured `copies` times into a graph, which runs `repeats` times; the median.
inline double microseconds(const Device& device, int copies, const std::function<void(int)>& enqueue, int repeats = 7) {
  const cuda::Driver& d = cuda::driver();
  const cuda::Current current(*device.gpu);
  const auto ok = [&](int result) { must(device.gpu->check(result, "timing")); };
  for (int i = 0; i < copies; ++i) enqueue(i);  // modules are loaded outside of the capture
  device.wait("warm-up");
  cuda::Graph graph = nullptr;
  cuda::GraphExec run = nullptr;
  cuda::Event begin = nullptr, end = nullptr;
  ok(d.stream_begin_capture(device.stream.get(), 2 /* CU_STREAM_CAPTURE_MODE_RELAXED */));
  for (int i = 0; i < copies; ++i) enqueue(i);
  ok(d.stream_end_capture(device.stream.get(), &graph));
  ok(d.graph_instantiate(&run, graph, 0));
  ok(d.event_create(&begin, 0));
  ok(d.event_create(&end, 0));
  std::vector<double> times;
  for (int r = 0; r <= repeats; ++r) {
    float milliseconds = 0;
    ok(d.event_record(begin, device.stream.get()));
    ok(d.graph_launch(run, device.stream.get()));
    ok(d.event_record(end, device.stream.get()));
    ok(d.event_synchronize(end));
    ok(d.event_elapsed_time(&milliseconds, begin, end));
    if (r > 0) times.push_back(static_cast<double>(milliseconds) * 1e3 / copies);
  }
  ok(d.event_destroy(begin));
  ok(d.event_destroy(end));
  ok(d.graph_exec_destroy(run));
  ok(d.graph_destroy(graph));
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

// The seed of a run: argv's first number, else a new one; printed.
inline unsigned choose_seed(int argc, char** argv) {
  for (int i = 1; i < argc; ++i)
    if (const unsigned long seed = std::strtoul(argv[i], nullptr, 10)) return static_cast<unsigned>(seed);
  return std::random_device{}() | 1;
}

}  // namespace device_check

// SPDX-License-Identifier: Apache-2.0
// One GPU of this process: its primary context, its kernels, and memory with an owner for every byte.
//
// Failures: memory that runs out leaves everything usable. After a kernel has crashed (an illegal address, a launch failure, a
// machine check), CUDA refuses every call of the process on that device until its context is gone: Gpu::check remembers that, and
// whoever holds the Gpu gets Code::device until all have let it go; Gpu::open gives a fresh context then. Other devices go on.
// After fork() the child gets Code::invalid_state. Destructors never fail, and call nothing when the driver has gone.
#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "base/status.h"
#include "cuda/driver.h"

namespace hotset::cuda {

// What device or pinned memory is for; a line of the memory plan each.
enum class Purpose : uint8_t { weights, experts, caches, values, workspace, outputs, staging };
inline constexpr int kPurposes = 7;
const char* purpose_name(Purpose purpose);

struct Limits {                // of a device, as cuDeviceGetAttribute has them
  int compute_capability = 0;  // 90 for 9.0
  int multiprocessors = 0;
  int shared_bytes_per_block = 0;  // with the opt-in
  int l2_bytes = 0;
  bool registers_read_only_host_memory = false;
};

class Gpu : public std::enable_shared_from_this<Gpu> {
 public:
  // The device `index` of this process; every caller gets the same one while anybody holds it. unsupported: no usable driver or
  // no device at all; invalid_argument: no device of that number; device: the driver fails, or the device is lost.
  static hotset::Result<std::shared_ptr<Gpu>> open(int index);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  int index() const { return index_; }
  const DeviceInfo& info() const { return info_; }
  const Limits& limits() const { return limits_; }
  Context context() const { return context_; }

  // ok, or a failure that names the device, what was done and the driver's text. Memory that runs out is
  // Code::out_of_device_memory, a call in a forked child Code::invalid_state, everything else Code::device.
  Status check(int result, const char* step) const;
  // Whether a check has seen a failure after which the device refuses all work.
  bool lost() const { return lost_.load(std::memory_order_relaxed) != 0; }

  // The kernel `name` of native/cuda/<fatbin>.cu; loaded on first use and kept. `shared_bytes` of dynamic shared memory are
  // permitted. Any thread.
  hotset::Result<Function> function(const char* fatbin, const char* name, int shared_bytes = 0);
  // Loads the device code of native/cuda/<fatbin>.cu alone. unsupported: this build has none, or none for this device or driver.
  Status load(const char* fatbin);

  // Free and total bytes of the device now, over all processes.
  Status free_memory(size_t* free, size_t* total) const;
  // Bytes that holders of this process took through this object, now and at most so far.
  size_t bytes(Purpose purpose) const { return used_[static_cast<size_t>(purpose)].load(std::memory_order_relaxed); }
  size_t pinned_bytes() const { return pinned_.load(std::memory_order_relaxed); }

 private:
  friend class DeviceMemory;
  friend class PinnedMemory;
  friend class RegisteredMemory;
  Gpu() = default;
  hotset::Result<Library> library(const char* fatbin);  // under mutex_

  int index_ = 0;
  Device device_ = 0;
  DeviceInfo info_;
  Limits limits_;
  Context context_ = nullptr;
  mutable std::atomic<int> lost_{0};  // the driver's result, the first that was one of those
  std::mutex mutex_;
  std::map<std::string, Library> libraries_;
  struct Loaded {
    Function function = nullptr;
    int shared_bytes = 0;  // dynamic shared memory that it may use
  };
  std::map<std::pair<std::string, std::string>, Loaded> functions_;
  std::array<std::atomic<size_t>, kPurposes> used_{};
  std::atomic<size_t> pinned_{0};
};

// Makes the device's context the calling thread's for a scope.
class Current {
 public:
  explicit Current(const Gpu& gpu) : pushed_(driver().ctx_push(gpu.context()) == 0) {}
  ~Current() {
    Context previous = nullptr;
    if (pushed_) driver().ctx_pop(&previous);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  bool pushed_;
};

// A block of device memory.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  // `what` stands in the text of a failure.
  static hotset::Result<DeviceMemory> take(std::shared_ptr<Gpu> gpu, size_t bytes, Purpose purpose, const char* what);
  ~DeviceMemory() { give(); }
  DeviceMemory(DeviceMemory&& o) noexcept { swap(o); }
  DeviceMemory& operator=(DeviceMemory&& o) noexcept {
    swap(o);
    return *this;
  }
  DevicePtr address() const { return address_; }
  void* data() const { return reinterpret_cast<void*>(address_); }
  size_t bytes() const { return bytes_; }
  void give();

 private:
  void swap(DeviceMemory& o) noexcept {
    std::swap(gpu_, o.gpu_);
    std::swap(address_, o.address_);
    std::swap(bytes_, o.bytes_);
    std::swap(purpose_, o.purpose_);
  }
  std::shared_ptr<Gpu> gpu_;
  DevicePtr address_ = 0;
  size_t bytes_ = 0;
  Purpose purpose_ = Purpose::values;
};

// A block of host memory that the device can read and write at the same address.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  static hotset::Result<PinnedMemory> take(std::shared_ptr<Gpu> gpu, size_t bytes, const char* what);
  ~PinnedMemory() { give(); }
  PinnedMemory(PinnedMemory&& o) noexcept { swap(o); }
  PinnedMemory& operator=(PinnedMemory&& o) noexcept {
    swap(o);
    return *this;
  }
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  size_t bytes() const { return bytes_; }
  void give();

 private:
  void swap(PinnedMemory& o) noexcept {
    std::swap(gpu_, o.gpu_);
    std::swap(data_, o.data_);
    std::swap(bytes_, o.bytes_);
  }
  std::shared_ptr<Gpu> gpu_;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// A stream of the device that waits for no other one.
class OwnStream {
 public:
  OwnStream() = default;
  static hotset::Result<OwnStream> make(std::shared_ptr<Gpu> gpu);
  ~OwnStream();
  OwnStream(OwnStream&& o) noexcept : gpu_(std::move(o.gpu_)), stream_(std::exchange(o.stream_, nullptr)) {}
  OwnStream& operator=(OwnStream&& o) noexcept {
    std::swap(gpu_, o.gpu_);
    std::swap(stream_, o.stream_);
    return *this;
  }
  Stream get() const { return stream_; }
  Status synchronize() const;

 private:
  std::shared_ptr<Gpu> gpu_;
  Stream stream_ = nullptr;
};

// A point in a stream, without times.
class OwnEvent {
 public:
  OwnEvent() = default;
  static hotset::Result<OwnEvent> make(std::shared_ptr<Gpu> gpu);
  ~OwnEvent();
  OwnEvent(OwnEvent&& o) noexcept : gpu_(std::move(o.gpu_)), event_(std::exchange(o.event_, nullptr)) {}
  OwnEvent& operator=(OwnEvent&& o) noexcept {
    std::swap(gpu_, o.gpu_);
    std::swap(event_, o.event_);
    return *this;
  }
  Event get() const { return event_; }
  Status record(Stream stream) const;
  // Waits for what had been enqueued when it was recorded last; at once when it never was.
  Status synchronize() const;

 private:
  std::shared_ptr<Gpu> gpu_;
  Event event_ = nullptr;
};

// Pages of somebody's read-only mapping of a file, pinned where they are: the device may read them at the same address. The mapping
// must be shared. Is given back before the mapping ends, and after the device has finished with it.
class RegisteredMemory {
 public:
  RegisteredMemory() = default;
  // unsupported: the device or the system refuses; `pages` and `bytes` are multiples of a page.
  static hotset::Result<RegisteredMemory> take(std::shared_ptr<Gpu> gpu, void* pages, size_t bytes, const char* what);
  ~RegisteredMemory() { give(); }
  RegisteredMemory(RegisteredMemory&& o) noexcept { swap(o); }
  RegisteredMemory& operator=(RegisteredMemory&& o) noexcept {
    swap(o);
    return *this;
  }
  explicit operator bool() const { return gpu_ != nullptr; }
  void give();

 private:
  void swap(RegisteredMemory& o) noexcept {
    std::swap(gpu_, o.gpu_);
    std::swap(data_, o.data_);
    std::swap(bytes_, o.bytes_);
  }
  std::shared_ptr<Gpu> gpu_;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// How a kernel is launched. `overlap`: the kernel may start while the one before it in the stream drains (programmatic dependent
// launch, sm_90 and newer): it must call cudaGridDependencySynchronize / griddepcontrol.wait before it reads what that one wrote.
struct Launch {
  Function function = nullptr;
  unsigned grid_x = 1, grid_y = 1, grid_z = 1;
  unsigned block = 1;
  unsigned shared_bytes = 0;
  unsigned cluster = 0;  // blocks along x of a thread-block cluster; 0: none
  bool overlap = false;
};

// Launches with the parameters given by address, in the kernel's order.
Status launch(const Gpu& gpu, Stream stream, const Launch& launch, void** parameters);

// The same for a kernel with one parameter: a structure of fixed-width fields that .cu and .cpp share.
template <class Parameters>
Status launch_with(const Gpu& gpu, Stream stream, const Launch& how, const Parameters& parameters) {
  void* list[] = {const_cast<Parameters*>(&parameters)};
  return launch(gpu, stream, how, list);
}

}  // namespace hotset::cuda

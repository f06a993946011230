// SPDX-License-Identifier: Apache-2.0
// Contexts, kernels, memory and streams of GPUs.
#include "cuda/device.h"

#include <algorithm>

#include "cuda/fatbins.h"

namespace hotset::cuda {
namespace {

enum ResultCode {  // CUDA_ERROR_*
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kDeinitialized = 4,
  kInvalidImage = 200,
  kNoBinaryForGpu = 209,
  kUncorrectableEcc = 214,
  kInvalidPtx = 218,
  kUnsupportedPtxVersion = 222,
  kIllegalAddress = 700,
  kAssert = 710,
  kHardwareStackError = 714,  // and the four after it, up to the next
  kLaunchFailed = 719,
};
constexpr unsigned kNonBlocking = 1;                               // CU_STREAM_NON_BLOCKING
constexpr unsigned kNoTiming = 2;                                  // CU_EVENT_DISABLE_TIMING
constexpr unsigned kRegisterDeviceMap = 2, kRegisterReadOnly = 8;  // CU_MEMHOSTREGISTER_*
constexpr unsigned kPortable = 1, kDeviceMap = 2;                  // CU_MEMHOSTALLOC_*
enum Attribute {                                                   // CU_DEVICE_ATTRIBUTE_*
  kMultiprocessors = 16,
  kL2Bytes = 38,
  kSharedBytesOptIn = 97,
  kReadOnlyHostRegister = 113,
};
constexpr int kMaxDynamicShared = 8;      // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
constexpr int kDefaultShared = 48 << 10;  // what every kernel may use

std::mutex open_mutex;
std::map<int, std::weak_ptr<Gpu>>& open_gpus() {
  static auto& gpus = *new std::map<int, std::weak_ptr<Gpu>>;  // never destroyed, as the driver
  return gpus;
}

// The context is of no use after these.
bool is_final(int result) {
  return result == kUncorrectableEcc || result == kIllegalAddress || result == kAssert ||
         (result >= kHardwareStackError && result <= kLaunchFailed);
}

bool is_code_refusal(int result) {
  return result == kInvalidImage || result == kNoBinaryForGpu || result == kInvalidPtx || result == kUnsupportedPtxVersion;
}

std::string cuda_version(int version) { return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10); }

}  // namespace

const char* purpose_name(Purpose purpose) {
  static const char* const names[kPurposes] = {"weights", "experts", "caches", "values", "workspace", "outputs", "staging"};
  return names[static_cast<size_t>(purpose)];
}

Status Gpu::check(int result, const char* step) const {
  if (result == 0) return {};
  const std::string text = info_.name + ": " + step + ": " + driver().describe(result);
  if (result == kOutOfMemory) return Status(Code::out_of_device_memory, text);
  if (result == kNotInitialized || result == kDeinitialized) return Status(Code::invalid_state, text);
  int before = 0;
  if (is_final(result) && lost_.compare_exchange_strong(before, result, std::memory_order_relaxed))
    return Status(Code::device, text + "; the GPU is lost until every session on it is freed");
  if (before || (before = lost_.load(std::memory_order_relaxed)) != 0)
    return fail(Code::device, "%s: the GPU was lost before (%s): free every session on it", info_.name.c_str(),
                driver().describe(before).c_str());
  return Status(Code::device, text);
}

hotset::Result<std::shared_ptr<Gpu>> Gpu::open(int index) {
  const std::lock_guard lock(open_mutex);
  std::weak_ptr<Gpu>& known = open_gpus()[index];
  if (std::shared_ptr<Gpu> gpu = known.lock()) {
    if (gpu->lost()) return gpu->check(gpu->lost_, "open");
    return gpu;
  }
  std::shared_ptr<Gpu> gpu(new Gpu);
  std::string why;
  int n = 0;
  HOTSET_FAIL_IF(!device_count(&n, &why), unsupported, "device cuda:%d: %s", index, why.c_str());
  HOTSET_FAIL_IF(index < 0 || index >= n, invalid_argument, "device cuda:%d: there %s cuda:0%s", index, n == 1 ? "is only" : "are",
                 n == 1 ? "" : (" to cuda:" + std::to_string(n - 1)).c_str());
  if (!device_info(index, &gpu->info_, &why)) return Status(Code::device, why);
  const Driver& d = driver();
  gpu->index_ = index;
  HOTSET_TRY(gpu->check(d.device_get(&gpu->device_, index), "cuDeviceGet"));
  Limits& limits = gpu->limits_;
  limits.compute_capability = gpu->info_.compute_major * 10 + gpu->info_.compute_minor;
  int read_only = 0;
  const std::pair<Attribute, int*> wanted[] = {{kMultiprocessors, &limits.multiprocessors},
                                               {kL2Bytes, &limits.l2_bytes},
                                               {kSharedBytesOptIn, &limits.shared_bytes_per_block},
                                               {kReadOnlyHostRegister, &read_only}};
  for (const auto& [attribute, value] : wanted)
    HOTSET_TRY(gpu->check(d.device_get_attribute(value, attribute, gpu->device_), "cuDeviceGetAttribute"));
  limits.registers_read_only_host_memory = read_only != 0;
  HOTSET_TRY(gpu->check(d.primary_ctx_retain(&gpu->context_, gpu->device_), "cuDevicePrimaryCtxRetain"));
  known = gpu;
  return gpu;
}

Gpu::~Gpu() {
  if (!context_ || !driver_lives()) return;
  {
    const Current current(*this);
    for (const auto& [name, library] : libraries_) driver().library_unload(library);
  }
  driver().primary_ctx_release(device_);
}

hotset::Result<Library> Gpu::library(const char* name) {
  if (const auto found = libraries_.find(name); found != libraries_.end()) return found->second;
  const Fatbin* fatbin = find_fatbin(name);
  HOTSET_FAIL_IF(!fatbin, unsupported, "this build of hotset has no device code '%s': it was built without nvcc", name);
  Library library = nullptr;
  const int result = driver().library_load_data(&library, fatbin->begin, nullptr, nullptr, 0, nullptr, nullptr, 0);
  if (is_code_refusal(result)) {
    const bool old = driver().version / 1000 < kFatbinToolkit / 1000;
    return fail(Code::unsupported, "%s (compute capability %d.%d, driver for CUDA %s) takes none of the device code '%s' (%s%s)%s: %s",
                info_.name.c_str(), info_.compute_major, info_.compute_minor, cuda_version(driver().version).c_str(), name,
                *kFatbinArchs ? "for " : "ready-made", kFatbinArchs,
                old ? (", which needs a driver for CUDA " + cuda_version(kFatbinToolkit)).c_str() : "", driver().describe(result).c_str());
  }
  HOTSET_TRY(check(result, "cuLibraryLoadData"));
  libraries_[name] = library;
  return library;
}

Status Gpu::load(const char* fatbin) {
  const std::lock_guard lock(mutex_);
  const Current current(*this);
  HOTSET_ASSIGN([[maybe_unused]] const Library loaded, library(fatbin));
  return {};
}

hotset::Result<Function> Gpu::function(const char* fatbin, const char* name, int shared_bytes) {
  const std::lock_guard lock(mutex_);
  const Current current(*this);
  const Driver& d = driver();
  const std::pair<std::string, std::string> key(fatbin, name);
  auto found = functions_.find(key);
  if (found == functions_.end()) {
    HOTSET_ASSIGN(const Library from, library(fatbin));
    Kernel kernel = nullptr;
    Loaded loaded{nullptr, kDefaultShared};
    HOTSET_TRY(check(d.library_get_kernel(&kernel, from, name), name));
    HOTSET_TRY(check(d.kernel_get_function(&loaded.function, kernel), name));
    found = functions_.emplace(key, loaded).first;
  }
  Loaded& known = found->second;
  if (shared_bytes > known.shared_bytes) {
    HOTSET_TRY(check(d.func_set_attribute(known.function, kMaxDynamicShared, shared_bytes), name));
    known.shared_bytes = shared_bytes;
  }
  return known.function;
}

Status Gpu::free_memory(size_t* free, size_t* total) const {
  const Current current(*this);
  return check(driver().mem_get_info(free, total), "cuMemGetInfo");
}

hotset::Result<DeviceMemory> DeviceMemory::take(std::shared_ptr<Gpu> gpu, size_t bytes, Purpose purpose, const char* what) {
  DeviceMemory memory;
  const Current current(*gpu);
  const int result = driver().mem_alloc(&memory.address_, bytes ? bytes : 1);
  if (result != 0) {
    memory.address_ = 0;
    return gpu->check(result, format_text("%s: %zu bytes of device memory", what, bytes).c_str());
  }
  gpu->used_[static_cast<size_t>(purpose)].fetch_add(bytes, std::memory_order_relaxed);
  memory.gpu_ = std::move(gpu);
  memory.bytes_ = bytes;
  memory.purpose_ = purpose;
  return memory;
}

void DeviceMemory::give() {
  if (!gpu_) return;
  if (driver_lives()) {
    const Current current(*gpu_);
    driver().mem_free(address_);
  }
  gpu_->used_[static_cast<size_t>(purpose_)].fetch_sub(bytes_, std::memory_order_relaxed);
  address_ = 0;
  bytes_ = 0;
  gpu_.reset();
}

hotset::Result<PinnedMemory> PinnedMemory::take(std::shared_ptr<Gpu> gpu, size_t bytes, const char* what) {
  PinnedMemory memory;
  const Current current(*gpu);
  const int result = driver().mem_host_alloc(&memory.data_, bytes ? bytes : 1, kPortable | kDeviceMap);
  if (result != 0) {
    memory.data_ = nullptr;
    HOTSET_FAIL_IF(result == kOutOfMemory, out_of_memory, "%s: cannot pin %zu bytes of host memory", what, bytes);
    return gpu->check(result, what);
  }
  gpu->pinned_.fetch_add(bytes, std::memory_order_relaxed);
  memory.gpu_ = std::move(gpu);
  memory.bytes_ = bytes;
  return memory;
}

void PinnedMemory::give() {
  if (!gpu_) return;
  if (driver_lives()) {
    const Current current(*gpu_);
    driver().mem_free_host(data_);
  }
  gpu_->pinned_.fetch_sub(bytes_, std::memory_order_relaxed);
  data_ = nullptr;
  bytes_ = 0;
  gpu_.reset();
}

hotset::Result<OwnStream> OwnStream::make(std::shared_ptr<Gpu> gpu) {
  OwnStream stream;
  const Current current(*gpu);
  HOTSET_TRY(gpu->check(driver().stream_create(&stream.stream_, kNonBlocking), "cuStreamCreate"));
  stream.gpu_ = std::move(gpu);
  return stream;
}

OwnStream::~OwnStream() {
  if (!gpu_ || !driver_lives()) return;
  const Current current(*gpu_);
  driver().stream_destroy(stream_);
}

Status OwnStream::synchronize() const {
  const Current current(*gpu_);
  return gpu_->check(driver().stream_synchronize(stream_), "cuStreamSynchronize");
}

hotset::Result<OwnEvent> OwnEvent::make(std::shared_ptr<Gpu> gpu) {
  OwnEvent event;
  const Current current(*gpu);
  HOTSET_TRY(gpu->check(driver().event_create(&event.event_, kNoTiming), "cuEventCreate"));
  event.gpu_ = std::move(gpu);
  return event;
}

OwnEvent::~OwnEvent() {
  if (!gpu_ || !driver_lives()) return;
  const Current current(*gpu_);
  driver().event_destroy(event_);
}

Status OwnEvent::record(Stream stream) const { return gpu_->check(driver().event_record(event_, stream), "cuEventRecord"); }

Status OwnEvent::synchronize() const {
  const Current current(*gpu_);
  return gpu_->check(driver().event_synchronize(event_), "cuEventSynchronize");
}

hotset::Result<RegisteredMemory> RegisteredMemory::take(std::shared_ptr<Gpu> gpu, void* pages, size_t bytes, const char* what) {
  RegisteredMemory memory;
  const Current current(*gpu);
  if (const int result = driver().mem_host_register(pages, bytes, kRegisterDeviceMap | kRegisterReadOnly); result != 0) {
    Status status = gpu->check(result, what);
    if (gpu->lost() || status.code() == Code::invalid_state) return status;
    return fail(Code::unsupported, "%s: cannot pin %zu bytes of a file in place: %s", what, bytes, status.text().c_str());
  }
  gpu->pinned_.fetch_add(bytes, std::memory_order_relaxed);
  memory.gpu_ = std::move(gpu);
  memory.data_ = pages;
  memory.bytes_ = bytes;
  return memory;
}

void RegisteredMemory::give() {
  if (!gpu_) return;
  if (driver_lives()) {
    const Current current(*gpu_);
    driver().mem_host_unregister(data_);
  }
  gpu_->pinned_.fetch_sub(bytes_, std::memory_order_relaxed);
  gpu_.reset();
}

Status launch(const Gpu& gpu, Stream stream, const Launch& how, void** parameters) {
  enum { kClusterDimension = 4, kProgrammaticStreamSerialization = 6 };  // CU_LAUNCH_ATTRIBUTE_*
  LaunchAttribute attributes[2] = {};
  unsigned n = 0;
  if (how.cluster) {
    const unsigned dimensions[3] = {how.cluster, 1, 1};
    attributes[n].id = kClusterDimension;
    std::copy_n(reinterpret_cast<const unsigned char*>(dimensions), sizeof dimensions, attributes[n++].value);
  }
  if (how.overlap && gpu.limits().compute_capability >= 90) {
    const int allowed = 1;
    attributes[n].id = kProgrammaticStreamSerialization;
    std::copy_n(reinterpret_cast<const unsigned char*>(&allowed), sizeof allowed, attributes[n++].value);
  }
  const LaunchConfig config{how.grid_x, how.grid_y, how.grid_z, how.block, 1, 1, how.shared_bytes, stream, attributes, n};
  return gpu.check(driver().launch_kernel_ex(&config, how.function, parameters, nullptr), "cuLaunchKernelEx");
}

}  // namespace hotset::cuda

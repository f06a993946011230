// SPDX-License-Identifier: Apache-2.0
// Contexts, kernels, memory and streams of GPUs.
#include "cuda/device.h"

#include <algorithm>

#include "cuda/fatbins.h"

namespace hotset::cuda {
namespace {

constexpr int kOutOfMemory = 2;                    // CUDA_ERROR_OUT_OF_MEMORY
constexpr unsigned kNonBlocking = 1;               // CU_STREAM_NON_BLOCKING
constexpr unsigned kPortable = 1, kDeviceMap = 2;  // CU_MEMHOSTALLOC_*
enum Attribute {                                   // CU_DEVICE_ATTRIBUTE_*
  kMultiprocessors = 16,
  kL2Bytes = 38,
  kSharedBytesOptIn = 97,
  kReadOnlyHostRegister = 113,
};
constexpr int kMaxDynamicShared = 8;      // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
constexpr int kDefaultShared = 48 << 10;  // what every kernel may use
constexpr int kNoBinaryForGpu = 209;      // CUDA_ERROR_NO_BINARY_FOR_GPU

std::mutex open_mutex;
std::map<int, std::weak_ptr<Gpu>>& open_gpus() {
  static std::map<int, std::weak_ptr<Gpu>> gpus;
  return gpus;
}

}  // namespace

const char* purpose_name(Purpose purpose) {
  static const char* const names[kPurposes] = {"weights", "experts", "caches", "values", "workspace", "outputs", "staging"};
  return names[static_cast<size_t>(purpose)];
}

Status Gpu::check(int result, const char* step) const {
  if (result == 0) return {};
  return Status(result == kOutOfMemory ? Code::out_of_device_memory : Code::device,
                info_.name + ": " + step + ": " + driver().describe(result));
}

hotset::Result<std::shared_ptr<Gpu>> Gpu::open(int index) {
  const std::lock_guard lock(open_mutex);
  std::weak_ptr<Gpu>& known = open_gpus()[index];
  if (std::shared_ptr<Gpu> gpu = known.lock()) return gpu;
  std::shared_ptr<Gpu> gpu(new Gpu);
  std::string why;
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
  if (!context_) return;
  {
    const Current current(*this);
    for (const auto& [name, library] : libraries_) driver().library_unload(library);
  }
  driver().primary_ctx_release(device_);
}

hotset::Result<Function> Gpu::function(const char* fatbin_name, const char* name, int shared_bytes) {
  const std::lock_guard lock(mutex_);
  if (const auto found = functions_.find({fatbin_name, name}); found != functions_.end()) return found->second;
  const Current current(*this);
  const Driver& d = driver();
  Library& library = libraries_[fatbin_name];
  if (!library) {
    const Fatbin* fatbin = find_fatbin(fatbin_name);
    HOTSET_FAIL_IF(!fatbin, unsupported, "this build of hotset has no device code '%s': it was built without nvcc", fatbin_name);
    const int result = d.library_load_data(&library, fatbin->begin, nullptr, nullptr, 0, nullptr, nullptr, 0);
    HOTSET_FAIL_IF(result == kNoBinaryForGpu, unsupported, "%s (compute capability %d.%d): this build has device code for '%s' alone",
                   info_.name.c_str(), info_.compute_major, info_.compute_minor, kFatbinArchs);
    HOTSET_TRY(check(result, "cuLibraryLoadData"));
  }
  Kernel kernel = nullptr;
  Function function = nullptr;
  HOTSET_TRY(check(d.library_get_kernel(&kernel, library, name), name));
  HOTSET_TRY(check(d.kernel_get_function(&function, kernel), name));
  if (shared_bytes > kDefaultShared) HOTSET_TRY(check(d.func_set_attribute(function, kMaxDynamicShared, shared_bytes), name));
  functions_[{fatbin_name, name}] = function;
  return function;
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
  {
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
  {
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
  if (!gpu_) return;
  const Current current(*gpu_);
  driver().stream_destroy(stream_);
}

Status OwnStream::synchronize() const {
  const Current current(*gpu_);
  return gpu_->check(driver().stream_synchronize(stream_), "cuStreamSynchronize");
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

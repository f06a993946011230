// SPDX-License-Identifier: Apache-2.0
// Tensors at the C edge.
#include "api/tensors.h"

#include <cstdlib>
#include <optional>

namespace hotset::api {
namespace {

constexpr size_t kDeviceAlignment = 16;   // kernels read 16 bytes at once
constexpr int kDeviceOrdinal = 9;         // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
constexpr int32_t kPinnedHostMemory = 3;  // kDLCUDAHost of DLPack: host memory for us
const cuda::Stream kDefaultStream = nullptr;

bool is_device(const hotset_tensor& t) { return t.device == HOTSET_CUDA; }

Status allocate_on_device(hotset_tensor& t, size_t bytes) {
  HOTSET_ASSIGN(const std::shared_ptr<cuda::Gpu> gpu, cuda::Gpu::open(t.device_id));
  HOTSET_ASSIGN(cuda::DeviceMemory memory, cuda::DeviceMemory::take(gpu, bytes, cuda::Purpose::outputs, "a tensor"));
  auto owner = std::make_unique<SharedDeviceMemory>(std::move(memory));
  t.data = owner->memory.data();
  t.owner = owner.release();
  return {};
}

// Copies between host memory and the device `gpu`, or on it, after the work in its default stream, and waits.
Status copy_with(const cuda::Gpu& gpu, void* to, bool to_device, const void* from, bool from_device, size_t bytes) {
  const cuda::Current current(gpu);
  const cuda::Driver& d = cuda::driver();
  const auto target = reinterpret_cast<cuda::DevicePtr>(to), source = reinterpret_cast<cuda::DevicePtr>(from);
  if (to_device && from_device)
    HOTSET_TRY(gpu.check(d.memcpy_dtod_async(target, source, bytes, kDefaultStream), "cuMemcpyDtoDAsync"));
  else if (to_device)
    HOTSET_TRY(gpu.check(d.memcpy_htod_async(target, from, bytes, kDefaultStream), "cuMemcpyHtoDAsync"));
  else
    HOTSET_TRY(gpu.check(d.memcpy_dtoh_async(to, source, bytes, kDefaultStream), "cuMemcpyDtoHAsync"));
  return gpu.check(d.stream_synchronize(kDefaultStream), "cuStreamSynchronize");
}

Status copy(void* to, const hotset_tensor& target, const void* from, const hotset_tensor& source, size_t bytes) {
  if (!bytes) return {};
  if (!is_device(target) && !is_device(source)) {
    std::memmove(to, from, bytes);
    return {};
  }
  if (is_device(target) && is_device(source) && target.device_id != source.device_id) {
    const std::unique_ptr<std::byte[]> between(new std::byte[bytes]);
    hotset_tensor host = source;
    host.device = HOTSET_CPU;
    HOTSET_TRY(copy(between.get(), host, from, source, bytes));
    return copy(to, target, between.get(), host, bytes);
  }
  HOTSET_ASSIGN(const std::shared_ptr<cuda::Gpu> gpu, cuda::Gpu::open(is_device(target) ? target.device_id : source.device_id));
  bool unused = false;
  for (const hotset_tensor* t : {&target, &source}) HOTSET_TRY(read_place(*t, gpu.get(), t == &target ? "to" : "from", &unused));
  return copy_with(*gpu, to, is_device(target), from, is_device(source), bytes);
}

}  // namespace

Status read_tensor(const hotset_tensor& from, const char* what, Tensor* out) {
  HOTSET_FAIL_IF(from.struct_size < offsetof(hotset_tensor, owner), invalid_argument,
                 "%s: struct_size is %u: set it to sizeof(hotset_tensor)", what, from.struct_size);
  HOTSET_FAIL_IF(from.rank < 0 || from.rank > HOTSET_MAX_RANK, invalid_argument, "%s: rank %lld, allowed 0..%d", what,
                 static_cast<long long>(from.rank), HOTSET_MAX_RANK);
  out->dtype = static_cast<DType>(from.dtype);
  out->shape = Shape(std::span(from.shape, static_cast<size_t>(from.rank)));
  int64_t n = 0;
  size_t bytes = 0;
  HOTSET_FAIL_IF(!checked_size(out->shape.dims(), &n), invalid_argument, "%s: impossible shape %s", what, to_text(out->shape).c_str());
  HOTSET_FAIL_IF(!dense_bytes(out->dtype, n, &bytes), invalid_argument, "%s: unknown element type %d", what, from.dtype);
  bool dense = true, any = false;
  int64_t step = 1;
  for (int i = out->shape.rank; i-- > 0;) {
    any |= from.strides[i] != 0;
    dense &= out->shape[i] <= 1 || from.strides[i] == step;
    step *= out->shape[i] > 0 ? out->shape[i] : 1;
  }
  HOTSET_FAIL_IF(any && !dense && n > 1, invalid_argument, "%s: the tensor is not dense row-major; make a contiguous copy", what);
  HOTSET_FAIL_IF(!from.data && bytes, invalid_argument, "%s: data is NULL", what);
  const size_t element = std::clamp<size_t>(static_cast<size_t>(dtype_bits(out->dtype)) / 8, 1, 8);
  HOTSET_FAIL_IF(reinterpret_cast<uintptr_t>(from.data) % element != 0, invalid_argument,
                 "%s: data is not aligned to elements of %zu bytes; make an aligned copy", what, element);
  HOTSET_FAIL_IF(from.bytes < bytes, invalid_argument, "%s: the buffer has %zu bytes, shape %s of %s needs %zu", what, from.bytes,
                 to_text(out->shape).c_str(), dtype_name(out->dtype), bytes);
  out->data = from.data;
  return {};
}

Status read_place(const hotset_tensor& tensor, const cuda::Gpu* gpu, const char* what, bool* on_device) {
  *on_device = is_device(tensor);
  if (!*on_device) {
    HOTSET_FAIL_IF(tensor.device != 0 && tensor.device != HOTSET_CPU && tensor.device != kPinnedHostMemory, unsupported,
                   "%s: device %d; expected host memory (HOTSET_CPU) or a GPU (HOTSET_CUDA)", what, tensor.device);
    return {};
  }
  HOTSET_FAIL_IF(!gpu, unsupported, "%s: memory of cuda:%d, but the session computes on the CPU: copy the tensor to host memory", what,
                 tensor.device_id);
  HOTSET_FAIL_IF(tensor.device_id != gpu->index(), invalid_argument, "%s: memory of cuda:%d, but the session computes on cuda:%d", what,
                 tensor.device_id, gpu->index());
  if (!tensor.data) return {};
  const auto address = reinterpret_cast<cuda::DevicePtr>(tensor.data);
  HOTSET_FAIL_IF(address % kDeviceAlignment != 0, invalid_argument,
                 "%s: device memory at %#llx is not aligned to %zu bytes; make an aligned copy", what,
                 static_cast<unsigned long long>(address), kDeviceAlignment);
  const cuda::Current current(*gpu);
  int ordinal = -1;
  const int result = cuda::driver().pointer_get_attribute(&ordinal, kDeviceOrdinal, address);
  HOTSET_FAIL_IF(result != 0 && !gpu->lost() && cuda::driver_lives(), invalid_argument, "%s: %#llx is no memory that the GPU knows: %s",
                 what, static_cast<unsigned long long>(address), cuda::driver().describe(result).c_str());
  HOTSET_TRY(gpu->check(result, "cuPointerGetAttribute"));
  HOTSET_FAIL_IF(ordinal != gpu->index(), invalid_argument, "%s: %#llx is memory of cuda:%d, not of cuda:%d", what,
                 static_cast<unsigned long long>(address), ordinal, gpu->index());
  return {};
}

void drop(SharedDeviceMemory* memory) {
  if (memory && memory->n_owners.fetch_sub(1, std::memory_order_acq_rel) == 1) delete memory;
}

void free_owner(int32_t device, void* owner) {
  if (device == HOTSET_CUDA)
    drop(static_cast<SharedDeviceMemory*>(owner));
  else
    std::free(owner);
}

}  // namespace hotset::api

using namespace hotset;
using namespace hotset::api;

extern "C" {

void hotset_tensor_free(hotset_tensor* tensor) {
  if (!tensor || tensor->struct_size < sizeof(hotset_tensor) || !tensor->owner) return;
  free_owner(tensor->device, tensor->owner);
  tensor->owner = nullptr;
  tensor->data = nullptr;
  tensor->bytes = 0;
}

hotset_status hotset_tensor_allocate(hotset_tensor* tensor) {
  return guard([&]() -> Status {
    HOTSET_FAIL_IF(!tensor, invalid_argument, "tensor is NULL");
    HOTSET_FAIL_IF(tensor->struct_size < sizeof(hotset_tensor), invalid_argument, "struct_size is %u: set it to sizeof(hotset_tensor)",
                   tensor->struct_size);
    HOTSET_FAIL_IF(tensor->data || tensor->owner, invalid_argument, "the tensor has data already");
    hotset_tensor described = *tensor;
    for (int64_t& stride : described.strides) stride = 0;
    described.data = &described;  // of any size: only type and shape are read
    described.bytes = SIZE_MAX;
    Tensor t;
    HOTSET_TRY(read_tensor(described, "tensor", &t));
    HOTSET_FAIL_IF(tensor->device < 0 || tensor->device > HOTSET_CUDA, unsupported, "tensor: device %d; expected HOTSET_CPU or HOTSET_CUDA", tensor->device);
    if (is_device(*tensor)) {
      HOTSET_TRY(allocate_on_device(*tensor, t.bytes()));
    } else {
      tensor->owner = std::malloc(std::max<size_t>(t.bytes(), 1));
      HOTSET_FAIL_IF(!tensor->owner, out_of_memory, "cannot allocate %zu bytes", t.bytes());
      tensor->data = tensor->owner;
    }
    tensor->bytes = t.bytes();
    return {};
  });
}

hotset_status hotset_tensor_copy(const hotset_tensor* to, const hotset_tensor* from) {
  return guard([&]() -> Status {
    HOTSET_FAIL_IF(!to || !from, invalid_argument, "to or from is NULL");
    Tensor source, target;
    HOTSET_TRY(read_tensor(*from, "from", &source));
    HOTSET_TRY(read_tensor(*to, "to", &target));
    HOTSET_FAIL_IF(source.dtype != target.dtype || !(source.shape == target.shape), invalid_argument, "cannot copy %s of %s to %s of %s",
                   to_text(source.shape).c_str(), dtype_name(source.dtype), to_text(target.shape).c_str(), dtype_name(target.dtype));
    return copy(target.data, *to, source.data, *from, source.bytes());
  });
}

hotset_status hotset_stream_order(int32_t device_id, void* first, void* then) {
  return guard([&]() -> Status {
    HOTSET_ASSIGN(const std::shared_ptr<cuda::Gpu> gpu, cuda::Gpu::open(device_id));
    HOTSET_ASSIGN(const cuda::OwnEvent event, cuda::OwnEvent::make(gpu));
    const cuda::Current current(*gpu);
    HOTSET_TRY(event.record(static_cast<cuda::Stream>(first)));
    return gpu->check(cuda::driver().stream_wait_event(static_cast<cuda::Stream>(then), event.get(), 0), "cuStreamWaitEvent");
  });
}

size_t hotset_tensor_bytes(int32_t dtype, const int64_t* shape, int64_t rank) {
  int64_t n = 0;
  size_t bytes = 0;
  if (rank < 0 || rank > HOTSET_MAX_RANK || (rank && !shape)) return 0;
  if (!checked_size({shape, static_cast<size_t>(rank)}, &n) || !dense_bytes(static_cast<DType>(dtype), n, &bytes)) return 0;
  return bytes;
}

const char* hotset_dtype_name(int32_t dtype) { return dtype_name(static_cast<DType>(dtype)); }

}  // extern "C"

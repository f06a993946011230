// SPDX-License-Identifier: Apache-2.0
// hotset_tensor at the C edge: checked and read, memory that the library allocated into one, and copies.
#pragma once
#include <atomic>
#include <memory>

#include "api/guard.h"
#include "cuda/device.h"

namespace hotset::api {

// Type, shape, layout and size of a tensor with data; `what` begins the text of a failure. Says nothing about where it lies.
Status read_tensor(const hotset_tensor& from, const char* what, Tensor* out);

// Whether a tensor lies in device memory. Fails for kinds of devices that do not exist, and for device memory when `gpu` is null
// (the session computes on the CPU) or of another number, when `data` is not memory of that device, or not aligned to 16 bytes.
Status read_place(const hotset_tensor& tensor, const cuda::Gpu* gpu, const char* what, bool* on_device);

// Device memory that tensors and DLPack capsules share: what hotset_tensor::owner points to where device is HOTSET_CUDA. (Of host
// memory it is what malloc returned.)
struct SharedDeviceMemory {
  explicit SharedDeviceMemory(cuda::DeviceMemory m) : memory(std::move(m)) {}
  std::atomic<int> n_owners{1};
  cuda::DeviceMemory memory;
};
void drop(SharedDeviceMemory* memory);

// Frees what an owner of a tensor of `device` stands for; nothing for null.
void free_owner(int32_t device, void* owner);

}  // namespace hotset::api

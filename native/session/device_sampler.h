// SPDX-License-Identifier: Apache-2.0
// The next token from logits that lie in the memory of a GPU: their best ones come to the host, or the whole row where the
// sampler's configuration takes all of it.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "cuda/device.h"
#include "session/sampler.h"

namespace hotset {

class DeviceSampler {
 public:
  // logits: n values of f32, f16 or bf16 on `device`, written by work that is through. Waits for the result.
  Status next(Sampler& sampler, int device, DType dtype, const void* logits, int64_t n, int64_t* out);

 private:
  Status open(int device);
  Status best_of(Sampler& sampler, DType dtype, const void* logits, int64_t n, int k, int64_t* out);

  std::shared_ptr<cuda::Gpu> gpu_;
  cuda::OwnStream stream_;
  cuda::DeviceMemory workspace_;
  cuda::PinnedMemory results_;  // ids, then logits
  std::vector<uint8_t> row_;
};

}  // namespace hotset

// SPDX-License-Identifier: Apache-2.0
// Sampling from logits on a GPU.
#include "session/device_sampler.h"

#include "cuda/sample.h"

namespace hotset {

Status DeviceSampler::open(int device) {
  if (gpu_ && gpu_->index() == device) return {};
  results_.give();
  workspace_.give();
  HOTSET_ASSIGN(gpu_, cuda::Gpu::open(device));
  HOTSET_ASSIGN(stream_, cuda::OwnStream::make(gpu_));
  return {};
}

Status DeviceSampler::next(Sampler& sampler, int device, DType dtype, const void* logits, int64_t n, int64_t* out) {
  HOTSET_TRY(open(device));
  const int64_t k = sampler.candidates(n);
  if (k > 0 && cuda::sample_fits(*gpu_, n, k)) return best_of(sampler, dtype, logits, n, static_cast<int>(k), out);
  row_.resize(static_cast<size_t>(n) * static_cast<size_t>(dtype_bits(dtype)) / 8);
  {
    const cuda::Current current(*gpu_);
    HOTSET_TRY(
        gpu_->check(cuda::driver().memcpy_dtoh_async(row_.data(), reinterpret_cast<cuda::DevicePtr>(logits), row_.size(), stream_.get()),
                    "a copy of logits"));
  }
  HOTSET_TRY(stream_.synchronize());
  return sampler.next(dtype, row_.data(), n, out);
}

Status DeviceSampler::best_of(Sampler& sampler, DType dtype, const void* logits, int64_t n, int k, int64_t* out) {
  const size_t bytes = static_cast<size_t>(k) * (sizeof(int32_t) + sizeof(float)), scratch = cuda::sample_workspace(1, n, k);
  if (results_.bytes() < bytes) {
    HOTSET_ASSIGN(results_, cuda::PinnedMemory::take(gpu_, bytes, "candidates of a sampler"));
  }
  if (workspace_.bytes() < scratch) {
    HOTSET_ASSIGN(workspace_, cuda::DeviceMemory::take(gpu_, scratch, cuda::Purpose::workspace, "candidates of a sampler"));
  }
  int32_t* const ids = reinterpret_cast<int32_t*>(results_.data());
  float* const best = reinterpret_cast<float*>(ids + k);
  cuda::SampleCall call;
  call.type = dtype;
  call.logits = logits;
  call.n = call.row_stride = n;
  call.k = k;
  call.ids = ids;  // written by the device through the bus
  call.values = best;
  call.workspace = workspace_.data();
  {
    const cuda::Current current(*gpu_);
    HOTSET_TRY(cuda::launch_sample(*gpu_, stream_.get(), call));
  }
  HOTSET_TRY(stream_.synchronize());
  return sampler.next_of(ids, best, k, out);
}

}  // namespace hotset

// SPDX-License-Identifier: Apache-2.0
// Weights from host memory to a device, as fast as the bus takes them and without a second copy of them in host memory.
//
// Two ways:
//   in place   pages of a shared read-only file mapping are pinned, 64 MiB at a time by up to four threads, and the device reads
//              them itself: little processor time
//   ring       the pool's threads copy pieces into pinned buffers of their own, two each, and send them from there: while one
//              buffer travels the other is filled. Needs about eight threads for the full rate.
//
//     mapping  ──memcpy──▶ [buffer 0 │ buffer 1] of thread t ──DMA──▶ device
#pragma once
#include <functional>
#include <memory>
#include <span>

#include "base/thread_pool.h"
#include "cuda/device.h"

namespace hotset::cuda {

struct UploadPiece {
  DevicePtr to = 0;
  const void* from = nullptr;
  size_t bytes = 0;
};

struct Upload {
  // in_place and best: all sources lie in shared read-only mappings of files, page for page. Never give another mapping: the driver
  // does not return from pinning a private one. Where the device or the system does not take it, the ring is used. Pinning costs
  // as much time for a page as two threads need to copy it, so best is the ring from three threads on.
  enum class Way { ring, in_place, best };
  Way way = Way::ring;
  // Called by the calling thread with bytes done and all bytes, now and then and at the end; false cancels (Code::cancelled).
  std::function<bool(uint64_t done, uint64_t total)> progress = {};
  size_t pinned_bytes = size_t{16} << 20;  // of the ring at most; what fits the processor's caches travels faster
};

// Copies all pieces and waits for the last. On failure some pieces are copied, and nothing runs any more.
Status upload(std::shared_ptr<Gpu> gpu, ThreadPool& pool, std::span<const UploadPiece> pieces, const Upload& how);

}  // namespace hotset::cuda

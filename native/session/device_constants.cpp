// SPDX-License-Identifier: Apache-2.0
// The constants that a GPU reads, copied to it when the session is created, and what device kernels make of them.
#include <algorithm>
#include <cstring>

#include "session/program.h"

namespace hotset {
namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kPiece = size_t{4} << 20;

size_t aligned(size_t n) { return (n + kAlignment - 1) & ~(kAlignment - 1); }

// Copies host memory that nobody pinned to the device through two pinned pieces: while one travels, the next is filled.
class Copier {
 public:
  static Result<Copier> make(const std::shared_ptr<cuda::Gpu>& gpu) {
    Copier c;
    HOTSET_ASSIGN(c.stream_, cuda::OwnStream::make(gpu));
    HOTSET_ASSIGN(c.pieces_, cuda::PinnedMemory::take(gpu, 2 * kPiece, "staging of constants"));
    c.gpu_ = gpu.get();
    return c;
  }
  cuda::Stream stream() const { return stream_.get(); }
  Status wait() const { return stream_.synchronize(); }

  template <class Progress>
  Status copy(uint64_t to, const void* from, size_t bytes, ThreadPool& pool, const Progress& progress) {
    for (size_t at = 0; at < bytes; at += kPiece) {
      const size_t n = std::min(kPiece, bytes - at);
      std::byte* const piece = pieces_.data() + turn_ * kPiece;
      const int parts = pool.size();
      const size_t share = aligned((n + static_cast<size_t>(parts) - 1) / static_cast<size_t>(parts));
      pool.parallel_for(parts, [&](int part, int) {
        const size_t begin = std::min(n, share * static_cast<size_t>(part)), end = std::min(n, begin + share);
        std::memcpy(piece + begin, static_cast<const std::byte*>(from) + at + begin, end - begin);
      });
      if (in_flight_) HOTSET_TRY(wait());  // so that the other piece may be filled next
      HOTSET_TRY(gpu_->check(cuda::driver().memcpy_htod_async(to + at, piece, n, stream()), "cuMemcpyHtoDAsync"));
      in_flight_ = true;
      turn_ = 1 - turn_;
      HOTSET_TRY(progress(n));
    }
    return {};
  }

 private:
  cuda::Gpu* gpu_ = nullptr;
  cuda::OwnStream stream_;
  cuda::PinnedMemory pieces_;
  size_t turn_ = 0;
  bool in_flight_ = false;
};

}  // namespace

// One block a purpose, in the order in which steps read the constants:
//
//     weights | a | b | ...          experts | fc1 | scales | ...          states | node 3 | node 7 | ...
Status Program::upload_constants(ThreadPool& pool, const std::function<bool(uint64_t, uint64_t)>& progress) {
  HOTSET_TRY(prepare_lazy(pool));
  Placement& p = *placement_;
  size_t sizes[2] = {}, state_bytes = 0, largest_state = 0;
  for (const Placement::Constant& c : p.constants) sizes[c.is_expert] += aligned(constants_[c.copy].bytes());
  for (const Step& step : steps_) {
    if (!step.device) continue;
    state_bytes += aligned(step.device->state_bytes());
    largest_state = std::max(largest_state, step.device->state_bytes());
  }
  const size_t needed = sizes[0] + sizes[1] + state_bytes;
  size_t free = 0, total = 0;
  HOTSET_TRY(p.gpu->free_memory(&free, &total));
  HOTSET_FAIL_IF(needed > free, out_of_device_memory,
                 "the constants of the model need %zu bytes of device memory, %zu of them for experts; %s has %zu of %zu free", needed,
                 sizes[1], p.gpu->info().name.c_str(), free, total);
  HOTSET_ASSIGN(p.weights, cuda::DeviceMemory::take(p.gpu, sizes[0], cuda::Purpose::weights, "weights"));
  HOTSET_ASSIGN(p.experts, cuda::DeviceMemory::take(p.gpu, sizes[1], cuda::Purpose::experts, "expert weights"));
  HOTSET_ASSIGN(p.states, cuda::DeviceMemory::take(p.gpu, state_bytes, cuda::Purpose::weights, "tables of device kernels"));

  const cuda::Current current(*p.gpu);
  HOTSET_ASSIGN(Copier copier, Copier::make(p.gpu));
  uint64_t done = 0;
  const uint64_t all = sizes[0] + sizes[1];
  const auto advance = [&](size_t n) -> Status {
    done += n;
    if (progress && !progress(std::min<uint64_t>(done, all), all))
      return Status(Code::cancelled, "the progress callback cancelled the load");
    return {};
  };
  uint64_t next[2] = {p.weights.address(), p.experts.address()};
  for (const Placement::Constant& c : p.constants) {
    Tensor& t = constants_[c.copy];
    t.data = reinterpret_cast<void*>(next[c.is_expert]);
    HOTSET_TRY(copier.copy(next[c.is_expert], constants_[p.copy_of[c.copy]].data, t.bytes(), pool, advance));
    next[c.is_expert] += aligned(t.bytes());
  }
  HOTSET_TRY(copier.wait());

  HOTSET_ASSIGN(cuda::PinnedMemory staging, cuda::PinnedMemory::take(p.gpu, largest_state, "staging of tables"));
  uint64_t state = p.states.address();
  std::vector<Tensor> inputs, host;
  for (Step& step : steps_) {
    if (!step.device) continue;
    inputs.assign(step.inputs.size(), {});
    host.assign(step.inputs.size(), {});
    for (size_t i = 0; i < step.inputs.size(); ++i) {
      const model::ValueId id = step.inputs[i];
      if (id == model::kNone || !is_constant_[id]) continue;
      if (p.on_device[id]) inputs[i] = constants_[id];
      host[i] = constants_[p.on_device[id] ? p.copy_of[id] : id];
    }
    step.state = step.device->state_bytes() ? state : 0;
    state += aligned(step.device->state_bytes());
    if (Status status = step.device->prepare({*p.gpu, copier.stream(), inputs, host, reinterpret_cast<void*>(step.state), staging.data()});
        !status.ok())
      return std::move(status).at(node(step).text());
    HOTSET_TRY(copier.wait());  // the staging is the next node's
  }
  return {};
}

}  // namespace hotset

// SPDX-License-Identifier: Apache-2.0
// The constants that a GPU reads, copied to it when the session is created, and what device kernels make of them.
#include <algorithm>

#include "cuda/upload.h"
#include "session/program.h"

namespace hotset {
namespace {

constexpr size_t kAlignment = 256;
size_t aligned(size_t n) { return (n + kAlignment - 1) & ~(kAlignment - 1); }

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
  if (sizes[0]) {
    HOTSET_ASSIGN(p.weights, cuda::DeviceMemory::take(p.gpu, sizes[0], cuda::Purpose::weights, "weights"));
  }
  if (sizes[1]) {
    HOTSET_ASSIGN(p.experts, cuda::DeviceMemory::take(p.gpu, sizes[1], cuda::Purpose::experts, "expert weights"));
  }
  uint64_t next[2] = {p.weights.address(), p.experts.address()};
  std::vector<cuda::UploadPiece> in_files, in_memory;
  uint64_t file_bytes = 0, memory_bytes = 0;
  for (const Placement::Constant& c : p.constants) {
    Tensor& t = constants_[c.copy];
    t.data = reinterpret_cast<void*>(next[c.is_expert]);
    next[c.is_expert] += aligned(t.bytes());
    if (!t.bytes()) continue;
    const model::ValueId source = p.copy_of[c.copy];
    const model::Constant* in_file = graph().constant(source);
    const bool is_mapped = in_file && in_file->file >= 0 && in_file->tensor.data == constants_[source].data;
    (is_mapped ? in_files : in_memory).push_back({reinterpret_cast<uint64_t>(t.data), constants_[source].data, t.bytes()});
    (is_mapped ? file_bytes : memory_bytes) += t.bytes();
  }
  const uint64_t all = file_bytes + memory_bytes;
  cuda::Upload how;
  how.way = cuda::Upload::Way::best;
  how.progress = [&](uint64_t done, uint64_t) { return !progress || progress(done, all); };
  if (!in_files.empty()) HOTSET_TRY(cuda::upload(p.gpu, pool, in_files, how));
  how.way = cuda::Upload::Way::ring;
  how.progress = [&](uint64_t done, uint64_t) { return !progress || progress(file_bytes + done, all); };
  if (!in_memory.empty()) HOTSET_TRY(cuda::upload(p.gpu, pool, in_memory, how));
  return prepare_device_kernels(state_bytes, largest_state);
}

// Lets the device kernels make what they keep of their constants.
Status Program::prepare_device_kernels(size_t state_bytes, size_t largest_state) {
  Placement& p = *placement_;
  if (state_bytes) {
    HOTSET_ASSIGN(p.states, cuda::DeviceMemory::take(p.gpu, state_bytes, cuda::Purpose::weights, "tables of device kernels"));
  }
  const cuda::Current current(*p.gpu);
  HOTSET_ASSIGN(const cuda::PinnedMemory staging, cuda::PinnedMemory::take(p.gpu, largest_state, "staging of tables"));
  HOTSET_ASSIGN(const cuda::OwnStream stream, cuda::OwnStream::make(p.gpu));
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
    if (Status status = step.device->prepare({*p.gpu, stream.get(), inputs, host, reinterpret_cast<void*>(step.state), staging.data()});
        !status.ok())
      return std::move(status).at(node(step).text());
    HOTSET_TRY(stream.synchronize());  // the staging is the next node's
  }
  return {};
}

}  // namespace hotset

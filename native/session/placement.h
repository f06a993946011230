// SPDX-License-Identifier: Apache-2.0
// Which steps of a program a GPU runs, and the copies between host and device memory that this takes.
//
// Every value lies on one side. Where a step needs the content of a value of the other side, a copy of the value is made, a value of
// its own:
//
//     attention_mask (host) → ReduceSum → Sub → seqlens_k (host) ──upload──→ seqlens_k (device) ─┐
//     past_key (host)       ──upload──→ past_key (device) ───────────────────────────────────────┴→ GroupQueryAttention
//
// A constant that the GPU reads is copied once, when the session is created. The copy of a graph input that the caller binds in
// device memory is that memory. What decides shapes stays on the host. Steps of the host that wait for nothing of the device go
// first, so that the GPU gets its work in one piece.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "cuda/device.h"
#include "model/graph.h"

namespace hotset {

struct Placement {
  std::shared_ptr<cuda::Gpu> gpu;
  std::vector<char> on_device;               // by value
  std::vector<model::ValueId> copy_of;       // by value: the one with the same content on the other side, or kNone
  std::vector<model::ValueId> input_copies;  // by graph input: its copy on the device, or kNone
  std::vector<char> host_reads_input;        // by graph input: its content is needed on the host
  struct Constant {
    model::ValueId copy;  // on the device
    bool is_expert;       // weights of an expert layer
  };
  std::vector<Constant> constants;
  cuda::DeviceMemory weights, experts, states;  // constants, and what device kernels keep
};

}  // namespace hotset

// SPDX-License-Identifier: Apache-2.0
// One mixture-of-experts layer on a GPU: routing, both products of every chosen expert, the weighted sum. Results are those of
// experts/expert_layer.h, with the sums of FC1 and the activated features rounded to the layer's type, as tensor-core operands are.
// Sums go over routes in their order; nothing depends on timing: two runs give the same bits.
#pragma once
#include <cstddef>
#include <cstdint>

#include "cuda/device.h"
#include "cuda/moe_params.h"

namespace hotset::cuda {

struct MoeLayer {
  MoeType type = MoeType::f32;         // of x and y; f32, f16 or bf16
  MoeType logits_type = MoeType::f32;  // and of the router weights, where given
  MoeType given_type = MoeType::none;
  uint32_t hidden = 0, inter = 0, n_experts = 0, k = 1;
  bool normalize = false, sparse_mixer = false;
  MoePairing pairing = MoePairing::none;
  MoeActivation activation = {};
  MoeForm form[3] = {};                                             // FC1, FC2, FC3
  bool tensor_cores = true, wgmma = true, few_tensor_cores = true;  // false: do without; the last of few rows alone
  uint32_t panels = 0;                                              // of a block in FC1 of few rows; 0: chosen
  uint32_t weight_alignment = 1;                                    // divides the addresses of all weights, up to 16
  uint32_t scale_alignment = 1;  // and those of scales; scales and biases begin at multiples of their elements anyway
};

struct MoeCall {
  const void* x = nullptr;       // [n_tokens][hidden]
  const void* logits = nullptr;  // [n_tokens][n_experts]
  const void* given = nullptr;   // the same, or null
  // Device: the table of experts, moe_table_bytes() of it. Aligned words of 4 bytes that hold a scale must be readable.
  const MoeExpert* experts = nullptr;
  void* y = nullptr;  // [n_tokens][hidden]
  uint32_t n_tokens = 0;
  void* workspace = nullptr;  // device, 256-byte aligned
};

// A table of experts is MoeExpert [n_experts], then their addresses once more by kind: uint64_t [FC1, FC2, FC3][weights, scales, zeros,
// bias][n_experts].
size_t moe_table_bytes(uint32_t n_experts);
// Fills in the second part from the first; `table` lies in host memory, aligned for both.
void complete_moe_table(void* table, uint32_t n_experts);

// Offsets of what a call keeps in its workspace.
struct MoeWorkspace {
  size_t ids, weights, groups, counts, order, tiles, places, sorted_rows, offsets, x, h, rows, total;
};

// Code::unsupported with the reason when no kernel takes the layer.
Status check_moe(const MoeLayer& layer);
MoeWorkspace moe_workspace(const Limits& limits, const MoeLayer& layer, uint32_t n_tokens);
Status launch_moe(Gpu& gpu, Stream stream, const MoeLayer& layer, const MoeCall& call);
// What computes a call, "simt" or "mma"; for reports.
const char* moe_kernels(const Limits& limits, const MoeLayer& layer, uint32_t n_tokens);

}  // namespace hotset::cuda

// SPDX-License-Identifier: Apache-2.0
// Attention on the device: chooses kernels and grids, enqueues. Nothing is allocated and nothing waited for; all lengths are read
// by the kernels, so that one captured graph serves every position.
#pragma once
#include <cstddef>

#include "base/dtype.h"
#include "cuda/attention_params.h"
#include "cuda/device.h"

namespace hotset::cuda {

struct AttentionCall {
  DType type = DType::undefined;  // of activations: f32, f16 or bf16
  AttentionParams params{};       // all but q, staged rows, splits and workspace addresses, which attention() fills
};

// Bytes of device workspace. Reads sizes and flags of the call, whether addresses are 0 and whether present_k is past_k.
size_t attention_workspace(const Gpu& gpu, const AttentionCall& call);
// "cuda mma" or "cuda", for reports.
const char* attention_kernel_name(const Gpu& gpu, const AttentionCall& call);
// `workspace`: 256-byte aligned.
Status attention(Gpu& gpu, Stream stream, const AttentionCall& call, DevicePtr workspace);

}  // namespace hotset::cuda

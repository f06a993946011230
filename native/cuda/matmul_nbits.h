// SPDX-License-Identifier: Apache-2.0
// MatMulNBits on a device: activations and results of float32, float16 or bfloat16, codes of 2, 4 or 8 bits.
#pragma once
#include "base/dtype.h"
#include "cuda/device.h"
#include "cuda/matmul_nbits_params.h"

namespace hotset::cuda {

enum class NBitsForm {
  any,    // one warp a column: every form of the operator
  gemv,   // tensor cores, few rows: zero points as codes, scales of the activations' type that belong to whole 16 bytes of codes
  gemm,   // rows of codes decoded to the activations' type, then a dense product: many rows
  wgmma,  // many rows of 16-bit activations and raw int4 codes on sm_90a: decoded in registers
};

// What serves p (sizes and types are read; pointers say what is there and how it is aligned).
NBitsForm nbits_form(const Gpu& gpu, const NBitsParams& p);
const char* nbits_form_name(NBitsForm form);

// p with no addresses but those that say that there are zero points and a bias: how a call is planned.
NBitsParams nbits_anywhere(NBitsParams p, bool with_zeros, bool with_bias);

// Bytes of workspace of a call that was planned so. One whose weights lie at odd addresses is served by a kernel without workspace.
size_t nbits_workspace(const Gpu& gpu, const NBitsParams& p);
size_t nbits_workspace(NBitsForm form, const NBitsParams& p);
Status launch_nbits(Gpu& gpu, Stream stream, const NBitsParams& p, void* workspace);

// The same in a given form, for tests.
Status launch_nbits_as(NBitsForm form, Gpu& gpu, Stream stream, const NBitsParams& p, void* workspace);

}  // namespace hotset::cuda

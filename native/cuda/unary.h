// SPDX-License-Identifier: Apache-2.0
// Elementwise device kernels of one operand, and conversions of types.
#pragma once
#include "cuda/device.h"
#include "cuda/unary_params.h"

namespace hotset::cuda {

// Enqueues p.y[i] = op(p.x[i]); p.y may be p.x where the types have one size.
Status launch_unary(Gpu& gpu, Stream stream, const UnaryParams& p);

}  // namespace hotset::cuda

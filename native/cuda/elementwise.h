// SPDX-License-Identifier: Apache-2.0
// Elementwise device kernels of two operands: float32, float16, bfloat16.
#pragma once
#include "base/dtype.h"
#include "cuda/device.h"
#include "cuda/elementwise_params.h"

namespace hotset::cuda {

// The kernel for an element type; Code::unsupported for others.
hotset::Result<Function> binary_function(Gpu& gpu, DType type);

// Enqueues p.out[i] = op(p.a[..], p.b[..]); p.out may be p.a or p.b where that one has p.n elements.
Status launch_binary(const Gpu& gpu, Stream stream, Function function, const BinaryParams& p);

}  // namespace hotset::cuda

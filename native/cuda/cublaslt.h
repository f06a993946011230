// SPDX-License-Identifier: Apache-2.0
// NVIDIA's dense products, used where libcublasLt is on the machine: nothing of hotset needs it. The few functions and numbers that
// we use are declared by hand, as those of the driver.
#pragma once
#include "cuda/matmul.h"

namespace hotset::cuda {

// Products that are large enough to gain, in the forms that have no surprises: float16 and bfloat16, a bias of one row at most.
bool cublaslt_takes(const MatMulCall& call);

// Enqueues the product and sets *done, or leaves *done false when there is no library or it has no kernel. Its sums have an order of
// their own: results differ from our kernels' in the last bits.
Status launch_cublaslt(const Gpu& gpu, Stream stream, const MatMulCall& call, bool* done);

// The library's version as it counts ("130100"), 0 without one.
size_t cublaslt_version();

}  // namespace hotset::cuda

// SPDX-License-Identifier: Apache-2.0
// RMS and layer normalisation on a device: float32, float16, bfloat16, mixed too.
#pragma once
#include "cuda/device.h"
#include "cuda/norm_params.h"

namespace hotset::cuda {

Status launch_norm(Gpu& gpu, Stream stream, const NormParams& p);

}  // namespace hotset::cuda

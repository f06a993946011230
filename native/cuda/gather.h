// SPDX-License-Identifier: Apache-2.0
// Slices by index on a device.
#pragma once
#include "cuda/device.h"
#include "cuda/gather_params.h"

namespace hotset::cuda {

Status launch_gather(Gpu& gpu, Stream stream, const GatherParams& p);
Status launch_gather_quantized(Gpu& gpu, Stream stream, const GatherQuantizedParams& p);

}  // namespace hotset::cuda

// SPDX-License-Identifier: Apache-2.0
// Rotary embedding on a device.
#pragma once
#include "base/dtype.h"
#include "cuda/device.h"
#include "cuda/rotary_params.h"

namespace hotset::cuda {

Status launch_rotary(Gpu& gpu, Stream stream, DType type, const RotaryParams& p);

}  // namespace hotset::cuda

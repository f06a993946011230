// SPDX-License-Identifier: Apache-2.0
// An expert layer as the kernels of a GPU are told about it.
#pragma once
#include "cuda/moe.h"
#include "experts/expert_layer.h"
#include "experts/router.h"

namespace hotset::experts {

cuda::MoeType device_type(DType type);
cuda::MoeForm device_form(const MatrixForm& form);
// Everything but the types of logits and router weights and the alignment of weights. `layer.dtype` is the type of x.
cuda::MoeLayer device_layer(const ExpertLayer& layer, const Router& router);
// Addresses on the device of one matrix.
cuda::MoePlace device_place(const MatrixBytes& bytes);

}  // namespace hotset::experts

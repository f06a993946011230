// SPDX-License-Identifier: Apache-2.0
// com.microsoft::GatherBlockQuantized on a GPU.
#include <algorithm>

#include "cuda/gather.h"
#include "ops/device_kernel.h"

namespace hotset::ops {
namespace {

constexpr int kData = 0, kIndices = 1, kScales = 2, kZeroPoints = 3;

class GatherBlockQuantizedOnDevice final : public DeviceKernel {
 public:
  explicit GatherBlockQuantizedOnDevice(const model::Node& node)
      : bits_(static_cast<int>(node.get_int("bits", 4))),
        block_(node.get_int("block_size", 128)),
        gather_axis_(node.get_int("gather_axis", 0)),
        quantize_axis_(node.get_int("quantize_axis", 1)) {}
  std::string_view implementation() const override { return "cuda simt"; }

  Status plan(const InferContext& c, size_t* workspace) const override {
    *workspace = 0;
    cuda::GatherQuantizedParams p = {};
    return describe(c.dtype(kData), c.shape(kData), c.shape(kScales), &p);
  }

  Status launch(const DeviceRun& run) const override {
    const Tensor &data = *run.inputs[kData], &indices = *run.inputs[kIndices], &scales = *run.inputs[kScales];
    const Tensor* const zeros = run.input(kZeroPoints);
    cuda::GatherQuantizedParams p = {};
    HOTSET_TRY(describe(data.dtype, data.shape, scales.shape, &p));
    p.data = data.as<const uint8_t>();
    p.indices = indices.data;
    p.scales = scales.data;
    p.zeros = zeros ? zeros->as<const uint8_t>() : nullptr;
    p.y = run.outputs[0]->data;
    p.n = indices.size();
    p.index_bytes = dtype_bits(indices.dtype) / 8;
    p.scale_type = static_cast<int32_t>(scales.dtype);
    return cuda::launch_gather_quantized(run.gpu, run.stream, p);
  }

 private:
  // uint8 data holds 8 / bits codes a byte along its last axis, zero points of a row begin at a whole byte.
  Status describe(DType type, Shape shape, const Shape& scales, cuda::GatherQuantizedParams* p) const {
    const int axis = static_cast<int>(quantize_axis_ < 0 ? quantize_axis_ + shape.rank : quantize_axis_);
    const int gather = static_cast<int>(gather_axis_ < 0 ? gather_axis_ + shape.rank : gather_axis_);
    p->bits = type == DType::u8 ? bits_ : dtype_bits(type);
    p->kind = type == DType::u8 || type == DType::u4 ? 0 : type == DType::i4 ? 1 : static_cast<int32_t>(type);
    if (type == DType::u8) {
      shape[-1] *= 8 / bits_;
      p->default_zero = 1 << (bits_ - 1);
    }
    p->outer = shape.product(0, gather);
    p->size = shape[gather];
    p->inner = shape.product(gather + 1, shape.rank);
    p->length = std::max<int64_t>(shape[axis], 1);
    p->stride = shape.product(axis + 1, shape.rank);
    p->block = block_ > 0 ? block_ : p->length;
    p->blocks = (shape[axis] + p->block - 1) / p->block;
    if (type == DType::u8) p->zero_row_bytes = static_cast<int32_t>((p->blocks * p->bits + 7) / 8);
    p->scale_line = p->blocks * p->stride;
    p->scale_block = p->stride;
    p->scale_rest = 1;
    Shape full = shape;
    full[axis] = p->blocks;
    if (scales == full) return {};
    // Dimensions of 1 that serve all of an axis: here all axes before, or behind, the quantised one.
    const bool one_line = scales.product(0, axis) == 1, one_rest = scales.product(axis + 1, scales.rank) == 1;
    HOTSET_FAIL_IF((!one_line && scales.product(0, axis) != shape.product(0, axis)) ||
                       (!one_rest && scales.product(axis + 1, scales.rank) != p->stride),
                   unsupported, "scales of shape %s for data of shape %s", to_text(scales).c_str(), to_text(shape).c_str());
    const int64_t rest = one_rest ? 1 : p->stride;
    p->scale_rest = one_rest ? 0 : 1;
    p->scale_block = scales[axis] == 1 ? 0 : rest;
    p->scale_line = one_line ? 0 : scales[axis] * rest;
    return {};
  }

  const int bits_;
  const int64_t block_, gather_axis_, quantize_axis_;
};

Result<std::unique_ptr<DeviceKernel>> make_gather_block_quantized_on_device(const DeviceContext& c) {
  return std::unique_ptr<DeviceKernel>(std::make_unique<GatherBlockQuantizedOnDevice>(c.op.node()));
}

}  // namespace

HOTSET_CUDA_OPS(gather_block_quantized_cuda, {"com.microsoft", "GatherBlockQuantized", make_gather_block_quantized_on_device});

}  // namespace hotset::ops

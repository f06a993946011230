// SPDX-License-Identifier: Apache-2.0
// Gather on a GPU. An index that is out of range gives a slice of zeros there: a kernel cannot fail a run.
#include "cuda/gather.h"
#include "ops/device_kernel.h"

namespace hotset::ops {
namespace {

class GatherOnDevice final : public DeviceKernel {
 public:
  explicit GatherOnDevice(int64_t axis) : axis_(axis) {}
  std::string_view implementation() const override { return "cuda simt"; }
  Status launch(const DeviceRun& run) const override {
    const Tensor &data = *run.inputs[0], &indices = *run.inputs[1];
    const int axis = static_cast<int>(axis_ < 0 ? axis_ + data.shape.rank : axis_);
    cuda::GatherParams p = {};
    p.data = data.data;
    p.indices = indices.data;
    p.y = run.outputs[0]->data;
    p.outer = data.shape.product(0, axis);
    p.size = data.shape[axis];
    p.n = indices.size();
    p.slice_bytes = data.shape.product(axis + 1, data.shape.rank) * (dtype_bits(data.dtype) / 8);
    p.index_bytes = dtype_bits(indices.dtype) / 8;
    return cuda::launch_gather(run.gpu, run.stream, p);
  }

 private:
  const int64_t axis_;
};

Result<std::unique_ptr<DeviceKernel>> make_gather_on_device(const DeviceContext& c) {
  if (const DType type = c.op.declared_type(0); type != DType::undefined && (dtype_bits(type) < 8 || type == DType::string))
    return c.on_cpu("elements of type %s", dtype_name(type));
  return std::unique_ptr<DeviceKernel>(std::make_unique<GatherOnDevice>(c.op.node().get_int("axis", 0)));
}

}  // namespace

HOTSET_CUDA_OPS(gather_cuda, {"", "Gather", make_gather_on_device});

}  // namespace hotset::ops

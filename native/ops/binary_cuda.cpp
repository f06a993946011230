// SPDX-License-Identifier: Apache-2.0
// Add, Sub, Mul and Div of floats on a GPU.
#include "cuda/elementwise.h"
#include "ops/broadcast.h"
#include "ops/device_kernel.h"

namespace hotset::ops {
namespace {

class BinaryOnDevice final : public DeviceKernel {
 public:
  BinaryOnDevice(cuda::Binary op, cuda::Function function) : op_(op), function_(function) {}
  std::string_view implementation() const override { return "cuda simt"; }
  Status launch(const DeviceRun& run) const override {
    const Tensor &a = *run.inputs[0], &b = *run.inputs[1], &out = *run.outputs[0];
    const Broadcast<2> layout(out.shape, {&a.shape, &b.shape});
    cuda::BinaryParams p = {};
    p.a = reinterpret_cast<uint64_t>(a.data);
    p.b = reinterpret_cast<uint64_t>(b.data);
    p.out = reinterpret_cast<uint64_t>(out.data);
    p.n = out.size();
    p.op = op_;
    p.rank = layout.rank;
    static_assert(cuda::BinaryParams::kMaxDims >= kMaxRank);
    for (int d = 0; d < layout.rank; ++d) {
      p.dim[d] = layout.dim[d];
      p.stride_a[d] = layout.stride[d][0];
      p.stride_b[d] = layout.stride[d][1];
    }
    return launch_binary(run.gpu, run.stream, function_, p);
  }

 private:
  const cuda::Binary op_;
  const cuda::Function function_;
};

template <cuda::Binary op>
Result<std::unique_ptr<DeviceKernel>> make_binary_on_device(const DeviceContext& c) {
  const DType type = c.op.declared_type(c.op.declared_type(0) == DType::undefined ? 1 : 0);
  if (type != DType::f32 && type != DType::f16 && type != DType::bf16)
    return c.on_cpu("elements of type %s, device kernels have float, float16, bfloat16", dtype_name(type));
  HOTSET_ASSIGN(const cuda::Function function, cuda::binary_function(c.gpu, type));
  return Result<std::unique_ptr<DeviceKernel>>(std::make_unique<BinaryOnDevice>(op, function));
}

}  // namespace

HOTSET_CUDA_OPS(binary_cuda, {"", "Add", make_binary_on_device<cuda::Binary::add>}, {"", "Sub", make_binary_on_device<cuda::Binary::sub>},
                {"", "Mul", make_binary_on_device<cuda::Binary::mul>}, {"", "Div", make_binary_on_device<cuda::Binary::div>});

}  // namespace hotset::ops

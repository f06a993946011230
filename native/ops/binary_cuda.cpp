// SPDX-License-Identifier: Apache-2.0
// Add, Sub, Mul and Div of floats on a GPU.
#include <algorithm>

#include "cuda/elementwise.h"
#include "ops/broadcast.h"
#include "ops/device_kernel.h"

namespace hotset::ops {
namespace {

class BinaryOnDevice final : public DeviceKernel {
 public:
  explicit BinaryOnDevice(cuda::Binary op) : op_(op) {}
  // The graph may leave the type of its values open: the kernels of all types are at hand.
  Status find_functions(cuda::Gpu& gpu) {
    for (int i = 0; i < kTypes; ++i) {
      HOTSET_ASSIGN(functions_[i], cuda::binary_function(gpu, kDeviceTypes[i]));
    }
    return {};
  }
  std::string_view implementation() const override { return "cuda simt"; }
  Status plan(const InferContext& c, size_t* workspace) const override {
    *workspace = 0;
    HOTSET_FAIL_IF(!is_device_type(c.dtype(0)), unsupported, "elements of type %s on a GPU, which has float, float16, bfloat16",
                   dtype_name(c.dtype(0)));
    return {};
  }
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
    const auto type = std::find(kDeviceTypes, kDeviceTypes + kTypes, out.dtype);
    return launch_binary(run.gpu, run.stream, functions_[type - kDeviceTypes], p);
  }
  static bool is_device_type(DType type) { return std::find(kDeviceTypes, kDeviceTypes + kTypes, type) != kDeviceTypes + kTypes; }

 private:
  static constexpr int kTypes = 3;
  static constexpr DType kDeviceTypes[kTypes] = {DType::f32, DType::f16, DType::bf16};
  const cuda::Binary op_;
  cuda::Function functions_[kTypes] = {};
};

template <cuda::Binary op>
Result<std::unique_ptr<DeviceKernel>> make_binary_on_device(const DeviceContext& c) {
  const DType type = c.op.declared_type(c.op.declared_type(0) == DType::undefined ? 1 : 0);
  if (type != DType::undefined && !BinaryOnDevice::is_device_type(type))
    return c.on_cpu("elements of type %s, device kernels have float, float16, bfloat16", dtype_name(type));
  auto kernel = std::make_unique<BinaryOnDevice>(op);
  HOTSET_TRY(kernel->find_functions(c.gpu));
  return Result<std::unique_ptr<DeviceKernel>>(std::move(kernel));
}

}  // namespace

HOTSET_CUDA_OPS(binary_cuda, {"", "Add", make_binary_on_device<cuda::Binary::add>}, {"", "Sub", make_binary_on_device<cuda::Binary::sub>},
                {"", "Mul", make_binary_on_device<cuda::Binary::mul>}, {"", "Div", make_binary_on_device<cuda::Binary::div>});

}  // namespace hotset::ops

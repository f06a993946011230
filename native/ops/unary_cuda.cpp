// SPDX-License-Identifier: Apache-2.0
// Elementwise operators of one operand, and Cast, on a GPU.
#include "cuda/unary.h"
#include "ops/device_kernel.h"

namespace hotset::ops {
namespace {

bool is_device_float(DType t) { return t == DType::f32 || t == DType::f16 || t == DType::bf16; }

class UnaryOnDevice final : public DeviceKernel {
 public:
  UnaryOnDevice(cuda::Unary op, float alpha) : op_(op), alpha_(alpha) {}
  std::string_view implementation() const override { return "cuda simt"; }
  Status launch(const DeviceRun& run) const override {
    const Tensor &x = *run.inputs[0], &y = *run.outputs[0];
    if (op_ == cuda::Unary::copy && x.data == y.data) return {};  // a cast to the type that it has
    return cuda::launch_unary(run.gpu, run.stream,
                              {x.data, y.data, y.size(), op_, static_cast<int32_t>(x.dtype), static_cast<int32_t>(y.dtype), alpha_});
  }

 private:
  const cuda::Unary op_;
  const float alpha_;
};

Result<std::unique_ptr<DeviceKernel>> make(const DeviceContext& c, cuda::Unary op, float alpha = 0) {
  if (const DType type = c.op.declared_type(0); !is_device_float(type))
    return c.on_cpu("elements of type %s, device kernels have float, float16, bfloat16", dtype_name(type));
  return std::unique_ptr<DeviceKernel>(std::make_unique<UnaryOnDevice>(op, alpha));
}
template <cuda::Unary op>
Result<std::unique_ptr<DeviceKernel>> make_unary_on_device(const DeviceContext& c) {
  return make(c, op);
}

Result<std::unique_ptr<DeviceKernel>> make_gelu_on_device(const DeviceContext& c) {
  return make(c, c.op.node().get_string("approximate", "none") == "tanh" ? cuda::Unary::gelu_tanh : cuda::Unary::gelu);
}
Result<std::unique_ptr<DeviceKernel>> make_swish_on_device(const DeviceContext& c) {
  return make(c, cuda::Unary::swish, c.op.node().get_float("alpha", c.op.node().op_type == "QuickGelu" ? 1.702f : 1.0f));
}

// Between floats; integers of 32 and 64 bits to anything among these types.
Result<std::unique_ptr<DeviceKernel>> make_cast_on_device(const DeviceContext& c) {
  const DType from = c.op.declared_type(0);
  const DType to = c.op.node().op_type == "Cast" ? static_cast<DType>(c.op.node().get_int("to", 0)) : c.op.declared_type(1);
  const auto is_integer = [](DType t) { return t == DType::i32 || t == DType::i64; };
  if (!(is_device_float(from) || is_integer(from)) || !(is_device_float(to) || (is_integer(from) && is_integer(to))))
    return c.on_cpu("a cast from %s to %s", dtype_name(from), dtype_name(to));
  return std::unique_ptr<DeviceKernel>(std::make_unique<UnaryOnDevice>(cuda::Unary::copy, 0.0f));
}

}  // namespace

HOTSET_CUDA_OPS(unary_cuda, {"", "Cast", make_cast_on_device}, {"", "CastLike", make_cast_on_device},
                {"", "Neg", make_unary_on_device<cuda::Unary::neg>}, {"", "Abs", make_unary_on_device<cuda::Unary::abs>},
                {"", "Exp", make_unary_on_device<cuda::Unary::exp>}, {"", "Log", make_unary_on_device<cuda::Unary::log>},
                {"", "Sqrt", make_unary_on_device<cuda::Unary::sqrt>}, {"", "Reciprocal", make_unary_on_device<cuda::Unary::reciprocal>},
                {"", "Sin", make_unary_on_device<cuda::Unary::sin>}, {"", "Cos", make_unary_on_device<cuda::Unary::cos>},
                {"", "Tanh", make_unary_on_device<cuda::Unary::tanh>}, {"", "Erf", make_unary_on_device<cuda::Unary::erf>},
                {"", "Sigmoid", make_unary_on_device<cuda::Unary::sigmoid>}, {"", "Softplus", make_unary_on_device<cuda::Unary::softplus>},
                {"", "Relu", make_unary_on_device<cuda::Unary::relu>}, {"", "Gelu", make_gelu_on_device},
                {"com.microsoft", "Gelu", make_gelu_on_device}, {"", "Swish", make_swish_on_device},
                {"com.microsoft", "QuickGelu", make_swish_on_device});

}  // namespace hotset::ops

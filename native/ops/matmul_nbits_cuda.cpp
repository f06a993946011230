// SPDX-License-Identifier: Apache-2.0
// com.microsoft::MatMulNBits on a GPU. Activations are never quantised there: accuracy_level permits that, it does not ask for it.
#include "cuda/matmul_nbits.h"
#include "ops/device_kernel.h"

namespace hotset::ops {
namespace {

constexpr int kA = 0, kB = 1, kScales = 2, kZeroPoints = 3, kBias = 5;

bool is_activation(DType t) { return t == DType::f32 || t == DType::f16 || t == DType::bf16; }

class MatMulNBitsOnDevice final : public DeviceKernel {
 public:
  MatMulNBitsOnDevice(cuda::Gpu& gpu, const cuda::NBitsParams& params) : gpu_(gpu), params_(params) {}
  std::string_view implementation() const override { return "cuda mma"; }

  Status plan(const InferContext& c, size_t* workspace) const override {
    const Shape& a = c.shape(kA);
    const int64_t m = a.product(0, a.rank - 1);
    HOTSET_FAIL_IF(m > INT32_MAX, unsupported, "%lld rows", static_cast<long long>(m));
    const auto type = [&](int i) { return c.has_input(i) ? c.dtype(i) : DType::undefined; };
    *workspace = cuda::nbits_workspace(gpu_, with_types(m, c.dtype(kA), c.dtype(kScales), type(kZeroPoints), type(kBias)));
    return {};
  }

  Status launch(const DeviceRun& run) const override {
    const Tensor &a = *run.inputs[kA], &b = *run.inputs[kB], &scales = *run.inputs[kScales], &y = *run.outputs[0];
    const Tensor *const zeros = run.input(kZeroPoints), *const bias = run.input(kBias);
    const auto type = [](const Tensor* t) { return t ? t->dtype : DType::undefined; };
    cuda::NBitsParams p = with_types(a.shape.product(0, a.shape.rank - 1), a.dtype, scales.dtype, type(zeros), type(bias));
    if (b.shape.size() == 0) p.k = 0;  // a projection that is left out: the bias alone
    p.a = a.data;
    p.codes = b.as<const uint8_t>();
    p.scales = scales.data;
    p.zeros = zeros ? zeros->data : nullptr;
    p.bias = bias ? bias->data : nullptr;
    p.y = y.data;
    return cuda::launch_nbits(run.gpu, run.stream, p, run.workspace);
  }

 private:
  cuda::NBitsParams with_types(int64_t m, DType a, DType scales, DType zeros, DType bias) const {
    cuda::NBitsParams p = params_;
    p.m = static_cast<int32_t>(m);
    p.a_type = static_cast<int32_t>(a);
    p.scale_type = static_cast<int32_t>(scales);
    p.zero_type = static_cast<int32_t>(zeros);
    p.bias_type = static_cast<int32_t>(bias);
    p = cuda::nbits_anywhere(p, zeros != DType::undefined, bias != DType::undefined);
    return p;
  }

  cuda::Gpu& gpu_;
  const cuda::NBitsParams params_;  // but for addresses and what a call decides
};

Result<std::unique_ptr<DeviceKernel>> make_matmul_nbits_on_device(const DeviceContext& c) {
  const model::Node& node = c.op.node();
  const int64_t n = node.get_int("N", 0), k = node.get_int("K", 0), block = node.get_int("block_size", 32), bits = node.get_int("bits", 4);
  if (n > INT32_MAX || k > INT32_MAX - block)
    return c.on_cpu("a matrix of %lld x %lld", static_cast<long long>(n), static_cast<long long>(k));
  const DType type = c.op.declared_type(kA);
  if (type != DType::undefined && !is_activation(type)) return c.on_cpu("activations of type %s", dtype_name(type));
  cuda::NBitsParams p = {};
  p.n = static_cast<int32_t>(n);
  p.k = static_cast<int32_t>(k);
  p.bits = static_cast<int32_t>(bits);
  p.blocks = static_cast<int32_t>((k + block - 1) / block);
  while ((int64_t{1} << p.block_shift) < block) ++p.block_shift;
  p.prepacked = node.get_int("weight_prepacked", 0) == 1;
  p.row_bytes = p.prepacked ? k * bits / 8 : p.blocks * (block * bits / 8);
  p.zero_row_bytes = static_cast<int32_t>((p.blocks * bits + 7) / 8);
  p.ready = c.op.constant(kB) && c.op.constant(kScales) && (!c.op.has_input(kZeroPoints) || c.op.constant(kZeroPoints));
  return std::unique_ptr<DeviceKernel>(std::make_unique<MatMulNBitsOnDevice>(c.gpu, p));
}

}  // namespace

HOTSET_CUDA_OPS(matmul_nbits_cuda, {"com.microsoft", "MatMulNBits", make_matmul_nbits_on_device});

}  // namespace hotset::ops

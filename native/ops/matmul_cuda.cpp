// SPDX-License-Identifier: Apache-2.0
// MatMul, FusedMatMul and Gemm of floats on a GPU.
#include "cuda/matmul.h"
#include "ops/broadcast.h"
#include "ops/device_kernel.h"

namespace hotset::ops {
namespace {

class MatMulOnDevice final : public DeviceKernel {
 public:
  explicit MatMulOnDevice(const cuda::MatMulCall& call, bool gemm) : call_(call), gemm_(gemm) {}
  std::string_view implementation() const override { return "cuda mma"; }

  Status launch(const DeviceRun& run) const override {
    const Tensor &a = *run.inputs[0], &b = *run.inputs[1], &y = *run.outputs[0];
    const bool row = a.shape.rank == 1, column = b.shape.rank == 1;  // their dimension of size 1 is left out of the result
    cuda::MatMulCall call = call_;
    call.type = a.dtype;
    call.a = a.data;
    call.b = b.data;
    call.c = y.data;
    call.trans_a = call.trans_a && !row;
    call.trans_b = call.trans_b && !column;
    call.m = row ? 1 : call.trans_a ? a.shape[-1] : a.shape[-2];
    call.k = row ? a.shape[0] : call.trans_a ? a.shape[-2] : a.shape[-1];
    call.n = column ? 1 : call.trans_b ? b.shape[-2] : b.shape[-1];
    if (const Tensor* const c = gemm_ ? run.input(2) : nullptr) {
      call.bias = c->data;
      call.bias_type = c->dtype;
      const int64_t columns = c->shape.rank >= 1 ? c->shape[-1] : 1, rows = c->shape.rank >= 2 ? c->shape[-2] : 1;
      call.bias_row = rows == 1 ? 0 : columns;
      call.bias_column = columns == 1 ? 0 : 1;
    }
    return launch_batch(run, call, a, b);
  }

 private:
  // Leading dimensions: as rows of A, as a batch with one step for each operand, or one launch a matrix.
  static Status launch_batch(const DeviceRun& run, cuda::MatMulCall call, const Tensor& a, const Tensor& b) {
    const auto leading = [](const Shape& s) { return Shape(std::span(s.dim, static_cast<size_t>(std::max(0, s.rank - 2)))); };
    const Shape a_batch = leading(a.shape), b_batch = leading(b.shape);
    Shape batch = a_batch;
    HOTSET_TRY(broadcast_shape(b_batch, &batch));
    const int64_t count = batch.size();
    if (count == 0) return {};
    if (b_batch.size() == 1 && !call.trans_a && a_batch.size() == count) {
      call.m *= count;
      return cuda::launch_matmul(run.gpu, run.stream, call);
    }
    const bool a_steps = a_batch.size() == count, b_steps = b_batch.size() == count;
    if ((a_steps || a_batch.size() == 1) && (b_steps || b_batch.size() == 1)) {
      call.batch = count;
      call.a_batch = a_steps && count > 1 ? call.m * call.k : 0;
      call.b_batch = b_steps && count > 1 ? call.k * call.n : 0;
      return cuda::launch_matmul(run.gpu, run.stream, call);
    }
    const Broadcast<2> layout(batch, {&a_batch, &b_batch});
    const int64_t bytes = dtype_bits(call.type) / 8;
    Status status;
    layout.walk(0, layout.n_runs(), [&](const int64_t* at, int64_t r) {
      const int64_t *step = layout.stride[layout.rank - 1], n = layout.run();
      for (int64_t i = 0; i < n && status.ok(); ++i) {
        cuda::MatMulCall one = call;
        one.a = static_cast<const char*>(call.a) + (at[0] + i * step[0]) * call.m * call.k * bytes;
        one.b = static_cast<const char*>(call.b) + (at[1] + i * step[1]) * call.k * call.n * bytes;
        one.c = static_cast<char*>(call.c) + (r * n + i) * call.m * call.n * bytes;
        status = cuda::launch_matmul(run.gpu, run.stream, one);
      }
    });
    return status;
  }

  const cuda::MatMulCall call_;
  const bool gemm_;
};

template <bool gemm, bool fused>
Result<std::unique_ptr<DeviceKernel>> make_matmul_on_device(const DeviceContext& c) {
  const DType type = c.op.declared_type(c.op.declared_type(0) == DType::undefined ? 1 : 0);
  if (type != DType::f32 && type != DType::f16 && type != DType::bf16)
    return c.on_cpu("matrices of type %s, device kernels have float, float16, bfloat16", dtype_name(type));
  const model::Node& node = c.op.node();
  cuda::MatMulCall call;
  if (gemm || fused) {
    call.trans_a = node.get_int("transA", 0) != 0;
    call.trans_b = node.get_int("transB", 0) != 0;
    call.alpha = node.get_float("alpha", 1.0f);
  }
  if (gemm) call.beta = node.get_float("beta", 1.0f);
  call.b_ready = c.op.constant(1) != nullptr;
  call.library = c.op.config().cublaslt;
  return std::unique_ptr<DeviceKernel>(std::make_unique<MatMulOnDevice>(call, gemm));
}

}  // namespace

HOTSET_CUDA_OPS(matmul_cuda, {"", "MatMul", make_matmul_on_device<false, false>}, {"", "Gemm", make_matmul_on_device<true, false>},
                {"com.microsoft", "FusedMatMul", make_matmul_on_device<false, true>});

}  // namespace hotset::ops

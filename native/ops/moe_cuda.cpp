// SPDX-License-Identifier: Apache-2.0
// MoE and QMoE on a GPU, with all experts in device memory.
//
// State of a node: the table of experts | FC1 weights | FC2 weights, the latter only of 4-bit floats that the file packs along N: they
// come to the device packed along K, which is what its kernels read.
#include <bit>
#include <cstring>

#include "cpu_avx/weight_rows.h"
#include "cuda/moe.h"
#include "experts/device_layer.h"
#include "ops/device_kernel.h"
#include "ops/moe_kernel.h"

namespace hotset::ops {
namespace {

using experts::MatrixForm;

class MoeOnDevice final : public DeviceKernel {
 public:
  MoeOnDevice(const MoeKernel& kernel, cuda::Gpu& gpu, bool given, DType declared, const OpConfig& config)
      : kernel_(kernel),
        layer_(experts::device_layer(*kernel.constant_layer(), kernel.router(given))),
        limits_(gpu.limits()),
        decode_tc_(config.moe_decode_tc),
        int3_tc_(config.qmoe_int3_tc) {
    for (int i = 0; i < 3; ++i)
      if (turns(i)) layer_.form[i].storage = cuda::MoeStorage::fp4_by_k;
    if (declared != DType::undefined) layer_.type = experts::device_type(declared);
    name_ = std::string("cuda ") + cuda::moe_kernels(limits_, layer_, 1);
  }

  Status check() const { return cuda::check_moe(layer_); }

  InputUse use(int input) const override {
    if (input < 2 || input == kernel_.router_weights_input()) return InputUse::device;
    for (int i = 0; i < 3; ++i) {
      const FcInputs& fc = kernel_.inputs_of(i);
      if (input == fc.weights) return turns(i) ? InputUse::host : InputUse::device;
      if (input == fc.scales || input == fc.bias || input == fc.zero_points) return InputUse::device;
      if (input == fc.global_scale) return InputUse::host;
    }
    return InputUse::unused;  // scales of 8-bit activations
  }

  size_t state_bytes() const override { return turned_at(3); }

  Status prepare(const DeviceSetup& setup) override {
    auto* const table = reinterpret_cast<cuda::MoeExpert*>(setup.staging);
    std::memset(table, 0, state_bytes());
    uint64_t weights = 16, scales = 16;  // bits of all addresses
    for (int i = 0; i < 3; ++i) {
      fill_table(setup, i, table, &weights, &scales);
      if (turns(i)) turn(setup, i);
    }
    cuda::complete_moe_table(table, layer_.n_experts);
    layer_.weight_alignment = uint32_t{1} << std::countr_zero(weights);  // at most 16, as the next
    layer_.scale_alignment = uint32_t{1} << std::countr_zero(scales);
    const cuda::Driver& d = cuda::driver();
    return setup.gpu.check(d.memcpy_htod_async(reinterpret_cast<cuda::DevicePtr>(setup.state), table, state_bytes(), setup.stream),
                           "table of experts");
  }

  Status plan(const InferContext& context, size_t* workspace) const override {
    const cuda::MoeLayer layer = with_types(context.dtype(0), context.dtype(1), DType::undefined);
    const Shape& x = context.shape(0);
    *workspace = cuda::moe_workspace(limits_, layer, static_cast<uint32_t>(x.product(0, x.rank - 1))).total;
    return {};
  }

  Status launch(const DeviceRun& run) const override {
    const Tensor &x = *run.input(0), &logits = *run.input(1);
    const Tensor* const given = run.input(kernel_.router_weights_input());
    cuda::MoeCall call;
    call.x = x.data;
    call.logits = logits.data;
    call.given = given ? given->data : nullptr;
    call.experts = static_cast<const cuda::MoeExpert*>(run.state);
    call.y = run.output(0)->data;
    call.n_tokens = static_cast<uint32_t>(x.size() / layer_.hidden);
    call.workspace = run.workspace;
    return cuda::launch_moe(run.gpu, run.stream, with_types(x.dtype, logits.dtype, given ? given->dtype : DType::undefined), call);
  }

  std::string_view implementation() const override { return name_; }

 private:
  cuda::MoeLayer with_types(DType x, DType logits, DType given) const {
    cuda::MoeLayer layer = layer_;
    layer.type = experts::device_type(x);
    layer.logits_type = experts::device_type(logits);
    layer.given_type = experts::device_type(given);
    for (const cuda::MoeForm& f : layer.form) {
      const bool codes = f.storage == cuda::MoeStorage::raw || f.storage == cuda::MoeStorage::sm80;
      if (codes && f.bits <= 4 && (f.bits == 3 ? !int3_tc_ : !decode_tc_ && x == DType::bf16)) layer.few_tensor_cores = false;
    }
    return layer;
  }

  // Entries of one matrix; its addresses are or'ed to *weights and *scales.
  void fill_table(const DeviceSetup& setup, int matrix, cuda::MoeExpert* table, uint64_t* weights, uint64_t* scales) const {
    const FcInputs& fc = kernel_.inputs_of(matrix);
    const auto data = [](std::span<const Tensor> tensors, int input) -> const uint8_t* {
      return input >= 0 && static_cast<size_t>(input) < tensors.size()
                 ? static_cast<const uint8_t*>(tensors[static_cast<size_t>(input)].data)
                 : nullptr;
    };
    experts::MatrixBytes at{data(setup.inputs, fc.weights), data(setup.inputs, fc.scales), data(setup.inputs, fc.zero_points),
                            data(setup.inputs, fc.bias)};
    if (turns(matrix)) at.weights = static_cast<const uint8_t*>(setup.state) + turned_at(matrix);
    if (!at.weights) return;
    const uint8_t* const global_scale = data(setup.host, fc.global_scale);
    MatrixForm form = this->form(matrix);
    if (matrix == 1) form.bias_dtype = kernel_.constant_layer()->fc2_bias;
    for (uint32_t e = 0; e < layer_.n_experts; ++e) {
      if (global_scale) std::memcpy(&at.global_scale, global_scale + e * sizeof(float), sizeof(float));
      table[e].fc[matrix] = experts::device_place(at);
      *weights |= reinterpret_cast<uintptr_t>(at.weights);
      *scales |= reinterpret_cast<uintptr_t>(at.scales);
      at.weights += form.weight_bytes();
      if (at.scales) at.scales += form.scale_bytes();
      if (at.zero_points) at.zero_points += form.zero_point_bytes();
      if (at.bias) at.bias += form.bias_bytes();
    }
  }

  const MatrixForm& form(int matrix) const {
    const experts::ExpertLayer& layer = *kernel_.constant_layer();
    return matrix == 0 ? layer.fc1.form() : matrix == 1 ? layer.fc2.form() : layer.fc3.form();
  }
  bool turns(int matrix) const { return form(matrix).storage == experts::Storage::fp4_by_n; }
  // Where the weights of a matrix lie in the state; of matrix 3: where it ends.
  size_t turned_at(int matrix) const {
    size_t at = (cuda::moe_table_bytes(layer_.n_experts) + 255) / 256 * 256;
    for (int i = 0; i < matrix; ++i)
      if (turns(i)) at += (form(i).weight_bytes() * layer_.n_experts + 255) / 256 * 256;
    return at;
  }
  // Half bytes [k][n] of every expert as [n][k], in the staging memory.
  void turn(const DeviceSetup& setup, int matrix) const {
    const MatrixForm& f = form(matrix);
    const auto* from = static_cast<const uint8_t*>(setup.host[static_cast<size_t>(kernel_.inputs_of(matrix).weights)].data);
    auto* to = reinterpret_cast<uint8_t*>(setup.staging) + turned_at(matrix);
    for (uint32_t e = 0; e < layer_.n_experts; ++e, from += f.weight_bytes(), to += f.weight_bytes())
      cpu::weight_rows().transpose_nibbles(from, f.n / 2, f.n, f.k, to, f.k / 2);
  }

  const MoeKernel& kernel_;
  cuda::MoeLayer layer_;  // prepare() completes it
  const cuda::Limits limits_;
  const bool decode_tc_, int3_tc_;
  std::string name_;
};

Result<std::unique_ptr<DeviceKernel>> make_moe_on_device(const DeviceContext& c) {
  const auto& kernel = static_cast<const MoeKernel&>(c.kernel);
  if (!kernel.constant_layer()) return c.on_cpu("the weights of experts are not constants");
  if (kernel.changes_routes()) return c.on_cpu("routes are dropped or replaced (session.moe.offload.*)");
  const bool given = c.op.has_input(kernel.router_weights_input());
  auto device = std::make_unique<MoeOnDevice>(kernel, c.gpu, given, c.op.declared_type(0), c.op.config());
  if (const Status status = device->check(); !status.ok()) return c.on_cpu("%s", status.text().c_str());
  return Result<std::unique_ptr<DeviceKernel>>(std::move(device));
}

}  // namespace

HOTSET_CUDA_OPS(moe_cuda, {"com.microsoft", "MoE", make_moe_on_device}, {"com.microsoft", "QMoE", make_moe_on_device});

}  // namespace hotset::ops

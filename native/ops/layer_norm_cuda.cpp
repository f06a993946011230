// SPDX-License-Identifier: Apache-2.0
// LayerNormalization, RMSNormalization, SimplifiedLayerNormalization and their forms with a residual sum on a GPU.
#include "cuda/norm.h"
#include "ops/device_kernel.h"

namespace hotset::ops {
namespace {

// What one operator makes of its inputs and outputs; -1: it has no such thing.
struct Form {
  bool center;
  int skip, gamma, beta, bias;  // input positions; x is input 0
  int mean, inverse, sum;       // output positions; y is output 0
  float epsilon;                // default
};
constexpr Form kLayer = {true, -1, 1, 2, -1, 1, 2, -1, 1e-5f};
constexpr Form kRms = {false, -1, 1, -1, -1, -1, -1, -1, 1e-5f};
constexpr Form kSimplified = {false, -1, 1, -1, -1, -1, 1, -1, 1e-5f};
constexpr Form kSkipLayer = {true, 1, 2, 3, 4, 1, 2, 3, 1e-12f};
constexpr Form kSkipSimplified = {false, 1, 2, -1, 3, 1, 2, 3, 1e-12f};

class NormOnDevice final : public DeviceKernel {
 public:
  NormOnDevice(const Form& form, const DeviceContext& c)
      : form_(form),
        epsilon_(c.op.node().get_float("epsilon", form.epsilon)),
        axis_(form.skip >= 0 ? -1 : c.op.node().get_int("axis", -1)),
        ready_(c.op.constant(form.gamma) && (form.beta < 0 || !c.op.has_input(form.beta) || c.op.constant(form.beta))) {}
  std::string_view implementation() const override { return "cuda simt"; }

  Status launch(const DeviceRun& run) const override {
    const Tensor& x = *run.inputs[0];
    if (x.size() == 0) return {};
    const int axis = static_cast<int>(axis_ < 0 ? axis_ + x.shape.rank : axis_);
    cuda::NormParams p = {};
    p.x = x.data;
    p.type = static_cast<int32_t>(x.dtype);
    p.width = x.shape.product(axis, x.shape.rank);
    p.rows = x.shape.product(0, axis);
    p.skip_rows = 1;
    const auto input = [&](int i, const void** data, int32_t* type) {
      const Tensor* const t = i < 0 ? nullptr : run.input(i);
      if (t) *data = t->data, *type = static_cast<int32_t>(t->dtype);
      return t;
    };
    if (const Tensor* const skip = input(form_.skip, &p.skip, &p.skip_type)) p.skip_rows = skip->size() / p.width;
    input(form_.gamma, &p.gamma, &p.gamma_type);
    input(form_.beta, &p.beta, &p.beta_type);
    input(form_.bias, &p.bias, &p.bias_type);
    const auto output = [&](int i) -> void* {
      const Tensor* const t = i < 0 ? nullptr : run.output(i);
      return t ? t->data : nullptr;
    };
    p.y = output(0);
    p.sum = output(form_.sum);
    p.mean = static_cast<float*>(output(form_.mean));
    p.inverse = static_cast<float*>(output(form_.inverse));
    p.epsilon = epsilon_;
    p.center = form_.center;
    p.ready = ready_;
    return cuda::launch_norm(run.gpu, run.stream, p);
  }

 private:
  const Form& form_;
  const float epsilon_;
  const int64_t axis_;
  const bool ready_;
};

template <const Form& form>
Result<std::unique_ptr<DeviceKernel>> make_norm_on_device(const DeviceContext& c) {
  return std::unique_ptr<DeviceKernel>(std::make_unique<NormOnDevice>(form, c));
}

}  // namespace

HOTSET_CUDA_OPS(layer_norm_cuda, {"", "LayerNormalization", make_norm_on_device<kLayer>},
                {"", "RMSNormalization", make_norm_on_device<kRms>}, {"", "SimplifiedLayerNormalization", make_norm_on_device<kSimplified>},
                {"com.microsoft", "SimplifiedLayerNormalization", make_norm_on_device<kSimplified>},
                {"com.microsoft", "SkipLayerNormalization", make_norm_on_device<kSkipLayer>},
                {"com.microsoft", "SkipSimplifiedLayerNormalization", make_norm_on_device<kSkipSimplified>});

}  // namespace hotset::ops

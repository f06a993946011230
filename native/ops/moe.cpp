// SPDX-License-Identifier: Apache-2.0
// com.microsoft::MoE: experts with float weights.
#include "ops/moe_kernel.h"

namespace hotset::ops {
namespace {

using experts::MatrixForm;

constexpr FcInputs kFc[3] = {{"fc1", 2, -1, 3, -1, -1}, {"fc2", 4, -1, 5, -1, -1}, {"fc3", 6, -1, 7, -1, -1}};

class Moe final : public MoeKernel {
 public:
  explicit Moe(const MoeAttributes& attributes) : MoeKernel(attributes, kFc, -1) {}

 protected:
  bool int8_activations(const MatrixForm&) const override { return false; }

  // fc1 [E,fI,H] and fc2 [E,H,I], or both with their last axes swapped. A bias tells; otherwise both readings may fit.
  int64_t find_hidden(const NodeInputs& inputs) const override {
    const Tensor* const bias = inputs.find(kFc[1].bias);
    if (bias && bias->shape.rank == 2) return bias->shape[1];
    const Shape &fc1 = inputs[kFc[0].weights].shape, &fc2 = inputs[kFc[1].weights].shape;
    if (fc1.rank != 3 || fc2.rank != 3) return 0;
    const int64_t f = attributes_.is_pair() && !inputs.has(kFc[2].weights) ? 2 : 1;
    const bool plain = fc1[2] == fc2[1] && fc1[1] == f * fc2[2], swapped = fc1[1] == fc2[2] && fc1[2] == f * fc2[1];
    return plain && swapped && fc1[1] != fc1[2] ? 0 : swapped ? fc1[1] : fc1[2];
  }

  Status describe(const NodeInputs& inputs, Layout* layout) const override {
    layout->inter = inputs[kFc[1].weights].shape.product(1, 3) / layout->hidden;
    const int64_t hidden = layout->hidden, inter = layout->inter;
    const int64_t n[3] = {layout->rows_a_feature() * inter, hidden, inter}, k[3] = {hidden, inter, hidden};
    for (int i = 0; i < 3; ++i) {
      const FcInputs& fc = kFc[i];
      if (!inputs.has(fc.weights)) continue;
      const Shape& shape = inputs[fc.weights].shape;
      const DType dtype = inputs[fc.weights].dtype;
      HOTSET_FAIL_IF(dtype != DType::f32 && dtype != DType::f16 && dtype != DType::bf16, invalid_model,
                     "%s_experts_weights (input %d) is %s, expected float, float16 or bfloat16", fc.name, fc.weights, dtype_name(dtype));
      // [E,K,N] declares the same bytes.
      const Shape expected{layout->n_experts, n[i], k[i]}, swapped{layout->n_experts, k[i], n[i]};
      HOTSET_FAIL_IF(!(shape == expected) && !(shape == swapped), invalid_model,
                     "%s_experts_weights (input %d) has shape %s, expected %s or %s for hidden size %lld", fc.name, fc.weights,
                     to_text(shape).c_str(), to_text(expected).c_str(), to_text(swapped).c_str(), static_cast<long long>(hidden));
      MatrixForm& form = layout->form[i];
      form.storage = experts::Storage::dense;
      form.dtype = dtype;
      form.n = n[i];
      form.k = k[i];
      HOTSET_TRY(read_bias(inputs, fc, layout->n_experts, &form));
    }
    return {};
  }
};

Result<std::unique_ptr<Kernel>> make_moe(const OpContext& context) {
  MoeAttributes attributes;
  HOTSET_TRY(read_moe_attributes(context, &attributes));
  for (int input : {0, 1, 2, 4})
    if (!context.has_input(input)) return context.fail(Code::invalid_model, "input %d is missing", input);
  auto kernel = std::make_unique<Moe>(attributes);
  HOTSET_TRY(kernel->create(context));
  return std::unique_ptr<Kernel>(std::move(kernel));
}

}  // namespace

HOTSET_OPS(moe, {"com.microsoft", "MoE", 1, kLatest, make_moe, {3, 8}});

}  // namespace hotset::ops

// SPDX-License-Identifier: Apache-2.0
// com.microsoft::QMoE: experts with quantised weights.
#include "ops/moe_kernel.h"
#include "ops/qmoe_layout.h"

namespace hotset::ops {
namespace {

using experts::MatrixForm;

constexpr FcInputs kFc[3] = {{"fc1", 2, 3, 4, 11}, {"fc2", 5, 6, 7, 12}, {"fc3", 8, 9, 10, 13}};
constexpr int kRouterWeights = 14, kFirstGlobalScale = 15, kLastInput = 20;

struct QmoeAttributes {
  int bits[3] = {4, 4, 4};
  int64_t block_size = 0;
  int64_t weights_prepacked = -1;
  bool allows_int8 = false;
};

class Qmoe final : public MoeKernel {
 public:
  Qmoe(const MoeAttributes& attributes, const QmoeAttributes& quantised, CpuActivation activation)
      : MoeKernel(attributes, kFc, kRouterWeights), quantised_(quantised), activation_(activation) {}

 protected:
  // accuracy_level 4 speaks of 4-bit codes in blocks only.
  bool int8_activations(const MatrixForm& form) const override {
    if (activation_ != CpuActivation::by_node) return activation_ == CpuActivation::int8;
    return quantised_.allows_int8 && form.bits == 4 && form.block < form.k;
  }

  int64_t find_hidden(const NodeInputs& inputs) const override {
    const Shape& scales = inputs[kFc[1].scales].shape;
    return scales.rank >= 2 ? scales[1] : 0;
  }

  Status describe(const NodeInputs& inputs, Layout* layout) const override {
    const Shape& fc2 = inputs[kFc[1].weights].shape;
    const int64_t hidden = layout->hidden;
    const bool odd_width = quantised_.bits[1] == 3;  // codes cross bytes: rows are counted, not elements
    const int64_t bits = (odd_width ? fc2[2] : fc2.product(1, 3)) * 8, divisor = quantised_.bits[1] * (odd_width ? 1 : hidden);
    const int64_t inter = layout->inter = bits / divisor;
    HOTSET_FAIL_IF(bits % divisor != 0 || inter < 1 || (odd_width && inter % 8 != 0), invalid_model,
                   "fc2_experts_weights (input %d) has shape %s: no inter size fits hidden size %lld and %d bits", kFc[1].weights, to_text(fc2).c_str(),
                   static_cast<long long>(hidden), quantised_.bits[1]);

    const int64_t n[3] = {layout->rows_a_feature() * inter, hidden, inter}, k[3] = {hidden, inter, hidden};
    DeclaredMatrix matrices[3];
    int place[3], count = 0;
    for (int i = 0; i < 3; ++i) {
      const FcInputs& fc = kFc[i];
      const Tensor *const weights = inputs.find(fc.weights), *const scales = inputs.find(fc.scales), *const zeros = inputs.find(fc.zero_points);
      if (!weights) continue;
      HOTSET_FAIL_IF(!scales, invalid_model, "%s_scales (input %d) is missing", fc.name, fc.scales);
      HOTSET_FAIL_IF(weights->dtype != DType::u8, invalid_model, "%s_experts_weights (input %d) is %s, expected uint8", fc.name, fc.weights,
                     dtype_name(weights->dtype));
      HOTSET_FAIL_IF(scales->dtype != DType::f32 && scales->dtype != DType::f16 && scales->dtype != DType::bf16, invalid_model,
                     "%s_scales (input %d) is %s, expected float, float16 or bfloat16", fc.name, fc.scales, dtype_name(scales->dtype));
      HOTSET_FAIL_IF(zeros && zeros->dtype != DType::u8, invalid_model, "%s_zero_points (input %d) is %s, expected uint8", fc.name, fc.zero_points,
                     dtype_name(zeros->dtype));
      matrices[count] = {fc.name, &weights->shape, &scales->shape, zeros ? &zeros->shape : nullptr, scales->dtype, quantised_.bits[i], n[i], k[i]};
      place[count++] = i;
    }
    // Scales first: weights quantised along the wrong axis show there, while their shape looks prepacked.
    for (int i = 0; i < count; ++i) {
      HOTSET_TRY(describe_matrix(matrices[i], layout->n_experts, quantised_.block_size, &layout->form[place[i]]));
      HOTSET_TRY(read_bias(inputs, kFc[place[i]], layout->n_experts, &layout->form[place[i]]));
    }
    bool prepacked = false;
    HOTSET_TRY(decide_layout(matrices, count, layout->n_experts, quantised_.weights_prepacked, inputs.has(kFc[2].weights), &prepacked));
    for (int i = 0; i < count && prepacked; ++i) layout->form[place[i]].storage = experts::Storage::sm80;
    return {};
  }

 private:
  const QmoeAttributes quantised_;
  const CpuActivation activation_;
};

Status read_qmoe_attributes(const OpContext& context, const MoeAttributes& common, QmoeAttributes* out) {
  const model::Node& node = context.node();
  const std::string kind = node.get_string("quant_type", "int");
  if (kind == "fp4" || kind == "mxfp4" || kind == "nvfp4" || kind == "fp8" || kind == "wfp4afp8")
    return context.fail(Code::unsupported, "quant_type '%s' is not supported yet, only 'int'", kind.c_str());
  if (kind != "int") return context.fail(Code::invalid_model, "attribute quant_type is '%s', expected int, fp4, nvfp4, fp8 or wfp4afp8", kind.c_str());

  const int64_t all = node.get_int("expert_weight_bits", 4);
  const char* const names[3] = {"fc1_expert_weight_bits", "fc2_expert_weight_bits", "fc3_expert_weight_bits"};
  for (int i = 0; i < 3; ++i) {
    // FC3 is the other half of a fused FC1, so it follows FC1 when it does not say otherwise.
    const int64_t inherited = i == 2 && common.is_pair() ? out->bits[0] : all;
    const int64_t bits = node.get_int(names[i], inherited);
    if (bits != 2 && bits != 3 && bits != 4 && bits != 8)
      return context.fail(Code::invalid_model, "attribute %s is %lld, supported: 2 3 4 8", node.find(names[i]) ? names[i] : "expert_weight_bits",
                          static_cast<long long>(bits));
    out->bits[i] = static_cast<int>(bits);
  }
  if (common.is_pair() && out->bits[2] != out->bits[0])
    return context.fail(Code::invalid_model, "fc3_expert_weight_bits is %d, but FC1 holds its rows and has %d bits", out->bits[2], out->bits[0]);

  const int64_t block = node.get_int("block_size", 0);
  if (block > 0 && (block < 16 || (block & (block - 1)) != 0))
    return context.fail(Code::invalid_model, "attribute block_size is %lld, expected a power of two of at least 16", static_cast<long long>(block));
  out->block_size = block;
  out->weights_prepacked = node.get_int("weights_prepacked", -1);
  if (out->weights_prepacked < -1 || out->weights_prepacked > 1)
    return context.fail(Code::invalid_model, "attribute weights_prepacked is %lld, expected -1, 0 or 1", static_cast<long long>(out->weights_prepacked));
  out->allows_int8 = node.get_int("accuracy_level", 0) == 4;
  return {};
}

Result<std::unique_ptr<Kernel>> make_qmoe(const OpContext& context) {
  MoeAttributes common;
  QmoeAttributes quantised;
  HOTSET_TRY(read_moe_attributes(context, &common));
  HOTSET_TRY(read_qmoe_attributes(context, common, &quantised));
  for (int input : {0, 1, 2, 3, 5, 6})
    if (!context.has_input(input)) return context.fail(Code::invalid_model, "input %d is missing", input);
  for (int input = kFirstGlobalScale; input <= kLastInput; ++input)
    if (context.has_input(input))
      return context.fail(Code::invalid_model, "input %d (a global or activation scale) does not go with quant_type 'int'", input);
  auto kernel = std::make_unique<Qmoe>(common, quantised, context.config().cpu_activation);
  HOTSET_TRY(kernel->create(context));
  return std::unique_ptr<Kernel>(std::move(kernel));
}

}  // namespace

HOTSET_OPS(qmoe, {"com.microsoft", "QMoE", 1, kLatest, make_qmoe});

}  // namespace hotset::ops

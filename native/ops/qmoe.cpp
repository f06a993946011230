// SPDX-License-Identifier: Apache-2.0
// com.microsoft::QMoE: experts with quantised weights.
#include "ops/moe_kernel.h"
#include "ops/qmoe_layout.h"

namespace hotset::ops {
namespace {

using experts::MatrixForm;

constexpr FcInputs kFc[3] = {{"fc1", 2, 3, 4, 11, 15}, {"fc2", 5, 6, 7, 12, 16}, {"fc3", 8, 9, 10, 13, -1}};
constexpr int kRouterWeights = 14, kFc1ActScale = 17, kLastInput = 20;

enum class Kind { integer, mxfp4, nvfp4, fp8 };

struct QmoeAttributes {
  Kind kind = Kind::integer;
  std::string kind_name;
  int bits[3] = {4, 4, 4};
  int64_t block_size = 0;
  int64_t weights_prepacked = -1;
  bool allows_int8 = false;
};

bool is_float_type(DType t) { return t == DType::f32 || t == DType::f16 || t == DType::bf16; }

class Qmoe final : public MoeKernel {
 public:
  Qmoe(const MoeAttributes& attributes, const QmoeAttributes& quantised, CpuActivation activation)
      : MoeKernel(attributes, kFc, kRouterWeights), quantised_(quantised), activation_(activation) {}

 protected:
  // accuracy_level 4 speaks of 4-bit integers in blocks only. wfp4afp8 never takes integers: its activations are floats by name.
  bool int8_activations(const MatrixForm& form) const override {
    if (activation_ != CpuActivation::by_node) return activation_ == CpuActivation::int8 && quantised_.kind_name != "wfp4afp8";
    return quantised_.kind == Kind::integer && quantised_.allows_int8 && form.bits == 4 && form.block < form.k;
  }

  int64_t find_hidden(const NodeInputs& inputs) const override {
    // One scale an expert: no tensor of scales, and fp8 weights are [E,N,K] as declared.
    const Shape& shape = inputs[quantised_.kind == Kind::fp8 ? kFc[1].weights : kFc[1].scales].shape;
    return shape.rank >= 2 ? shape[1] : 0;
  }

  Status describe(const NodeInputs& inputs, Layout* layout) const override {
    HOTSET_TRY(find_inter(inputs, layout));
    HOTSET_TRY(check_act_scales(inputs, layout->n_experts));
    const int64_t n_experts = layout->n_experts, hidden = layout->hidden, inter = layout->inter;
    const int64_t n[3] = {layout->rows_a_feature() * inter, hidden, inter}, k[3] = {hidden, inter, hidden};
    DeclaredMatrix matrices[3];
    int place[3], count = 0;
    for (int i = 0; i < 3; ++i) {
      const FcInputs& fc = kFc[i];
      if (!inputs.has(fc.weights)) continue;
      HOTSET_TRY(check_inputs(inputs, fc, n_experts));
      const Tensor *const scales = inputs.find(fc.scales), *const zeros = inputs.find(fc.zero_points);
      matrices[count] = {fc.name,
                         &inputs[fc.weights].shape,
                         scales ? &scales->shape : nullptr,
                         zeros ? &zeros->shape : nullptr,
                         scales ? scales->dtype : DType::undefined,
                         quantised_.bits[i],
                         n[i],
                         k[i]};
      place[count++] = i;
    }
    for (int i = 0; i < count; ++i) {
      MatrixForm& form = layout->form[place[i]];
      switch (quantised_.kind) {
        // Scales first: weights quantised along the wrong axis show there, while their shape looks prepacked.
        case Kind::integer:
          HOTSET_TRY(describe_matrix(matrices[i], n_experts, quantised_.block_size, &form));
          break;
        case Kind::mxfp4:
        case Kind::nvfp4: {
          const bool by_k = quantised_.weights_prepacked == 1 && quantised_.kind_name != "wfp4afp8";
          HOTSET_TRY(describe_fp4(matrices[i], n_experts, quantised_.kind == Kind::nvfp4 ? 16 : 32, by_k, &form));
          // Bytes are read as the number format, also where the tensor calls them uint8.
          form.dtype = quantised_.kind == Kind::nvfp4 ? DType::f8e4m3fn : DType::f8e8m0;
          break;
        }
        case Kind::fp8:
          HOTSET_TRY(describe_fp8(matrices[i], n_experts, quantised_.block_size, &form));
          break;
      }
      HOTSET_TRY(read_bias(inputs, kFc[place[i]], n_experts, &form));
    }
    if (quantised_.kind != Kind::integer) return {};
    bool prepacked = false;
    HOTSET_TRY(
        decide_layout(matrices, count, n_experts, quantised_.weights_prepacked, inputs.has(kFc[2].weights), &prepacked, &layout->is_guess));
    for (int i = 0; i < count && prepacked; ++i) layout->form[place[i]].storage = experts::Storage::sm80;
    return {};
  }

 private:
  Status find_inter(const NodeInputs& inputs, Layout* layout) const {
    const Shape& fc2 = inputs[kFc[1].weights].shape;
    const int width = quantised_.bits[1];
    const bool odd_width = width == 3;  // codes cross bytes: rows are counted, not elements
    const int64_t bits = (odd_width ? fc2[2] : fc2.product(1, 3)) * 8, divisor = width * (odd_width ? 1 : layout->hidden);
    layout->inter = bits / divisor;
    HOTSET_FAIL_IF(bits % divisor != 0 || layout->inter < 1 || (odd_width && layout->inter % 8 != 0), invalid_model,
                   "fc2_experts_weights (input %d) has shape %s: no inter size fits hidden size %lld and %d bits", kFc[1].weights,
                   to_text(fc2).c_str(), static_cast<long long>(layout->hidden), width);
    return {};
  }

  // Presence and types of what belongs to one matrix.
  Status check_inputs(const NodeInputs& inputs, const FcInputs& fc, int64_t n_experts) const {
    const bool integer = quantised_.kind == Kind::integer, fp8 = quantised_.kind == Kind::fp8;
    const bool by_expert = fp8 && quantised_.block_size <= 0;
    const Tensor *const scales = inputs.find(fc.scales), *const zeros = inputs.find(fc.zero_points),
                        *const global = inputs.find(fc.global_scale);
    const DType weights = inputs[fc.weights].dtype;
    HOTSET_FAIL_IF(weights != DType::u8 && !(fp8 && weights == DType::f8e4m3fn), invalid_model,
                   "%s_experts_weights (input %d) is %s, expected %s", fc.name, fc.weights, dtype_name(weights),
                   fp8 ? "float8e4m3fn or uint8" : "uint8");
    HOTSET_FAIL_IF(!scales && !by_expert, invalid_model, "%s_scales (input %d) is missing", fc.name, fc.scales);
    HOTSET_FAIL_IF(scales && by_expert, invalid_model, "%s_scales (input %d) needs block_size with quant_type 'fp8'", fc.name, fc.scales);
    if (integer || fp8) {
      HOTSET_FAIL_IF(scales && !is_float_type(scales->dtype), invalid_model,
                     "%s_scales (input %d) is %s, expected float, float16 or bfloat16", fc.name, fc.scales, dtype_name(scales->dtype));
    } else {
      const DType wanted = quantised_.kind == Kind::nvfp4 ? DType::f8e4m3fn : DType::f8e8m0;
      HOTSET_FAIL_IF(scales->dtype != wanted && scales->dtype != DType::u8, invalid_model, "%s_scales (input %d) is %s, expected %s",
                     fc.name, fc.scales, dtype_name(scales->dtype), dtype_name(wanted));
    }
    HOTSET_FAIL_IF(zeros && !integer, invalid_model, "%s_zero_points (input %d) do not go with quant_type '%s'", fc.name, fc.zero_points,
                   quantised_.kind_name.c_str());
    HOTSET_FAIL_IF(zeros && zeros->dtype != DType::u8, invalid_model, "%s_zero_points (input %d) is %s, expected uint8", fc.name,
                   fc.zero_points, dtype_name(zeros->dtype));

    const bool takes_global = !integer && !(fp8 && !by_expert);
    HOTSET_FAIL_IF(global && !takes_global, invalid_model, "%s_global_scale (input %d) does not go with quant_type '%s'%s", fc.name,
                   fc.global_scale, quantised_.kind_name.c_str(), fp8 ? " in blocks" : "");
    HOTSET_FAIL_IF(takes_global && fc.global_scale < 0, invalid_model,
                   "quant_type '%s' has no scale for fc3_experts_weights: FC1 must hold its rows", quantised_.kind_name.c_str());
    const bool may_lack = quantised_.kind == Kind::mxfp4 && quantised_.weights_prepacked == 1;
    HOTSET_FAIL_IF(takes_global && !global && !may_lack, invalid_model, "%s_global_scale (input %d) is missing", fc.name, fc.global_scale);
    HOTSET_FAIL_IF(global && (global->dtype != DType::f32 || !(global->shape == Shape{n_experts})), invalid_model,
                   "%s_global_scale (input %d) is %s %s, expected float %s", fc.name, fc.global_scale, dtype_name(global->dtype),
                   to_text(global->shape).c_str(), to_text(Shape{n_experts}).c_str());
    return {};
  }

  // Scales for activations of 8 bits: checked, although kernels that keep activations as they are have no use for them.
  static Status check_act_scales(const NodeInputs& inputs, int64_t n_experts) {
    constexpr const char* kNames[] = {"fc1_act_scale", "fc2_act_scale"};
    for (int i = 0; i < 2; ++i) {
      const Tensor* const scale = inputs.find(kFc1ActScale + i);
      HOTSET_FAIL_IF(scale && (scale->dtype != DType::f32 || (!(scale->shape == Shape{1}) && !(scale->shape == Shape{n_experts}))),
                     invalid_model, "%s (input %d) is %s %s, expected float [1] or %s", kNames[i], kFc1ActScale + i,
                     dtype_name(scale->dtype), to_text(scale->shape).c_str(), to_text(Shape{n_experts}).c_str());
    }
    return {};
  }

  const QmoeAttributes quantised_;
  const CpuActivation activation_;
};

Status read_kind(const OpContext& context, QmoeAttributes* out) {
  constexpr struct {
    std::string_view name;
    Kind kind;
  } kKinds[] = {{"int", Kind::integer},    {"fp4", Kind::mxfp4},   {"mxfp4", Kind::mxfp4},
                {"wfp4afp8", Kind::mxfp4}, {"nvfp4", Kind::nvfp4}, {"fp8", Kind::fp8}};
  out->kind_name = context.node().get_string("quant_type", "int");
  for (const auto& entry : kKinds) {
    if (entry.name != out->kind_name) continue;
    out->kind = entry.kind;
    return {};
  }
  return context.fail(Code::invalid_model, "attribute quant_type is '%s', expected int, fp4, nvfp4, fp8 or wfp4afp8",
                      out->kind_name.c_str());
}

Status read_qmoe_attributes(const OpContext& context, const MoeAttributes& common, QmoeAttributes* out) {
  const model::Node& node = context.node();
  HOTSET_TRY(read_kind(context, out));
  const bool integer = out->kind == Kind::integer;
  const int64_t natural = out->kind == Kind::fp8 ? 8 : 4, all = node.get_int("expert_weight_bits", natural);
  const char* const names[3] = {"fc1_expert_weight_bits", "fc2_expert_weight_bits", "fc3_expert_weight_bits"};
  for (int i = 0; i < 3; ++i) {
    // FC3 is the other half of a fused FC1, so it follows FC1 when it does not say otherwise.
    const int64_t inherited = i == 2 && common.is_pair() ? out->bits[0] : all;
    const int64_t bits = node.get_int(names[i], inherited);
    if (integer ? bits != 2 && bits != 3 && bits != 4 && bits != 8 : bits != natural)
      return context.fail(Code::invalid_model, "attribute %s is %lld, supported with quant_type '%s': %s",
                          node.find(names[i]) ? names[i] : "expert_weight_bits", static_cast<long long>(bits), out->kind_name.c_str(),
                          integer        ? "2 3 4 8"
                          : natural == 8 ? "8"
                                         : "4");
    out->bits[i] = static_cast<int>(bits);
  }
  if (common.is_pair() && out->bits[2] != out->bits[0])
    return context.fail(Code::invalid_model, "fc3_expert_weight_bits is %d, but FC1 holds its rows and has %d bits", out->bits[2],
                        out->bits[0]);

  const int64_t block = node.get_int("block_size", 0);
  const int64_t only = out->kind == Kind::nvfp4 ? 16 : out->kind == Kind::mxfp4 ? 32 : 0;
  if (only && block > 0 && block != only)
    return context.fail(Code::invalid_model, "attribute block_size is %lld, expected -1 or %lld with quant_type '%s'",
                        static_cast<long long>(block), static_cast<long long>(only), out->kind_name.c_str());
  if (block > 0 && (block < 16 || (block & (block - 1)) != 0))
    return context.fail(Code::invalid_model, "attribute block_size is %lld, expected a power of two of at least 16",
                        static_cast<long long>(block));
  out->block_size = block;
  out->weights_prepacked = node.get_int("weights_prepacked", -1);
  if (out->weights_prepacked < -1 || out->weights_prepacked > 1)
    return context.fail(Code::invalid_model, "attribute weights_prepacked is %lld, expected -1, 0 or 1",
                        static_cast<long long>(out->weights_prepacked));
  if (node.find("zero_point_offset"))
    return context.fail(Code::unsupported, "attribute zero_point_offset is not supported: zero points are codes");
  out->allows_int8 = node.get_int("accuracy_level", 0) == 4;
  return {};
}

Result<std::unique_ptr<Kernel>> make_qmoe(const OpContext& context) {
  MoeAttributes common;
  QmoeAttributes quantised;
  HOTSET_TRY(read_moe_attributes(context, &common));
  HOTSET_TRY(read_qmoe_attributes(context, common, &quantised));
  for (int input : {0, 1, 2, 5})
    if (!context.has_input(input)) return context.fail(Code::invalid_model, "input %d is missing", input);
  const bool by_expert = quantised.kind == Kind::fp8 && quantised.block_size <= 0;
  for (int input : {3, 6})
    if (!by_expert && !context.has_input(input)) return context.fail(Code::invalid_model, "input %d (scales) is missing", input);
  // Weights keep their values here: scales for 8-bit activations are of no use to a kernel that does not quantise them.
  const bool ignores_act_scales = by_expert || quantised.kind_name == "wfp4afp8";
  for (int input = kFc1ActScale; input <= kLastInput; ++input)
    if (context.has_input(input) && !ignores_act_scales)
      return context.fail(Code::invalid_model, "input %d (a scale of activations) does not go with quant_type '%s'", input,
                          quantised.kind_name.c_str());
  if (common.sparse_mixer) context.warn("use_sparse_mixer is 1: the sparse mixer routes; onnxruntime ignores it in QMoE");
  if (quantised.weights_prepacked == 1 && (quantised.kind == Kind::fp8 || quantised.kind_name == "wfp4afp8"))
    context.warn("weights_prepacked 1 is ignored with quant_type '" + quantised.kind_name + "'");
  auto kernel = std::make_unique<Qmoe>(common, quantised, context.config().cpu_activation);
  HOTSET_TRY(kernel->create(context));
  return std::unique_ptr<Kernel>(std::move(kernel));
}

}  // namespace

HOTSET_OPS(qmoe, {"com.microsoft", "QMoE", 1, kLatest, make_qmoe, {3, 21}});

}  // namespace hotset::ops

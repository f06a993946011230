// SPDX-License-Identifier: Apache-2.0
// What is checked of every node before its factory sees it: numbers of inputs and outputs, kinds of attributes.
#include <algorithm>
#include <iterator>

#include "ops/op.h"

namespace hotset::ops {
namespace {

enum class AttributeKind { integer, number, text, integers, tensor };

struct AttributeName {
  std::string_view name;
  AttributeKind kind;
};

// Every attribute that a kernel here reads: a name has the same kind in all operators. Sorted.
constexpr AttributeName kAttributes[] = {
    {"K", AttributeKind::integer},
    {"N", AttributeKind::integer},
    {"accuracy_level", AttributeKind::integer},
    {"activation_alpha", AttributeKind::number},
    {"activation_beta", AttributeKind::number},
    {"activation_type", AttributeKind::text},
    {"allowzero", AttributeKind::integer},
    {"alpha", AttributeKind::number},
    {"approximate", AttributeKind::text},
    {"axes", AttributeKind::integers},
    {"axis", AttributeKind::integer},
    {"batch_dims", AttributeKind::integer},
    {"beta", AttributeKind::number},
    {"bits", AttributeKind::integer},
    {"block_size", AttributeKind::integer},
    {"causal", AttributeKind::integer},
    {"detect_negative", AttributeKind::integer},
    {"detect_positive", AttributeKind::integer},
    {"direction", AttributeKind::text},
    {"do_rotary", AttributeKind::integer},
    {"end", AttributeKind::integer},
    {"ends", AttributeKind::integers},
    {"epsilon", AttributeKind::number},
    {"exclusive", AttributeKind::integer},
    {"expert_weight_bits", AttributeKind::integer},
    {"fc1_expert_weight_bits", AttributeKind::integer},
    {"fc2_expert_weight_bits", AttributeKind::integer},
    {"fc3_expert_weight_bits", AttributeKind::integer},
    {"fmod", AttributeKind::integer},
    {"gather_axis", AttributeKind::integer},
    {"interleaved", AttributeKind::integer},
    {"is_causal", AttributeKind::integer},
    {"k", AttributeKind::integer},
    {"k_cache_dtype", AttributeKind::text},
    {"k_norm_epsilon", AttributeKind::number},
    {"k_quant_type", AttributeKind::text},
    {"keepdims", AttributeKind::integer},
    {"kv_cache_bit_width", AttributeKind::integer},
    {"kv_cache_layout", AttributeKind::text},
    {"kv_num_heads", AttributeKind::integer},
    {"largest", AttributeKind::integer},
    {"local_window_size", AttributeKind::integer},
    {"mask_filter_value", AttributeKind::number},
    {"max", AttributeKind::number},
    {"min", AttributeKind::number},
    {"mode", AttributeKind::text},
    {"mrope_layout", AttributeKind::integer},
    {"mrope_section", AttributeKind::integers},
    {"noop_with_empty_axes", AttributeKind::integer},
    {"normalize_routing_weights", AttributeKind::integer},
    {"num_heads", AttributeKind::integer},
    {"num_outputs", AttributeKind::integer},
    {"num_shared_experts", AttributeKind::integer},
    {"output_dtype", AttributeKind::integer},
    {"p", AttributeKind::integer},
    {"perm", AttributeKind::integers},
    {"q_norm_epsilon", AttributeKind::number},
    {"q_num_heads", AttributeKind::integer},
    {"qk_norm_epsilon", AttributeKind::number},
    {"qk_output", AttributeKind::integer},
    {"quant_type", AttributeKind::text},
    {"quantize_axis", AttributeKind::integer},
    {"reduction", AttributeKind::text},
    {"reverse", AttributeKind::integer},
    {"rotary_embedding_dim", AttributeKind::integer},
    {"rotary_interleaved", AttributeKind::integer},
    {"rotary_offset", AttributeKind::integer},
    {"round_mode", AttributeKind::text},
    {"saturate", AttributeKind::integer},
    {"scale", AttributeKind::number},
    {"sliding_window_cache", AttributeKind::integer},
    {"smooth_softmax", AttributeKind::integer},
    {"softcap", AttributeKind::number},
    {"split", AttributeKind::integers},
    {"start", AttributeKind::integer},
    {"starts", AttributeKind::integers},
    {"swiglu_fusion", AttributeKind::integer},
    {"swiglu_limit", AttributeKind::number},
    {"swiglu_limit_after_activation", AttributeKind::integer},
    {"to", AttributeKind::integer},
    {"transA", AttributeKind::integer},
    {"transB", AttributeKind::integer},
    {"transBatchA", AttributeKind::integer},
    {"transBatchB", AttributeKind::integer},
    {"unidirectional", AttributeKind::integer},
    {"upper", AttributeKind::integer},
    {"use_sparse_mixer", AttributeKind::integer},
    {"v_cache_dtype", AttributeKind::text},
    {"v_head_size", AttributeKind::integer},
    {"v_quant_type", AttributeKind::text},
    {"value", AttributeKind::tensor},
    {"weight_prepacked", AttributeKind::integer},
    {"weights_prepacked", AttributeKind::integer},
};
static_assert(std::is_sorted(std::begin(kAttributes), std::end(kAttributes),
                             [](const AttributeName& a, const AttributeName& b) { return a.name < b.name; }));

const char* kind_name(AttributeKind kind) {
  constexpr const char* kNames[] = {"an int", "a float", "a string", "a list of ints", "a tensor"};
  return kNames[static_cast<size_t>(kind)];
}

// What the file holds, in the order of the variant's alternatives.
const char* kind_name(const model::Attribute& attribute) {
  constexpr const char* kNames[] = {"of a kind without a use here",
                                    "an int",
                                    "a float",
                                    "a string",
                                    "a list of ints",
                                    "a list of floats",
                                    "a list of strings",
                                    "a tensor",
                                    "a graph"};
  return kNames[attribute.value.index()];
}

bool is_kind(const model::Attribute& attribute, AttributeKind kind) {
  switch (kind) {
    case AttributeKind::integer:
      return std::holds_alternative<int64_t>(attribute.value);
    case AttributeKind::number:
      return std::holds_alternative<float>(attribute.value);
    case AttributeKind::text:
      return std::holds_alternative<std::string>(attribute.value);
    case AttributeKind::integers:
      return std::holds_alternative<std::vector<int64_t>>(attribute.value);
    case AttributeKind::tensor:
      return std::holds_alternative<model::Constant>(attribute.value);
  }
  return false;
}

// Texts are names of modes: short and printable, so that messages may show them.
bool is_word(const std::string& text) {
  return text.size() <= 64 && std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

// Without empty names at the end.
int count(const std::vector<model::ValueId>& ids) {
  size_t n = ids.size();
  while (n > 0 && ids[n - 1] == model::kNone) --n;
  return static_cast<int>(n);
}

}  // namespace

Status check_signature(const OpEntry& entry, const OpContext& c) {
  const Arity& arity = entry.arity;
  const int n_inputs = count(c.node().inputs), n_outputs = count(c.node().outputs);
  if (n_inputs > arity.inputs) return c.fail(Code::invalid_model, "%d inputs, expected at most %d", n_inputs, arity.inputs);
  for (int i = 0; i < arity.required; ++i)
    if (!c.has_input(i)) return c.fail(Code::invalid_model, "input %d is missing", i);
  if (arity.inputs == kAny) {  // a list of operands, none of which may be left out
    for (int i = 0; i < c.n_inputs(); ++i)
      if (!c.has_input(i)) return c.fail(Code::invalid_model, "input %d is missing", i);
  }
  if (n_outputs > arity.outputs) return c.fail(Code::invalid_model, "%d outputs, expected at most %d", n_outputs, arity.outputs);
  if (n_outputs == 0 || (arity.first_output && !c.has_output(0))) return c.fail(Code::invalid_model, "output 0 is missing");
  for (const auto& [name, attribute] : c.node().attributes) {
    const auto known = std::lower_bound(std::begin(kAttributes), std::end(kAttributes), std::string_view(name),
                                        [](const AttributeName& a, std::string_view b) { return a.name < b; });
    if (known == std::end(kAttributes) || known->name != name) continue;
    if (const auto* text = std::get_if<std::string>(&attribute.value); text && known->kind == AttributeKind::text && !is_word(*text))
      return c.fail(Code::invalid_model, "attribute %s is %s, expected a word", name.c_str(), model::quote(*text).c_str());
    if (is_kind(attribute, known->kind)) continue;
    return c.fail(Code::invalid_model, "attribute %s is %s, expected %s", name.c_str(), kind_name(attribute), kind_name(known->kind));
  }
  return {};
}

}  // namespace hotset::ops

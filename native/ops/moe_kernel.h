// SPDX-License-Identifier: Apache-2.0
// What MoE and QMoE share: attributes, routing, the table of experts and the run of the layer.
#pragma once
#include <memory>

#include "experts/expert_layer.h"
#include "experts/expert_store.h"
#include "experts/router.h"
#include "ops/op.h"

namespace hotset::ops {

struct MoeAttributes {
  experts::Activation activation;
  int fusion = 0;  // swiglu_fusion
  int64_t k = 1;
  bool normalize = false, sparse_mixer = false;

  bool is_pair() const { return activation.kind == experts::ActivationKind::swiglu || activation.kind == experts::ActivationKind::geglu; }
};

Status read_moe_attributes(const OpContext& context, MoeAttributes* out);

// Numbers of the inputs of one matrix; -1: the operator has no such input.
struct FcInputs {
  const char* name;  // "fc1"
  int weights, scales, bias, zero_points, global_scale;
};

// Types and shapes of the inputs, null where absent. Data is not looked at.
class NodeInputs {
 public:
  explicit NodeInputs(std::span<const Tensor* const> tensors) : tensors_(tensors) {}
  const Tensor* find(int i) const { return static_cast<size_t>(i) < tensors_.size() ? tensors_[i] : nullptr; }
  bool has(int i) const { return find(i) != nullptr; }
  const Tensor& operator[](int i) const { return *tensors_[i]; }

 private:
  std::span<const Tensor* const> tensors_;
};

class MoeKernel : public Kernel {
 public:
  static constexpr int kMaxInputs = 21;

  // Called by the factory: describes the layer now if the weights are constants, so that a wrong model is refused at once.
  Status create(const OpContext& context);
  Status infer(InferContext& context) const final;
  Status run(const RunContext& context) const final;
  std::string_view implementation() const override;
  int64_t experts() const final { return n_experts_; }
  int store_layer() const final { return store_layer_; }

  // For the device form of the node. The layer as constants describe it, all but the type of x; null: weights are computed.
  const experts::ExpertLayer* constant_layer() const { return state_ ? &state_->layer : nullptr; }
  // `given`: with router weights as an input.
  experts::Router router(bool given) const;
  const FcInputs& inputs_of(int matrix) const { return fc_[matrix]; }  // 0 ... 2: FC1, FC2, FC3
  int router_weights_input() const { return router_weights_input_; }
  bool changes_routes() const { return tail_.is_on(); }

 protected:
  // What the shapes of the weights say, the same in all runs unless weights are computed.
  struct Layout {
    int64_t hidden = 0, inter = 0, n_experts = 0;
    experts::Pairing pairing = experts::Pairing::none;
    experts::MatrixForm form[3];  // FC1, FC2, FC3, biases included
    bool is_guess = false;        // the node does not say how its weights are stored

    int64_t rows_a_feature() const { return pairing == experts::Pairing::interleaved || pairing == experts::Pairing::halves ? 2 : 1; }
  };

  MoeKernel(const MoeAttributes& attributes, const FcInputs (&fc)[3], int router_weights_input)
      : attributes_(attributes), fc_{fc[0], fc[1], fc[2]}, router_weights_input_(router_weights_input) {}

  // The hidden size as the weights alone say it, or 0.
  virtual int64_t find_hidden(const NodeInputs& inputs) const = 0;
  // Checks all matrices and fills inter and form; the rest is filled already.
  virtual Status describe(const NodeInputs& inputs, Layout* layout) const = 0;
  virtual bool int8_activations(const experts::MatrixForm& form) const = 0;

  // Checks the bias of a matrix of N rows and notes its type.
  Status read_bias(const NodeInputs& inputs, const FcInputs& fc, int64_t n_experts, experts::MatrixForm* form) const;

  const MoeAttributes attributes_;
  const FcInputs fc_[3];

 private:
  struct State {
    Layout layout;
    experts::ExpertLayer layer;  // but for dtype
    experts::Router router;
  };
  void join_store(const OpContext& context);
  // The bytes of all experts where the inputs of this run say they are.
  void fill_table(const RunContext& context, const State& state, experts::ExpertBytes* table) const;
  Status make_state(const NodeInputs& inputs, int64_t hidden, State* out) const;
  Status find_pairing(const NodeInputs& inputs, experts::Pairing* out) const;
  Status check_router(const Tensor& tensor, int input, const char* name, int64_t n_tokens, int64_t n_experts) const;

  const int router_weights_input_;
  bool router_weights_norm_ = true;
  experts::TailRule tail_;
  int64_t n_experts_ = 0;
  size_t working_bytes_ = 0;               // 0: not set
  experts::ExpertStore* store_ = nullptr;  // null: weights are not constants, as for the next
  int store_layer_ = -1;
  std::unique_ptr<const State> state_;  // null: weights are not constants, each run makes its own
};

}  // namespace hotset::ops

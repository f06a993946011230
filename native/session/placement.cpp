// SPDX-License-Identifier: Apache-2.0
// Places steps on host and device, and inserts the copies.
#include "session/placement.h"

#include <algorithm>

#include "session/program.h"

namespace hotset {
namespace {

// A copy between host and device; the executor does it.
class Transfer final : public ops::Kernel {
 public:
  Status infer(ops::InferContext& c) const override {
    c.set_output(0, c.dtype(0), c.shape(0));
    return {};
  }
  Status run(const ops::RunContext&) const override { return fail(Code::internal, "a copy between host and device has no host form"); }
  std::string_view implementation() const override { return "copy"; }
};

bool is_whole(DType type) {
  switch (type) {
    case DType::u8:
    case DType::i8:
    case DType::u16:
    case DType::i16:
    case DType::i32:
    case DType::i64:
    case DType::u32:
    case DType::u64:
    case DType::boolean:
      return true;
    default:
      return false;
  }
}

}  // namespace

class Placer {
 public:
  Placer(Program& program, const Program::Settings& settings)
      : program_(program), settings_(settings), graph_(program.model_->graph), placement_(*program.placement_) {}

  Status run() {
    const size_t n = graph_.values.size();
    placement_.on_device.assign(n, 0);
    placement_.copy_of.assign(n, model::kNone);
    copies_.assign(n, model::kNone);
    late_.assign(n, 0);
    made_by_.assign(n, -1);
    for (Step& step : program_.steps_) HOTSET_TRY(choose_side(step));
    for (Step& step : program_.steps_) connect(std::move(step));
    program_.steps_ = std::move(early_);
    std::move(rest_.begin(), rest_.end(), std::back_inserter(program_.steps_));
    list_inputs();
    return {};
  }

 private:
  bool is_on_device(model::ValueId id) const { return id != model::kNone && placement_.on_device[id]; }

  // Small integers and masks that nothing of the device goes into: a copy to the device costs more than computing them.
  bool belongs_on_host(const Step& step) const {
    return std::none_of(step.inputs.begin(), step.inputs.end(), [&](model::ValueId id) { return is_on_device(id); }) &&
           std::all_of(step.outputs.begin(), step.outputs.end(),
                       [&](model::ValueId id) { return id == model::kNone || is_whole(graph_.values[id].dtype); });
  }

  Status choose_side(Step& step) {
    const model::Node& node = graph_.nodes[step.node];
    if (step.kernel->implementation() == "view") {
      step.kind = is_on_device(step.inputs[0]) ? StepKind::device : StepKind::host;
    } else if (std::any_of(step.outputs.begin(), step.outputs.end(),
                           [&](model::ValueId id) { return id != model::kNone && program_.needed_[id]; })) {
      step.on_host = "its result decides shapes";
    } else if (!step.kernel->reads_content()) {
      step.on_host = "it needs shapes alone";
    } else if (belongs_on_host(step)) {
      step.on_host = "whole numbers made of host values";
    } else {
      const ops::OpContext::Warn warn = [&](const std::string& name, const std::string& text) {
        if (settings_.warn) settings_.warn(name + ": " + text);
      };
      auto device =
          ops::make_device_kernel(ops::OpContext(graph_, node, settings_.config, warn), *step.kernel, *placement_.gpu, &step.on_host);
      if (!device.ok()) {
        Status status = device.take_status();
        return status.text().find(node.text()) == std::string::npos ? std::move(status).at(node.text()) : std::move(status);
      }
      step.device = std::move(device.value());
      step.kind = step.device ? StepKind::device : StepKind::host;
      step.is_fallback = !step.device;
    }
    if (step.kind == StepKind::device)
      for (model::ValueId id : step.outputs)
        if (id != model::kNone) placement_.on_device[id] = 1;
    return {};
  }

  // How a step takes input `i`.
  ops::InputUse use(const Step& step, size_t i) const {
    if (step.kind == StepKind::host) return step.kernel->reads_content() ? ops::InputUse::host : ops::InputUse::unused;
    if (!step.device) return i == 0 ? ops::InputUse::device : ops::InputUse::host;  // a view
    return step.device->use(static_cast<int>(i));
  }

  // Lets the inputs lie where the step takes them, and puts the step into its part of the order.
  void connect(Step&& step) {
    bool is_late = step.kind == StepKind::device;
    for (size_t i = 0; i < step.inputs.size(); ++i) {
      model::ValueId& id = step.inputs[i];
      const ops::InputUse how = use(step, i);
      if (id == model::kNone) continue;
      is_late |= late_[id] != 0;
      if (how == ops::InputUse::unused) continue;
      const bool wanted = how == ops::InputUse::device;
      step.reads_host_content |= step.kind == StepKind::device && step.device && !wanted;
      if (is_on_device(id) != wanted) id = copy(id, graph_.nodes[step.node], i);
      is_late |= late_[id] != 0;
    }
    for (const auto& [condition, value] : graph_.nodes[step.node].guards) is_late |= late_[condition] != 0;
    for (model::ValueId id : step.outputs) {
      if (id == model::kNone) continue;
      late_[id] = is_late;
      made_by_[id] = step.node;
    }
    (is_late ? rest_ : early_).push_back(std::move(step));
  }

  // The value with the content of `id` on the other side; made where it is first needed.
  model::ValueId copy(model::ValueId id, const model::Node& reader, size_t input) {
    if (copies_[id] != model::kNone) return copies_[id];
    const bool to_device = !placement_.on_device[id];
    model::Value value = graph_.values[id];
    value.name += to_device ? " (on the device)" : " (on the host)";
    value.constant = -1;
    const model::ValueId made = static_cast<model::ValueId>(graph_.values.size());
    graph_.values.push_back(value);
    placement_.on_device.push_back(to_device);
    placement_.copy_of.push_back(id);
    late_.push_back(!to_device);
    made_by_.push_back(-1);
    copies_.push_back(model::kNone);
    copies_[id] = made;
    program_.needed_.push_back(0);
    program_.is_constant_.push_back(program_.is_constant_[id]);
    program_.constants_.push_back(program_.constants_[id]);
    program_.constants_.back().data = nullptr;
    if (program_.is_constant_[id]) {
      const bool is_expert = input >= 2 && (reader.op_type == "MoE" || reader.op_type == "QMoE");
      placement_.constants.push_back({made, is_expert});
      return made;
    }
    model::Node node;
    node.op_type = to_device ? "MemcpyFromHost" : "MemcpyToHost";
    node.name = value.name;
    node.inputs = {id};
    node.outputs = {made};
    if (made_by_[id] >= 0) node.guards = graph_.nodes[made_by_[id]].guards;
    Step step;
    step.kernel = std::make_unique<Transfer>();
    step.node = static_cast<int32_t>(graph_.nodes.size());
    step.kind = to_device ? StepKind::upload : StepKind::download;
    step.inputs = node.inputs;
    step.outputs = node.outputs;
    graph_.nodes.push_back(std::move(node));
    rest_.push_back(std::move(step));
    return made;
  }

  void list_inputs() {
    placement_.input_copies.clear();
    placement_.host_reads_input.clear();
    for (model::ValueId input : graph_.inputs) {
      placement_.input_copies.push_back(copies_[input]);
      bool read = program_.needed_[input] != 0 || std::find(graph_.outputs.begin(), graph_.outputs.end(), input) != graph_.outputs.end();
      for (const Step& step : program_.steps_) {
        if (step.kind == StepKind::upload) continue;
        for (size_t i = 0; i < step.inputs.size(); ++i) read |= step.inputs[i] == input && use(step, i) != ops::InputUse::unused;
      }
      placement_.host_reads_input.push_back(read);
    }
  }

  Program& program_;
  const Program::Settings& settings_;
  model::Graph& graph_;
  Placement& placement_;
  std::vector<model::ValueId> copies_;  // by value: its copy on the other side, or kNone
  std::vector<char> late_;              // by value: it waits for the device
  std::vector<int32_t> made_by_;        // by value: the node, or -1
  std::vector<Step> early_, rest_;
};

Status Program::place(const Settings& settings) {
  placement_ = std::make_unique<Placement>();
  placement_->gpu = settings.gpu;
  return Placer(*this, settings).run();
}

}  // namespace hotset

// SPDX-License-Identifier: Apache-2.0
// Incremental shape inference.
#include "session/plan.h"

#include <algorithm>
#include <cstring>

namespace hotset {

namespace {
constexpr size_t kMaxKnownBytes = size_t{1} << 20;  // content that shapes depend on is small; larger values make a step dynamic
}  // namespace

// The operator's view of one step during inference.
class StepInfer final : public ops::InferContext {
 public:
  StepInfer(Plan& plan, const Step& step, bool dynamic) : plan_(plan), step_(step), dynamic_(dynamic) {}

  bool has_input(int i) const override { return static_cast<size_t>(i) < step_.inputs.size() && step_.inputs[i] != model::kNone; }
  bool has_output(int i) const override { return static_cast<size_t>(i) < step_.outputs.size() && step_.outputs[i] != model::kNone; }
  DType dtype(int i) const override { return plan_.values_[step_.inputs[i]].tensor.dtype; }
  const Shape& shape(int i) const override { return plan_.values_[step_.inputs[i]].tensor.shape; }
  const Tensor* known(int i) const override {
    if (!has_input(i)) return nullptr;
    return plan_.known(step_.inputs[i], dynamic_);
  }
  Status defer(int) override {
    deferred_ = true;
    return {};
  }
  void set_output(int i, DType dtype, const Shape& shape) override {
    if (!has_output(i)) return;
    int64_t n = 0;
    size_t bytes = 0;
    made_ |= i < 64 ? uint64_t{1} << i : 0;
    if (!checked_size(shape.dims(), &n) || !dense_bytes(dtype, n, &bytes) || bytes > Plan::kMaxBytes) {
      error_ =
          fail(Code::invalid_argument, "output %d would have the impossible shape %s of %s", i, to_text(shape).c_str(), dtype_name(dtype));
      return;
    }
    PlanValue& v = value(i);
    v.tensor.dtype = dtype;
    v.tensor.shape = shape;
    v.bytes = bytes;
  }
  void alias(int out, int in, size_t byte_offset) override {
    if (!has_output(out)) return;
    value(out).view_of = step_.inputs[in];
    value(out).view_offset = byte_offset;
  }
  void may_overwrite(int out, int in) override {
    if (has_output(out) && has_input(in)) value(out).overwrites = step_.inputs[in];
  }
  void* provide(int out) override {
    PlanValue& v = value(out);
    v.content.resize(std::max<size_t>(v.bytes, 1));
    v.is_known = true;
    v.tensor.data = v.content.data();
    return v.content.data();
  }
  void set_workspace(size_t bytes, size_t packing) override {
    if (step_.device) return;  // of the CPU kernel
    workspace_ = bytes;
    plan_.packing_ = std::max(plan_.packing_, packing);
  }
  int n_threads() const override { return plan_.program_.config().n_threads; }

  bool deferred() const { return deferred_; }
  size_t workspace() const { return workspace_; }
  Status take_error() {
    // A named output that the operator does not make in this form must not be read.
    for (size_t i = 0; error_.ok() && i < step_.outputs.size() && i < 64; ++i)
      if (has_output(static_cast<int>(i)) && !(made_ >> i & 1))
        return fail(Code::unsupported, "output %zu is not made by this operator", i);
    return std::move(error_);
  }

 private:
  PlanValue& value(int out) { return plan_.values_[step_.outputs[out]]; }
  Plan& plan_;
  const Step& step_;
  const bool dynamic_;
  bool deferred_ = false;
  size_t workspace_ = 0;
  uint64_t made_ = 0;  // outputs that were set
  Status error_;
};

Plan::Plan(const Program& program)
    : program_(program),
      values_(program.graph().values.size()),
      dirty_(values_.size(), 0),
      workspace_(program.steps().size(), 0),
      inferred_(program.steps().size(), 0),
      skipped_(inferred_.size(), 0),
      requested_(program.graph().outputs.size(), 0),
      wanted_on_device_(requested_.size(), 0),
      bound_on_device_(program.placement() ? values_.size() : 0, 0) {
  for (size_t id = 0; id < values_.size(); ++id)
    if (const Tensor* c = program.constant(static_cast<int32_t>(id))) set_constant(static_cast<int32_t>(id), *c);
}

void Plan::set_constant(int32_t id, const Tensor& tensor) {
  PlanValue& v = values_[id];
  v.tensor = tensor;
  v.bytes = tensor.bytes();
  v.place = Place::constant;
  v.root = id;
}

const Tensor* Plan::known(int32_t id, bool dynamic) {
  if (program_.on_device(id)) {  // the content is where it was copied from, if anywhere
    id = program_.placement()->copy_of[id];
    if (id == model::kNone) return nullptr;
  }
  PlanValue& v = values_[id];
  if (v.place == Place::constant || dynamic) return v.tensor.data || v.bytes == 0 ? &v.tensor : nullptr;
  if (!v.is_known) return nullptr;
  v.known_tensor = v.tensor;
  v.known_tensor.data = v.content.data();
  return &v.known_tensor;
}

Status Plan::set_input(int i, const Tensor& tensor, void* on_device) {
  const int32_t id = program_.graph().inputs[i];
  PlanValue& v = values_[id];
  if (const Placement* p = program_.placement()) {
    if (bound_on_device_[id] != (on_device != nullptr)) layout_dirty_ = true;
    bound_on_device_[id] = on_device != nullptr;
    if (on_device && p->input_copies[i] != model::kNone) values_[p->input_copies[i]].tensor.data = on_device;
  }
  bool changed = v.place != Place::input || v.tensor.dtype != tensor.dtype || !(v.tensor.shape == tensor.shape);
  if (changed) {
    v.place = Place::input;
    v.root = id;
    v.tensor.dtype = tensor.dtype;
    v.tensor.shape = tensor.shape;
    v.bytes = tensor.bytes();
    v.is_known = false;
  }
  if (program_.needed(id) && v.bytes <= kMaxKnownBytes) {
    if (!v.is_known || (v.bytes && std::memcmp(v.content.data(), tensor.data, v.bytes) != 0)) {
      v.content.resize(std::max<size_t>(v.bytes, 1));
      if (v.bytes) std::memcpy(v.content.data(), tensor.data, v.bytes);
      v.is_known = true;
      changed = true;
    }
  }
  v.tensor.data = tensor.data;
  if (changed) dirty_[id] = any_dirty_ = true;
  return {};
}

void Plan::set_requested(int output, bool requested, bool on_device) {
  if (requested_[output] == static_cast<char>(requested) && wanted_on_device_[output] == static_cast<char>(on_device)) return;
  requested_[output] = requested;
  wanted_on_device_[output] = on_device;
  layout_dirty_ = true;
}

// Runs a step whose outputs decide shapes and whose inputs are all known, into the plan's own memory.
Status Plan::evaluate(const Step& step, size_t workspace) {
  bool wanted = false, empty = true;
  for (int32_t id : step.outputs) {
    if (id == model::kNone) continue;
    wanted |= program_.needed(id) && !values_[id].is_known;
    empty &= values_[id].bytes == 0;
  }
  if (!wanted) return {};
  auto& [inputs, outputs, in, out] = scratch_;  // members, so that a decode step allocates nothing
  inputs.resize(std::max(inputs.size(), step.inputs.size()));
  outputs.resize(std::max(outputs.size(), step.outputs.size()));
  in.assign(step.inputs.size(), nullptr);
  out.assign(step.outputs.size(), nullptr);
  for (size_t i = 0; i < step.inputs.size(); ++i) {
    if (step.inputs[i] == model::kNone) continue;
    const Tensor* t = known(step.inputs[i], false);
    if (!t) return {};
    inputs[i] = *t;
    in[i] = &inputs[i];
  }
  for (size_t i = 0; i < step.outputs.size(); ++i) {
    if (step.outputs[i] == model::kNone) continue;
    PlanValue& v = values_[step.outputs[i]];
    if (v.bytes > kMaxKnownBytes) return {};
    v.content.resize(std::max<size_t>(v.bytes, 1));
    outputs[i] = v.tensor;
    outputs[i].data = v.content.data();
    out[i] = &outputs[i];
  }
  if (!empty) {
    const AlignedBuffer memory(workspace);
    HOTSET_TRY(step.kernel->run({in, out, memory.data(), &inline_pool_}));
  }
  for (int32_t id : step.outputs) {
    if (id == model::kNone) continue;
    PlanValue& v = values_[id];
    if (v.view_of >= 0) {  // a view of known content: run() left it alone
      const Tensor* source = known(v.view_of, false);
      if (v.bytes) std::memcpy(v.content.data(), source->as<const std::byte>() + v.view_offset, v.bytes);
    }
    v.is_known = true;
    v.tensor.data = v.content.data();
  }
  return {};
}

Status Plan::infer_step(const Step& step, size_t* workspace, bool dynamic, bool* deferred) {
  for (int32_t id : step.outputs) {
    if (id == model::kNone) continue;
    PlanValue& v = values_[id];
    v.view_of = v.overwrites = -1;
    v.view_offset = 0;
    v.is_known = false;
  }
  StepInfer context(*this, step, dynamic);
  ++n_inferred_;
  Status status = step.kernel->infer(context);
  *deferred = context.deferred();
  if (*deferred) return {};
  if (status.ok()) status = context.take_error();
  *workspace = context.workspace();
  if (status.ok() && step.device) status = step.device->plan(context, workspace);
  if (!status.ok()) return std::move(status).at(program_.node(step).text());
  n_host_changes_ += step.reads_host_content;
  return {};
}

Status Plan::infer_constant(const Step& step, bool* deferred) {
  size_t workspace = 0;
  HOTSET_TRY(infer_step(step, &workspace, false, deferred));
  if (!*deferred) workspace_constant_ = workspace;
  return {};
}

Plan::Branch Plan::branch_of(const Step& step, bool dynamic) {
  for (const auto& [condition, value] : program_.node(step).guards) {
    const Tensor* t = known(condition, dynamic);
    if (!t || t->dtype != DType::boolean || t->size() != 1) return Branch::unknown;
    if ((*t->as<const uint8_t>() != 0) != value) return Branch::not_taken;
  }
  return Branch::taken;
}

bool Plan::runs_dynamic(int s) { return live_[s] && branch_of(program_.steps()[s], true) == Branch::taken; }

Status Plan::infer_dynamic(int s) {
  bool deferred = false;
  HOTSET_TRY(infer_step(program_.steps()[s], &workspace_[s], true, &deferred));
  HOTSET_FAIL_IF(deferred, internal, "%s: shape unknown although all inputs exist", program_.node(program_.steps()[s]).text().c_str());
  return {};
}

Status Plan::prepare() {
  if (!any_dirty_ && !layout_dirty_) return {};
  const int n = static_cast<int>(program_.steps().size());
  if (any_dirty_) {
    int s = 0;
    for (; s < n; ++s) {
      const Step& step = program_.steps()[s];
      bool stale = !inferred_[s];
      for (int32_t id : step.inputs) stale |= id != model::kNone && dirty_[id];
      for (const auto& [condition, value] : program_.node(step).guards) stale |= dirty_[condition] != 0;
      if (!stale) continue;
      const Branch branch = branch_of(step, false);
      if (branch == Branch::unknown) break;
      layout_dirty_ |= skipped_[s] != (branch == Branch::not_taken);
      skipped_[s] = branch == Branch::not_taken;
      if (skipped_[s]) {
        for (int32_t id : step.outputs) {
          if (id == model::kNone) continue;
          values_[id].is_known = false;
          dirty_[id] = 1;
        }
        inferred_[s] = 1;
        continue;
      }
      before_.clear();
      for (int32_t id : step.outputs) {
        if (id == model::kNone) continue;
        PlanValue& v = values_[id];
        before_.push_back({v.tensor.dtype, v.tensor.shape, v.is_known, v.view_of, v.overwrites, v.view_offset});
        v.content.swap(v.previous);
      }
      bool deferred = false;
      size_t workspace = 0;
      const bool redone = !inferred_[s];
      inferred_[s] = 0;  // until it succeeds, so that a failed plan is redone from here
      HOTSET_TRY(infer_step(step, &workspace, false, &deferred));
      if (deferred) break;
      if (Status status = evaluate(step, workspace); !status.ok()) return std::move(status).at(program_.node(step).text());
      if (workspace != workspace_[s]) {
        workspace_[s] = workspace;
        layout_dirty_ = true;
      }
      size_t k = 0;
      for (int32_t id : step.outputs) {
        if (id == model::kNone) continue;
        const Before& b = before_[k++];
        const PlanValue& v = values_[id];
        const bool reshaped = b.dtype != v.tensor.dtype || !(b.shape == v.tensor.shape);
        const bool moved =
            b.view_of != v.view_of || b.view_offset != v.view_offset || b.overwrites != v.overwrites || b.is_known != v.is_known;
        const bool recomputed = v.is_known && (!b.is_known || v.previous != v.content);
        if (reshaped || moved || recomputed || !inferred_[s]) dirty_[id] = 1;
        if (reshaped || moved || redone) layout_dirty_ = true;  // a failed inference may have left shapes that were never laid out
      }
      inferred_[s] = 1;
    }
    if (s != first_dynamic_) layout_dirty_ = true;
    first_dynamic_ = s;
    for (int later = s; later < n; ++later) inferred_[later] = 0;
    std::fill(dirty_.begin(), dirty_.end(), 0);
    any_dirty_ = false;
  }
  if (layout_dirty_) {
    HOTSET_TRY(layout());
    layout_dirty_ = false;
  }
  return {};
}

size_t Plan::structure_bytes() const {
  const auto bytes = [](const auto& vector) { return vector.capacity() * sizeof(vector[0]); };
  size_t n =
      sizeof(*this) + bytes(values_) + bytes(dirty_) + bytes(workspace_) + bytes(inferred_) + bytes(live_) + bytes(skipped_) + bytes(runs_);
  n += bytes(active_) + bytes(pointers_) + bytes(copies_) + bytes(io_views_) + bytes(requested_) + bytes(before_);
  n += bytes(scratch_.inputs) + bytes(scratch_.outputs) + bytes(scratch_.in) + bytes(scratch_.out);
  for (const PlanValue& v : values_) n += v.content.capacity() + v.previous.capacity();
  return n;
}

}  // namespace hotset

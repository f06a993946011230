// SPDX-License-Identifier: Apache-2.0
// From the graph of a file to kernels in order, with constants folded.
#include "session/program.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <set>

#include "session/fuse.h"
#include "session/plan.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace hotset {
namespace {
constexpr size_t kFoldNow = size_t{64} << 10;  // results up to this are computed at creation, larger ones when first needed
constexpr size_t kAlignNow = size_t{1} << 20;
constexpr size_t kHugePages = size_t{4} << 20;
constexpr int kNewestOpset = 28;  // of ai.onnx
}  // namespace

void AlignedBuffer::Free::operator()(void* p) const { ::operator delete(p, std::align_val_t{kAlignment}); }

AlignedBuffer::AlignedBuffer(size_t bytes) : bytes_(bytes) {
  if (!bytes) return;
  data_.reset(::operator new(bytes, std::align_val_t{kAlignment}, std::nothrow));
  if (!data_) throw std::bad_alloc();
#if defined(__linux__)
  if (bytes >= kHugePages) {
    const uintptr_t page = 4096, from = (reinterpret_cast<uintptr_t>(data_.get()) + page - 1) & ~(page - 1);
    const uintptr_t to = (reinterpret_cast<uintptr_t>(data_.get()) + bytes) & ~(page - 1);
    madvise(reinterpret_cast<void*>(from), to - from, MADV_HUGEPAGE);  // a hint: failure changes speed only
  }
#endif
}

Result<std::unique_ptr<Program>> Program::build(std::unique_ptr<model::Model> model, const Settings& settings, ThreadPool& pool) {
  std::unique_ptr<Program> p(new Program);
  p->model_ = std::move(model);
  p->config_ = settings.config;
  model::Graph& graph = p->model_->graph;
  p->n_nodes_in_file_ = graph.nodes.size();
  HOTSET_TRY([&]() -> Status {
    for (const auto& [domain, version] : p->model_->metadata.opsets)
      HOTSET_FAIL_IF(domain.empty() && version > kNewestOpset, unsupported,
                     "opset %lld of ai.onnx is newer than %d, the newest this version knows", static_cast<long long>(version),
                     kNewestOpset);
    return {};
  }());
  dissolve_ifs(graph);
  if (settings.fuse) {
    remove_dead_nodes(graph);
    fuse(graph);
  }
  p->align_constants();
  HOTSET_TRY(p->create_kernels(settings));
  const size_t n = graph.values.size();
  p->constants_.resize(n);
  p->is_constant_.assign(n, 0);
  for (size_t id = 0; id < n; ++id) {
    if (const model::Constant* c = graph.constant(static_cast<int32_t>(id))) {
      p->constants_[id] = c->tensor;
      p->is_constant_[id] = 1;
    }
  }
  p->mark_needed();
  HOTSET_TRY(p->fold(settings, pool));
  if (settings.gpu) HOTSET_TRY(p->place(settings));
  p->find_in_place();
  for (size_t s = 0; s < p->steps_.size(); ++s) {
    Step& step = p->steps_[s];
    if (step.kernel->experts() <= 0) continue;
    step.expert_layer = static_cast<int32_t>(p->expert_layers_.size());
    p->expert_layers_.push_back(static_cast<int32_t>(s));
  }
  return p;
}

// Files align nothing. Kernels read weights at any byte; of indices, scales and the like, which are small, they get aligned copies.
void Program::align_constants() {
  for (model::Constant& c : model_->graph.constants) {
    Tensor& t = c.tensor;
    const size_t element = std::min<size_t>(static_cast<size_t>(dtype_bits(t.dtype)) / 8, 8), bytes = t.bytes();
    if (!t.data || element < 2 || reinterpret_cast<uintptr_t>(t.data) % element == 0 || bytes > kAlignNow || bytes == 0) continue;
    folded_.emplace_back(bytes);
    std::memcpy(folded_.back().data(), t.data, bytes);
    t.data = folded_.back().data();
    folded_bytes_ += bytes;
    folded_bound_ += bytes;
    if (c.file >= 0) model_->files[c.file]->drop_pages(c.offset, bytes);
    c.file = -1;
  }
}

Status Program::create_kernels(const Settings& settings) {
  const model::Graph& graph = model_->graph;
  std::set<std::string> unknown;
  for (const model::Node& node : graph.nodes) {
    bool known = false;
    HOTSET_FAIL_IF(node.op_type == "If" && node.domain.empty(), invalid_model,
                   "%s: needs one condition, then_branch and else_branch, both without inputs", node.text().c_str());
    if (ops::find_op(node.domain, node.op_type, node.opset, &known)) continue;
    const auto shown = [](std::string_view name) {
      const std::string quoted = model::quote(name);
      return quoted.substr(1, quoted.size() - 2);
    };
    unknown.insert(shown(node.domain.empty() ? "ai.onnx" : node.domain) + "::" + shown(node.op_type) +
                   (known ? " (opset " + std::to_string(node.opset) + ")" : ""));
  }
  if (!settings.run_constants) {
    missing_.assign(unknown.begin(), unknown.end());
  } else if (!unknown.empty()) {
    std::string list;
    for (const std::string& name : unknown) list += (list.empty() ? "" : ", ") + name;
    return Status(Code::unsupported, "operators without a kernel: " + list);
  }
  std::set<std::string> warned;
  const ops::OpContext::Warn warn = [&](const std::string& node, const std::string& text) {
    if (settings.warn && warned.insert(text).second) settings.warn(node + ": " + text);
  };
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const model::Node& node = graph.nodes[n];
    const ops::OpEntry* const entry = ops::find_op(node.domain, node.op_type, node.opset, nullptr);
    if (!entry) continue;  // planning
    const ops::OpContext context(graph, node, settings.config, warn);
    HOTSET_TRY(ops::check_signature(*entry, context));
    auto kernel = entry->create(context);
    if (!kernel.ok()) {
      Status status = kernel.take_status();
      if (status.text().find(node.text()) == std::string::npos) status = std::move(status).at(node.text());
      return status;
    }
    Step step;
    step.kernel = std::move(kernel.value());
    step.node = static_cast<int32_t>(n);
    step.inputs = node.inputs;
    step.outputs = node.outputs;
    step.shape_inputs = step.kernel->shape_inputs();
    steps_.push_back(std::move(step));
  }
  return {};
}

// Values whose content decides shapes: the inputs that kernels name, and all that such values are computed from.
void Program::mark_needed() {
  needed_.assign(graph().values.size(), 0);
  for (size_t s = steps_.size(); s-- > 0;) {
    const Step& step = steps_[s];
    for (const auto& [condition, value] : node(step).guards) needed_[condition] = 1;
    const bool wanted =
        std::any_of(step.outputs.begin(), step.outputs.end(), [&](model::ValueId id) { return id != model::kNone && needed_[id]; });
    for (size_t i = 0; i < step.inputs.size(); ++i) {
      if (step.inputs[i] == model::kNone) continue;
      if ((i < 32 && (step.shape_inputs >> i & 1)) || (wanted && step.kernel->reads_content())) needed_[step.inputs[i]] = 1;
    }
  }
}

void Program::find_in_place() {
  std::vector<int> readers(graph().values.size(), 0);
  const auto original = [&](model::ValueId id) {
    return placement_ && placement_->copy_of[id] != model::kNone ? placement_->copy_of[id] : id;
  };
  for (const Step& step : steps_)
    for (model::ValueId id : step.inputs)
      if (id != model::kNone && step.kind != StepKind::upload && step.kind != StepKind::download) ++readers[original(id)];
  in_place_inputs_.assign(graph().outputs.size(), -1);
  for (size_t o = 0; o < graph().outputs.size(); ++o) {
    for (const Step& step : steps_) {
      for (size_t k = 0; k < step.outputs.size(); ++k) {
        if (step.outputs[k] != graph().outputs[o]) continue;
        const int i = step.kernel->in_place_input(static_cast<int>(k));
        if (i < 0 || static_cast<size_t>(i) >= step.inputs.size() || step.inputs[i] == model::kNone) continue;
        const model::ValueId source = original(step.inputs[i]);
        if (readers[source] != 1) continue;
        for (size_t g = 0; g < graph().inputs.size(); ++g)
          if (graph().inputs[g] == source) in_place_inputs_[o] = static_cast<int>(g);
      }
    }
  }
}

// Computes what depends on constants alone. Views and small results at once; large ones become lazy steps, so that a
// transposed or converted weight exists once and only when a run needs it.
Status Program::fold(const Settings& settings, ThreadPool& pool) {
  Plan plan(*this);
  std::vector<Step> kept;
  for (Step& step : steps_) {
    const bool constant =
        std::all_of(step.inputs.begin(), step.inputs.end(), [&](model::ValueId id) { return id == model::kNone || is_constant_[id]; });
    bool has_data = true, deferred = false;
    for (model::ValueId id : step.inputs) has_data &= id == model::kNone || constants_[id].data || constants_[id].size() == 0;
    if (!constant || !node(step).guards.empty()) {
      kept.push_back(std::move(step));
      continue;
    }
    HOTSET_TRY(plan.infer_constant(step, &deferred));
    if (deferred) {
      kept.push_back(std::move(step));
      continue;
    }
    bool views_only = true;
    size_t bytes = 0;
    for (model::ValueId id : step.outputs) {
      if (id == model::kNone) continue;
      const PlanValue& v = plan.value(id);
      views_only &= v.view_of >= 0;
      bytes += v.bytes;
    }
    const bool now = views_only || (has_data && bytes <= kFoldNow && settings.run_constants);
    std::vector<Tensor*> in, out;
    for (model::ValueId id : step.inputs) in.push_back(id == model::kNone ? nullptr : &constants_[id]);
    for (model::ValueId id : step.outputs) {
      out.push_back(id == model::kNone ? nullptr : &constants_[id]);
      if (id == model::kNone) continue;
      const PlanValue& v = plan.value(id);
      Tensor& t = constants_[id];
      t = v.tensor;
      t.data = nullptr;
      if (v.view_of >= 0) {
        std::byte* base = static_cast<std::byte*>(constants_[v.view_of].data);
        t.data = base ? base + v.view_offset : nullptr;
      } else if (now) {
        folded_.emplace_back(std::max<size_t>(v.bytes, 1));
        folded_bytes_ += v.bytes;
        folded_bound_ += v.bytes;
        t.data = folded_.back().data();
        if (v.is_known && v.bytes) std::memcpy(t.data, v.content.data(), v.bytes);
      } else {
        folded_bound_ += v.bytes;
      }
      is_constant_[id] = 1;
    }
    if (now && !views_only && bytes) {
      const AlignedBuffer workspace(plan.constant_workspace_bytes());
      if (Status status = step.kernel->run({in, out, workspace.data(), &pool}); !status.ok())
        return std::move(status).at(node(step).text());
    }
    for (model::ValueId id : step.outputs)
      if (id != model::kNone) plan.set_constant(id, constants_[id]);
    if (!now)
      lazy_.push_back(std::move(step));
    else if (views_only && !has_data)
      lazy_.push_back(std::move(step));  // a view of a lazy value
  }
  steps_ = std::move(kept);
  return {};
}

Status Program::run_lazy(Step& step, ThreadPool& pool) {
  Plan plan(*this);
  bool deferred = false;
  HOTSET_TRY(plan.infer_constant(step, &deferred));
  std::vector<Tensor*> in, out;
  bool runs = false;
  for (model::ValueId id : step.inputs) in.push_back(id == model::kNone ? nullptr : &constants_[id]);
  for (model::ValueId id : step.outputs) {
    out.push_back(id == model::kNone ? nullptr : &constants_[id]);
    if (id == model::kNone) continue;
    const PlanValue& v = plan.value(id);
    if (v.view_of >= 0) {
      constants_[id].data = static_cast<std::byte*>(constants_[v.view_of].data) + v.view_offset;
    } else {
      folded_.emplace_back(std::max<size_t>(v.bytes, 1));
      folded_bytes_ += v.bytes;
      constants_[id].data = folded_.back().data();
      runs |= v.bytes > 0;
    }
  }
  if (!runs) return {};
  const AlignedBuffer workspace(plan.constant_workspace_bytes());
  if (Status status = step.kernel->run({in, out, workspace.data(), &pool}); !status.ok()) return std::move(status).at(node(step).text());
  for (model::ValueId id : step.inputs) {
    if (id == model::kNone) continue;
    const model::Constant* c = graph().constant(id);
    if (!c || c->file < 0) continue;
    const bool read_again = std::any_of(steps_.begin(), steps_.end(),
                                        [&](const Step& s) { return std::find(s.inputs.begin(), s.inputs.end(), id) != s.inputs.end(); });
    if (!read_again) model_->files[c->file]->drop_pages(c->offset, c->tensor.bytes());
  }
  return {};
}

Status Program::prepare_lazy(ThreadPool& pool) {
  if (is_prepared()) return {};
  const std::lock_guard lock(lazy_mutex_);
  if (lazy_done_.load(std::memory_order_relaxed)) return {};
  for (; n_lazy_done_ < lazy_.size(); ++n_lazy_done_) HOTSET_TRY(run_lazy(lazy_[n_lazy_done_], pool));
  lazy_done_.store(true, std::memory_order_release);
  return {};
}

size_t Program::structure_bytes() const {
  constexpr size_t kKernel = 256;  // a kernel with its prepared attributes, about
  size_t n = sizeof(*this) + model::structure_bytes(graph()) + constants_.capacity() * sizeof(Tensor) + is_constant_.capacity() +
             needed_.capacity();
  for (const auto* list : {&steps_, &lazy_})
    for (const Step& step : *list)
      n += sizeof(step) + kKernel + (step.inputs.capacity() + step.outputs.capacity()) * sizeof(model::ValueId);
  return n;
}

}  // namespace hotset

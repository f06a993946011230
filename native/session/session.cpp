// SPDX-License-Identifier: Apache-2.0
// Creation of sessions and of run states.
#include "session/session.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "cpu_avx/cpu_features.h"
#include "session/offload.h"
#include "session/option_syntax.h"

namespace hotset {
namespace {

constexpr int kLogInfo = 1, kLogWarning = 2;

}  // namespace

RunState::RunState(const Program& program, std::shared_ptr<RunMemory> shared)
    : plan(program),
      inputs(program.graph().inputs.size()),
      has_input(inputs.size(), 0),
      input_on_device(inputs.size(), 0),
      outputs(program.graph().outputs.size()),
      memory(std::move(shared)),
      values_share(memory->values),
      workspace_share(memory->workspace),
      packing_share(memory->packing),
      caches_share(memory->caches),
      outputs_share(memory->outputs),
      plan_share(memory->plans),
      device_values_share(memory->device_values),
      device_workspace_share(memory->device_workspace),
      device_caches_share(memory->device_caches),
      device_outputs_share(memory->device_outputs),
      pinned_share(memory->pinned) {
  for (int32_t s : program.expert_layers()) usage.emplace_back(program.steps()[s].kernel->experts());
  count_memory();
}

RunState::~RunState() {
  for (OutputSlot& slot : outputs)
    if (slot.keep) std::free(slot.owned);
}

void RunState::count_memory() {
  size_t bytes = arena.bytes();
  const size_t workspace = std::min(plan.workspace_bytes(), bytes), packing = std::min(plan.packing_bytes(), workspace);
  for (const AlignedBuffer& buffer : dynamic) bytes += buffer.bytes();
  values_share.set(bytes - workspace);
  workspace_share.set(workspace - packing);
  packing_share.set(packing);
  size_t caches = 0;
  bytes = 0;
  for (size_t o = 0; o < outputs.size(); ++o)
    if (outputs[o].keep && outputs[o].owned) (plan.program().in_place_inputs()[o] >= 0 ? caches : bytes) += outputs[o].owned_bytes;
  caches_share.set(caches);
  outputs_share.set(bytes);
  bytes = plan.structure_bytes();
  for (const experts::RunUsage& layer : usage) bytes += layer.bytes();
  plan_share.set(bytes);
  if (device) count_device_memory();
  buffers_changed = false;
}

void RunState::count_device_memory() {
  const size_t values = device->values_bytes(), workspace = std::min(plan.device_workspace_bytes(), values);
  device_values_share.set(values - workspace);
  device_workspace_share.set(workspace);
  size_t caches = 0, results = 0, pinned = device->pinned_bytes();
  for (size_t o = 0; o < outputs.size(); ++o) {
    (plan.program().in_place_inputs()[o] >= 0 ? caches : results) += outputs[o].device.bytes();
    pinned += outputs[o].pinned.bytes();
  }
  device_caches_share.set(caches);
  device_outputs_share.set(results);
  pinned_share.set(pinned);
}

void Session::log(int level, const std::string& text) const {
  if (callbacks_.log && level >= callbacks_.log_level) callbacks_.log(level, text.c_str());
}

namespace {
Status report(const Callbacks& callbacks, const char* stage, uint64_t done, uint64_t total) {
  if (callbacks.progress && !callbacks.progress(stage, done, total))
    return Status(Code::cancelled, "the progress callback cancelled the load");
  return {};
}
}  // namespace

namespace {
// Folder of the external data when options name one, else empty. Relative ones begin at the model's folder.
std::string data_folder(const std::string& model_path, const Options& options) {
  const std::string& root = options.get("session.moe.offload.source_root");
  if (root.empty()) return {};
  namespace fs = std::filesystem;
  const auto path = [](const std::string& utf8) { return fs::path(std::u8string(utf8.begin(), utf8.end())); };
  const std::u8string text = (path(model_path).parent_path() / path(root)).u8string();
  return {text.begin(), text.end()};
}

// Failures of the graph name the file, as those of the reader do.
Result<std::unique_ptr<Session>> in_file(const std::string& path, Result<std::unique_ptr<Session>> result) {
  if (result.ok()) return result;
  return Result<std::unique_ptr<Session>>(result.take_status().at("'" + path + "'"));
}
}  // namespace

Result<std::unique_ptr<Session>> Session::create(const std::string& path, const Options& options, const Callbacks& callbacks) {
  HOTSET_TRY(report(callbacks, "read", 0, 1));
  model::ReadOptions read;
  read.has_kernel = ops::has_kernel;
  read.external_folder = data_folder(path, options);
  HOTSET_ASSIGN(auto model, model::read_model(path, read));
  HOTSET_TRY(report(callbacks, "read", 1, 1));
  return in_file(path, finish(std::move(model), options, callbacks, false));
}

Result<std::unique_ptr<Session>> Session::create_from_memory(const void* bytes, size_t n_bytes, const Options& options,
                                                             const Callbacks& callbacks) {
  HOTSET_TRY(report(callbacks, "read", 0, 1));
  model::ReadOptions read;
  read.has_kernel = ops::has_kernel;
  read.external_folder = options.get("session.moe.offload.source_root");
  if (read.external_folder.empty()) read.external_folder = options.get("session.model_external_initializers_file_folder_path");
  HOTSET_ASSIGN(auto model, model::read_model_bytes(bytes, n_bytes, read));
  HOTSET_TRY(report(callbacks, "read", 1, 1));
  return finish(std::move(model), options, callbacks, false);
}

Result<std::unique_ptr<Session>> Session::create_for_planning(const std::string& path, const Options& options) {
  model::ReadOptions read;
  read.has_kernel = ops::has_kernel;
  read.external_folder = data_folder(path, options);
  HOTSET_ASSIGN(auto model, model::read_model(path, read));
  return in_file(path, finish(std::move(model), options, {}, true));
}

Session::~Session() {
  if (program_) save_counters();
}

Result<std::unique_ptr<Session>> Session::finish(std::unique_ptr<model::Model> model, const Options& options, const Callbacks& callbacks,
                                                 bool planning) {
  const char* const problem = cpu::cpu_override_problem();
  HOTSET_FAIL_IF(problem, unsupported, "%s", problem);
  std::unique_ptr<Session> s(new Session);
  s->options_ = options;
  s->callbacks_ = callbacks;
  s->trace_ = options.get_bool("hotset.trace");
  s->process_ = process_id();
  HOTSET_TRY(s->open_device(options));
  std::vector<std::string> without_effect;
  HOTSET_TRY(settle_offload_keys(&s->options_, &without_effect));
  if (!without_effect.empty()) {
    std::string list;
    for (const std::string& key : without_effect) list += (list.empty() ? "" : ", ") + key;
    s->log(kLogWarning, "without a GPU these options have no effect: " + list);
  }
  for (const std::string& key : options.unknown_keys()) s->log(kLogInfo, "option '" + key + "' is not used");
  const int64_t threads = options.get_int("intra_op_num_threads");
  if (!planning && threads > available_threads())
    s->log(
        kLogWarning,
        format_text(
            "intra_op_num_threads is %lld, but only %d processors may be used (affinity mask and CPU quota): more threads make runs slower",
            static_cast<long long>(threads), available_threads()));
  HOTSET_ASSIGN(s->usage_options_, read_usage_options(s->options_));
  s->usage_.set_decay(s->usage_options_.decay);
  s->pool_ = std::make_unique<ThreadPool>(planning ? 1 : threads ? static_cast<int>(threads) : available_threads());
  Program::Settings settings;
  const std::string& activation = options.get("hotset.cpu_activation");
  settings.config.cpu_activation = activation == "float"  ? ops::CpuActivation::exact
                                   : activation == "int8" ? ops::CpuActivation::int8
                                                          : ops::CpuActivation::by_node;
  settings.config.n_threads = s->pool_->size();
  settings.fuse = options.get_bool("hotset.fuse");
  settings.run_constants = !planning;
  settings.gpu = s->gpu_;
  settings.config.tail = s->usage_options_.tail;
  settings.config.store = &s->store_;
  settings.config.working_bytes =
      static_cast<size_t>(syntax::parse_bytes(s->options_.get("session.moe.offload.host_working_bytes")).value_or(0));
  settings.config.cublaslt = options.get("hotset.cublaslt") == "auto";
  settings.config.router_weights_norm = options.get_bool("hotset.router_weights_norm");
  settings.config.moe_decode_tc = !options.get_bool("ep.cuda.disable_moe_gemv_tc");
  settings.config.qmoe_int3_tc = !options.get_bool("ep.cuda.disable_qmoe_int3_tc");
  settings.warn = [&s](const std::string& text) { s->log(kLogWarning, text); };
  HOTSET_TRY(report(callbacks, "prepare", 0, 1));
  HOTSET_ASSIGN(s->program_, Program::build(std::move(model), settings, *s->pool_));
  HOTSET_TRY(s->start_usage());  // the store asks for scores as soon as it is open
  if (s->store_.n_layers() > 0) {
    experts::ExpertStore::Settings store = store_settings(s->options_, planning);
    std::vector<size_t> counted(s->store_.n_layers());  // by layer of the store, the layer of the counters
    const std::vector<int32_t>& layers = s->program_->expert_layers();
    for (size_t i = 0; i < layers.size(); ++i)
      if (const int layer = s->program_->steps()[layers[i]].kernel->store_layer(); layer >= 0) counted[static_cast<size_t>(layer)] = i;
    store.score = [usage = &s->usage_, counted](int layer, int64_t expert) {
      return usage->score(counted[static_cast<size_t>(layer)], expert);
    };
    HOTSET_TRY(s->store_.open(store, s->program_->model().files, planning));
    s->log(s->store_.plan().is_short ? kLogWarning : kLogInfo,
           format_text("experts: %zu bytes, at most %zu of them in host memory; %s", s->store_.plan().total_bytes,
                       s->store_.plan().bound_bytes, s->store_.plan().reason.c_str()));
  } else if (s->options_.get("session.moe.offload.host_expert_bytes") != "auto") {
    s->log(kLogWarning,
           "session.moe.offload.host_expert_bytes bounds nothing: the model has no MoE or QMoE node; experts in ordinary operators are "
           "mapped like other weights");
  }
  if (!planning) s->watch_files();
  HOTSET_TRY(report(callbacks, "prepare", 1, 1));
  if (s->gpu_) HOTSET_TRY(s->finish_device(planning));
  const model::Graph& graph = s->graph();
  for (size_t i = 0; i < graph.inputs.size(); ++i) s->input_names_[graph.values[graph.inputs[i]].name] = static_cast<int>(i);
  for (size_t i = 0; i < graph.outputs.size(); ++i) s->output_names_[graph.values[graph.outputs[i]].name] = static_cast<int>(i);
  return s;
}

// Files of the mapped bytes that runs may read: constants, but for experts that are read into memory.
void Session::watch_files() {
  const model::Model& model = program_->model();
  const std::vector<std::pair<int, uint64_t>> read = store_.read_tensors();
  std::vector<uint64_t> ends(model.files.size());
  for (const model::Constant& c : model.graph.constants) {
    if (c.file < 0 || std::binary_search(read.begin(), read.end(), std::pair{c.file, c.offset})) continue;
    uint64_t& end = ends[static_cast<size_t>(c.file)];
    end = std::max(end, c.offset + c.tensor.bytes());
  }
  watch_.start(model.files, ends);
}

int Session::input_index(std::string_view name) const {
  const auto it = input_names_.find(name);
  return it == input_names_.end() ? -1 : it->second;
}

int Session::output_index(std::string_view name) const {
  const auto it = output_names_.find(name);
  return it == output_names_.end() ? -1 : it->second;
}

Result<std::unique_ptr<RunState>> Session::acquire() {
  if (process_id() != process_)
    return fail(Code::invalid_state, "the session was created in another process: create a new one after fork()");
  if (!program_->is_prepared()) {
    HOTSET_TRY(watch_.check());
    HOTSET_TRY(program_->prepare_lazy(*pool_));
  }
  {
    const std::lock_guard lock(states_mutex_);
    if (!states_.empty()) {
      std::unique_ptr<RunState> state = std::move(states_.back());
      states_.pop_back();
      return state;
    }
  }
  auto state = std::make_unique<RunState>(*program_, memory_);
  if (gpu_) {
    HOTSET_ASSIGN(state->device, DeviceState::make(gpu_, &device_counts_, options_.get_bool("hotset.cuda_graph")));
  }
  return state;
}

void Session::release(std::unique_ptr<RunState> state) {
  for (size_t i = 0; i < state->has_input.size(); ++i) state->has_input[i] = 0;
  for (OutputSlot& slot : state->outputs) slot = {};
  const std::lock_guard lock(states_mutex_);
  states_.push_back(std::move(state));
}

std::vector<NodeTrace> Session::last_trace(std::string* tag) const {
  const std::lock_guard lock(trace_mutex_);
  *tag = trace_tag_;
  return trace_events_;
}

// Where an exception came from: the node that ran.
std::string Session::place(const RunState& state) const {
  return state.running < 0 ? "run" : program_->node(program_->steps()[state.running]).text();
}

Status Session::run(RunState& state, const RunControl* control) {
  if (process_id() != process_)
    return fail(Code::invalid_state, "the session was created in another process: create a new one after fork()");
  // Frees what the run allocated, however it failed: composing the text of a failure may fail too.
  struct Cleanup {
    Session& session;
    RunState& state;
    bool failed = true;
    ~Cleanup() {
      session.commit_usage(state, !failed);
      if (!failed) return;
      session.stats_.failed_runs.fetch_add(1, std::memory_order_relaxed);
      for (OutputSlot& slot : state.outputs) {
        if (!slot.keep) {
          std::free(slot.owned);
          slot.owned = nullptr;
        }
        slot.result.data = nullptr;
      }
    }
  } cleanup{*this, state};
  if (is_broken_.load(std::memory_order_acquire)) return broken();
  Status status;
  state.running = -1;
  try {
    status = execute(state, control);
    if (status.ok()) log_usage(state);
  } catch (const std::bad_alloc&) {
    status = Status(Code::out_of_memory, "out of memory").at(place(state));
  } catch (const std::exception& e) {
    status = Status(Code::internal, e.what()).at(place(state));
  } catch (...) {
    status = Status(Code::internal, "unknown exception").at(place(state));
  }
  if (!status.ok() && state.device) check_device(state, status);
  cleanup.failed = !status.ok();
  if (!status.ok() && control && !control->tag.empty()) status = std::move(status).at("run '" + control->tag + "'");
  return status;
}

}  // namespace hotset

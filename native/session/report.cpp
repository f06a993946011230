// SPDX-License-Identifier: Apache-2.0
// JSON reports. Keys are part of the interface: they only grow.
#include "session/report.h"

#include <algorithm>
#include <map>

#include "session/json_text.h"
#include "session/unfused_experts.h"

namespace hotset {
namespace {

std::string device_name(const Session& session) { return "cuda:" + std::to_string(session.gpu()->index()); }

// `on_device`: it is read there alone, or made there.
void write_value(JsonText& j, const Session& session, model::ValueId id, bool on_device) {
  const model::Value& v = session.graph().values[id];
  j.object()
      .field("name", v.name)
      .field("type", dtype_name(v.dtype))
      .field("device", on_device ? device_name(session) : "cpu")
      .key("shape");
  if (!v.has_shape) {
    j.value(nullptr).end();
    return;
  }
  j.array();
  for (const model::Dim& d : v.shape) {
    if (d.value >= 0)
      j.value(d.value);
    else if (!d.name.empty())
      j.value(d.name);
    else
      j.value(nullptr);
  }
  j.end().end();
}

// Inputs of an operator that hold expert weights: scales, zero points and biases of each expert are counted with them.
bool is_expert_node(const model::Node& node) { return node.op_type == "MoE" || node.op_type == "QMoE"; }

struct WeightBytes {
  size_t experts = 0, other = 0;  // in mapped files
};

WeightBytes count_weights(const model::Graph& graph) {
  WeightBytes bytes;
  std::vector<char> is_expert(graph.constants.size(), 0), is_used(graph.constants.size(), 0);
  for (const model::Node& node : graph.nodes) {
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (node.inputs[i] == model::kNone || graph.values[node.inputs[i]].constant < 0) continue;
      is_used[graph.values[node.inputs[i]].constant] = 1;
      if (is_expert_node(node) && i >= 2) is_expert[graph.values[node.inputs[i]].constant] = 1;
    }
  }
  for (size_t c = 0; c < graph.constants.size(); ++c) {
    if (!is_used[c] || graph.constants[c].file < 0) continue;
    (is_expert[c] ? bytes.experts : bytes.other) += graph.constants[c].tensor.bytes();
  }
  return bytes;
}

void write_experts(JsonText& j, const model::Graph& graph) {
  j.array();
  for (const model::Node& node : graph.nodes) {
    if (!is_expert_node(node)) continue;
    size_t bytes = 0;
    int64_t count = 0;
    for (size_t i = 2; i < node.inputs.size(); ++i) {
      const model::Constant* c = graph.constant(node.inputs[i]);
      if (!c) continue;
      bytes += c->tensor.bytes();
      if (i == 2 && c->tensor.shape.rank > 0) count = c->tensor.shape[0];
    }
    j.object().field("node", node.name).field("op", node.op_type).field("experts", count).field("experts_per_token", node.get_int("k", 1));
    j.field("bytes", bytes).field("bytes_per_expert", count ? bytes / static_cast<size_t>(count) : 0).end();
  }
  j.end();
}

void write_unfused_experts(JsonText& j, const model::Graph& graph) {
  j.array();
  for (const UnfusedExperts& layer : find_unfused_experts(graph)) {
    j.object().field("router", layer.router->name).field("form", layer.form == UnfusedExperts::Form::masked ? "masked" : "gathered");
    j.field("experts", layer.n_experts).key("experts_per_token");
    if (layer.per_token > 0)
      j.value(layer.per_token);
    else
      j.value(nullptr);
    j.field("nodes", layer.n_nodes).field("bytes", layer.bytes);
    j.field("bytes_per_expert", layer.bytes / static_cast<size_t>(std::max<int64_t>(layer.n_experts, 1))).end();
  }
  j.end();
}

std::string operator_name(const model::Node& node) { return (node.domain.empty() ? "" : node.domain + "::") + node.op_type; }

// Experts in the mapping; or in the file, with frames of memory for some or all of them.
template <class Row>
void write_expert_rows(const Session& session, size_t bytes, const Row& row) {
  const experts::ExpertStore& store = session.store();
  const experts::StorePlan& plan = store.plan();
  const size_t tables = store.table_bytes(), frames = plan.frames_bytes(), resident = store.stats().resident_bytes;
  switch (plan.home) {
    case experts::ExpertHome::mapped:
      row("expert weights", "mapped file", bytes, &bytes);
      break;
    case experts::ExpertHome::cached:
      row("expert weights", "file", bytes, &bytes);
      row("expert cache", "host", resident, &frames);
      break;
    case experts::ExpertHome::paged:
      row("expert weights", "file", bytes, &bytes);
      row("expert pages", "mapped file", resident, &frames);
      break;
  }
  row("expert tables", "host", tables, &tables);
}

template <class Row>
void write_device_rows(const Session& session, const Row& row) {
  const Placement& p = *session.program().placement();
  const RunMemory& memory = session.memory();
  const std::string device = device_name(session);
  const size_t weights = p.weights.bytes(), experts = p.experts.bytes(), states = p.states.bytes();
  row("weights", device.c_str(), weights, &weights);
  row("expert weights", device.c_str(), experts, &experts);
  row("tables of nodes", device.c_str(), states, &states);
  row("intermediate values", device.c_str(), memory.device_values.load(), nullptr);
  row("workspace of nodes", device.c_str(), memory.device_workspace.load(), nullptr);
  row("key and value caches that bindings hold", device.c_str(), memory.device_caches.load(), nullptr);
  row("other results that bindings hold", device.c_str(), memory.device_outputs.load(), nullptr);
  row("host values, staging and results", "pinned", memory.pinned.load(), nullptr);
}

void write_memory(JsonText& j, const Session& session) {
  const WeightBytes weights = count_weights(session.graph());
  const Program& program = session.program();
  const auto row = [&](const char* purpose, const char* where, size_t bytes, const size_t* bound) {
    j.object().field("purpose", purpose).field("where", where).field("bytes", bytes).key("bound");
    if (bound)
      j.value(*bound);
    else
      j.value(nullptr);
    j.end();
  };
  const size_t folded_bound = program.folded_bound();
  j.array();
  write_expert_rows(session, weights.experts, row);
  row("other weights", "mapped file", weights.other, &weights.other);
  const size_t owned = program.model().owned_bytes, structures = program.structure_bytes();
  row("small constants", "host", owned, &owned);  // of a model given as bytes: all of them
  row("folded constants", "host", program.folded_bytes(), &folded_bound);
  row("graph and program", "host", structures, &structures);
  const RunMemory& memory = session.memory();
  row("intermediate values", "host", memory.values.load(), nullptr);
  row("workspace of nodes", "host", memory.workspace.load(), nullptr);
  row("packing scratch of nodes", "host", memory.packing.load(), nullptr);
  row("key and value caches that bindings hold", "host", memory.caches.load(), nullptr);
  row("other results that bindings hold", "host", memory.outputs.load(), nullptr);
  row("shapes and places of runs", "host", memory.plans.load(), nullptr);
  if (session.gpu()) write_device_rows(session, row);
  j.end();
}

void write_metadata(JsonText& j, const Session& session) {
  const model::Metadata& m = session.program().model().metadata;
  j.object()
      .field("producer_name", m.producer_name)
      .field("producer_version", m.producer_version)
      .field("graph_name", session.graph().name);
  j.field("domain", m.domain)
      .field("description", m.doc_string)
      .field("graph_description", m.graph_doc_string)
      .field("version", m.model_version);
  j.field("ir_version", m.ir_version).key("opsets").object();
  for (const auto& [domain, version] : m.opsets) j.field(domain.empty() ? "ai.onnx" : domain, version);
  j.end().key("custom_metadata_map").object();
  for (const auto& [key, value] : m.properties) j.field(key, value);
  j.end().end();
}

}  // namespace

namespace {

void write_store_plan(JsonText& j, const experts::ExpertStore& store) {
  const experts::StorePlan& plan = store.plan();
  j.object().field("home", experts::home_name(plan.home)).field("reason", plan.reason).field("total_bytes", plan.total_bytes);
  j.field("minimum_bytes", plan.minimum_bytes).field("bound_bytes", plan.bound_bytes).field("fixed_bytes", store.fixed_bytes());
  j.key("pools").array();
  for (const experts::FramePool& pool : plan.pools)
    j.object().field("frame_bytes", pool.frame_bytes).field("parts", pool.n_parts).field("frames", pool.n_frames).end();
  j.end().end();
}

}  // namespace

std::string plan_json(const Session& session) {
  const model::Graph& graph = session.graph();
  const Program& program = session.program();
  JsonText j;
  j.object().key("metadata");
  write_metadata(j, session);
  j.key("inputs").array();
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    const Placement* p = program.placement();
    write_value(j, session, graph.inputs[i], p && p->input_copies[i] != model::kNone && !p->host_reads_input[i]);
  }
  j.end().key("outputs").array();
  for (model::ValueId id : graph.outputs) write_value(j, session, id, program.on_device(id));
  j.end().key("memory");
  write_memory(j, session);

  std::map<std::string, int> operators;
  for (const Step& step : program.steps()) ++operators[operator_name(program.node(step))];
  j.field("nodes_in_file", program.n_nodes_in_file()).key("operators").object();
  for (const auto& [name, count] : operators) j.field(name, count);
  j.end().key("missing_operators").array();
  for (const std::string& name : program.missing_operators()) j.value(name);
  j.end().key("nodes").array();
  for (const Step& step : program.steps()) {
    const model::Node& node = program.node(step);
    const bool on_device = step.kind == StepKind::device;
    j.object().field("name", node.name).field("op", operator_name(node)).field("device", on_device ? device_name(session) : "cpu");
    j.field("kernel", std::string(step.device ? step.device->implementation() : step.kernel->implementation()));
    if (session.gpu() && !on_device && step.kind == StepKind::host) {
      j.field("fallback", step.is_fallback).field("reason", step.on_host);
    }
    j.end();
  }
  j.end().key("experts");
  write_experts(j, graph);
  j.key("unfused_experts");
  write_unfused_experts(j, graph);
  j.key("options").object();
  for (const OptionInfo& o : option_table()) j.field(o.key, session.options().get(o.key));
  j.end().key("expert_store");
  write_store_plan(j, session.store());
  j.field("threads", session.n_threads()).key("files").array();
  for (const auto& file : program.model().files) j.object().field("path", file->path()).field("bytes", file->bytes()).end();
  j.end().end();
  return j.take();
}

namespace {

void write_device_counts(JsonText& j, const DeviceCounts& c) {
  j.key("device").object().field("launches", c.launches.load()).field("graph_captures", c.captures.load());
  j.field("graph_replays", c.replays.load()).field("graph_capture_failures", c.capture_failures.load()).field("waits", c.waits.load());
  j.field("uploaded_bytes", c.uploaded_bytes.load()).field("downloaded_bytes", c.downloaded_bytes.load()).end();
}

}  // namespace

std::string stats_json(const Session& session) {
  const Session::Stats& s = session.stats();
  JsonText j;
  j.object().field("runs", s.runs.load()).field("failed_runs", s.failed_runs.load()).field("nodes_executed", s.nodes.load());
  j.field("shape_inferences", s.inferences.load())
      .field("memory_layouts", s.layouts.load())
      .field("arena_bytes", session.memory().values.load() + session.memory().workspace.load() + session.memory().packing.load());
  if (session.gpu()) write_device_counts(j, session.device_counts());
  const experts::ExpertCache::Stats store = session.store().stats();
  j.key("expert_store").object().field("home", experts::home_name(session.store().plan().home));
  j.field("bound_bytes", session.store().plan().bound_bytes).field("minimum_bytes", session.store().plan().minimum_bytes);
  j.field("resident_bytes", store.resident_bytes)
      .field("hits", store.hits)
      .field("misses", store.misses)
      .field("fills", store.fills)
      .field("evictions", store.evictions);
  j.field("bytes_read", store.bytes_read).field("failures", store.failures).end();
  const Program& program = session.program();
  const experts::UsageCounters::Snapshot usage = session.usage().snapshot();
  j.field("expert_tokens", usage.n_tokens).field("approximate", session.usage_options().tail.is_on()).key("experts").array();
  for (size_t layer = 0; layer < program.expert_layers().size(); ++layer) {
    const Step& step = program.steps()[program.expert_layers()[layer]];
    const model::Node& node = program.node(step);
    uint64_t total = 0;
    j.object().field("node", node.name).field("op", node.op_type).field("experts", step.kernel->experts());
    j.field("experts_per_token", node.get_int("k", 1)).key("routes").array();
    for (uint64_t routes : usage.routes[layer]) {
      total += routes;
      j.value(routes);
    }
    j.end().field("routes_total", total).key("counters").array();
    for (double score : usage.scores[layer]) j.value(score);
    j.end().field("skipped", usage.changes[layer].skipped).field("substituted", usage.changes[layer].substituted).end();
  }
  j.end().end();
  return j.take();
}

std::string metadata_json(const Session& session) {
  JsonText j;
  write_metadata(j, session);
  return j.take();
}

std::string trace_json(const Session& session) {
  JsonText j;
  j.array();
  std::string tag;
  for (const NodeTrace& e : session.last_trace(&tag)) {
    const model::Node& node = session.program().node(session.program().steps()[e.step]);
    j.object()
        .field("name", node.name.empty() ? node.op_type : node.name)
        .field("cat", node.op_type)
        .field("ph", "X")
        .field("pid", 0)
        .field("tid", 0);
    j.field("ts", static_cast<double>(e.start_ns) * 1e-3).field("dur", static_cast<double>(e.end_ns - e.start_ns) * 1e-3);
    if (!tag.empty()) j.key("args").object().field("tag", tag).end();
    j.end();
  }
  j.end();
  return j.take();
}

}  // namespace hotset

// SPDX-License-Identifier: Apache-2.0
// JSON reports. Keys are part of the interface: they only grow.
#include "session/report.h"

#include <nlohmann/json.hpp>

#include "cpu_avx/cpu_features.h"
#include "cpu_avx/float_gemm.h"
#include "cpu_avx/quant_gemm.h"
#include "cuda/driver.h"

namespace hotset {
namespace {

using Json = nlohmann::ordered_json;

// Names come from model files: bytes that are not UTF-8 are replaced, never refused.
std::string text(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

Json value_json(const model::Graph& graph, model::ValueId id) {
  const model::Value& v = graph.values[id];
  Json shape = Json::array();
  for (const model::Dim& d : v.shape) {
    if (d.value >= 0) shape.push_back(d.value);
    else if (!d.name.empty()) shape.push_back(d.name);
    else shape.push_back(nullptr);
  }
  return {{"name", v.name}, {"type", dtype_name(v.dtype)}, {"shape", v.has_shape ? shape : Json()}};
}

// Inputs of an operator that hold expert weights: scales, zero points and biases of each expert are counted with them.
bool is_expert_node(const model::Node& node) { return node.op_type == "MoE" || node.op_type == "QMoE"; }

struct WeightBytes {
  size_t experts = 0, other = 0, owned = 0;
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
    if (!is_used[c]) continue;
    const size_t n = graph.constants[c].tensor.bytes();
    if (is_expert[c]) bytes.experts += n;
    else if (graph.constants[c].file >= 0) bytes.other += n;
    else bytes.owned += n;
  }
  return bytes;
}

Json experts_json(const model::Graph& graph) {
  Json layers = Json::array();
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
    layers.push_back({{"node", node.name}, {"op", node.op_type}, {"experts", count}, {"experts_per_token", node.get_int("k", 1)},
                      {"bytes", bytes}, {"bytes_per_expert", count ? bytes / static_cast<size_t>(count) : 0}});
  }
  return layers;
}

Json device_json(int index) {
  cuda::DeviceInfo info;
  std::string why;
  if (!cuda::device_info(index, &info, &why)) return {{"index", index}, {"error", why}};
  return {{"index", index}, {"name", info.name}, {"compute_capability", std::to_string(info.compute_major) + "." + std::to_string(info.compute_minor)},
          {"memory_bytes", info.memory_bytes}};
}

}  // namespace

std::string plan_json(const Session& session) {
  const model::Graph& graph = session.graph();
  const Program& program = session.program();
  Json j;
  j["inputs"] = Json::array();
  for (model::ValueId id : graph.inputs) j["inputs"].push_back(value_json(graph, id));
  j["outputs"] = Json::array();
  for (model::ValueId id : graph.outputs) j["outputs"].push_back(value_json(graph, id));

  const WeightBytes weights = count_weights(graph);
  Json memory = Json::array();
  const auto row = [&](const char* purpose, const char* where, size_t bytes, Json bound) {
    memory.push_back({{"purpose", purpose}, {"where", where}, {"bytes", bytes}, {"bound", std::move(bound)}});
  };
  row("expert weights", "mapped file", weights.experts, weights.experts);
  row("other weights", "mapped file", weights.other, weights.other);
  row("small constants", "host", weights.owned, weights.owned);
  row("folded constants", "host", program.folded_bytes(), program.folded_bound());
  row("intermediate values and workspace", "host", session.arena_bytes(), nullptr);
  j["memory"] = std::move(memory);

  Json operators = Json::object();
  Json nodes = Json::array();
  for (const Step& step : program.steps()) {
    const model::Node& node = program.node(step);
    const std::string op = (node.domain.empty() ? "" : node.domain + "::") + node.op_type;
    operators[op] = operators.value(op, 0) + 1;
    nodes.push_back({{"name", node.name}, {"op", op}, {"device", "cpu"}, {"kernel", std::string(step.kernel->implementation())}});
  }
  j["nodes_in_file"] = program.n_nodes_in_file();
  j["operators"] = std::move(operators);
  j["nodes"] = std::move(nodes);
  j["experts"] = experts_json(graph);
  Json options = Json::object();
  for (const OptionInfo& o : option_table()) options[o.key] = session.options().get(o.key);
  j["options"] = std::move(options);
  j["threads"] = session.n_threads();
  Json files = Json::array();
  for (const auto& file : program.model().files) files.push_back({{"path", file->path()}, {"bytes", file->bytes()}});
  j["files"] = std::move(files);
  return text(j);
}

std::string stats_json(const Session& session) {
  const Session::Stats& s = session.stats();
  return text({{"runs", s.runs.load()}, {"failed_runs", s.failed_runs.load()}, {"nodes_executed", s.nodes.load()},
               {"shape_inferences", s.inferences.load()}, {"memory_layouts", s.layouts.load()}, {"arena_bytes", session.arena_bytes()}});
}

std::string metadata_json(const Session& session) {
  const model::Metadata& m = session.program().model().metadata;
  Json opsets = Json::object(), custom = Json::object();
  for (const auto& [domain, version] : m.opsets) opsets[domain.empty() ? "ai.onnx" : domain] = version;
  for (const auto& [key, value] : m.properties) custom[key] = value;
  return text({{"producer_name", m.producer_name}, {"producer_version", m.producer_version}, {"graph_name", session.graph().name},
               {"domain", m.domain}, {"description", m.doc_string}, {"graph_description", m.graph_doc_string}, {"version", m.model_version},
               {"ir_version", m.ir_version}, {"opsets", opsets}, {"custom_metadata_map", custom}});
}

std::string trace_json(const Session& session) {
  Json events = Json::array();
  for (const NodeTrace& e : session.last_trace()) {
    const model::Node& node = session.program().node(session.program().steps()[e.step]);
    events.push_back({{"name", node.name.empty() ? node.op_type : node.name}, {"cat", node.op_type}, {"ph", "X"}, {"pid", 0}, {"tid", 0},
                      {"ts", static_cast<double>(e.start_ns) * 1e-3}, {"dur", static_cast<double>(e.end_ns - e.start_ns) * 1e-3}});
  }
  return text(events);
}

std::string doctor_json() {
  const cpu::CpuFeatures& f = cpu::cpu_features();
  Json j;
  j["version"] = HOTSET_BUILD_VERSION;
  j["cpu"] = {{"level", cpu::cpu_level_name(f.level)},  {"threads", available_threads()}, {"avx2", f.avx2},
              {"avx512", f.avx512},                     {"avx512vnni", f.avx512vnni},     {"avx512bf16", f.avx512bf16},
              {"amx_int8", f.amx_int8},                 {"amx_bf16", f.amx_bf16},         {"neon", f.neon},
              {"neon_dotprod", f.neon_dotprod}};
  if (const char* wrong = cpu::cpu_unknown_override()) j["cpu"]["warning"] = std::string("HOTSET_CPU='") + wrong + "' is not a known level and is ignored";
  cpu::QuantMatrix q4;
  q4.k = q4.n = 2048;
  cpu::QuantMatrix q8 = q4;
  q8.bits = 8;
  j["kernels"] = {{"int4 weights, float activations", cpu::quant_gemm_isa(false, q4)},
                  {"int4 weights, int8 activations", cpu::quant_gemm_isa(true, q4)},
                  {"int8 weights, float activations", cpu::quant_gemm_isa(false, q8)},
                  {"int8 weights, int8 activations", cpu::quant_gemm_isa(true, q8)},
                  {"float weights", cpu::float_gemm().name}};
  int n = 0;
  std::string note;
  cuda::device_count(&n, &note);
  j["cuda"] = {{"note", note}, {"devices", Json::array()}};
  for (int i = 0; i < n; ++i) j["cuda"]["devices"].push_back(device_json(i));
  return text(j);
}

}  // namespace hotset

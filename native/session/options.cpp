// SPDX-License-Identifier: Apache-2.0
// The option table and its parser.
#include "session/options.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "model/graph.h"
#include "session/option_syntax.h"

namespace hotset {
namespace {

constexpr char kBytesOrAuto[] = "auto|0..18446744073709551615", kPositiveBytes[] = "1..18446744073709551615", kInt32[] = "0..2147483647";

constexpr OptionInfo kTable[] = {
    {"intra_op_num_threads", OptionType::integer, "0", "0..4096",
     "Threads of the session, the caller included; 0 takes the processors of the affinity mask, or as many as a CPU quota (Linux control "
     "groups) pays for."},
    {"session.model_external_initializers_file_folder_path", OptionType::text, "", "",
     "Folder of the external data of a model given as bytes."},
    {"session.disable_cpu_ep_fallback", OptionType::boolean, "0", "0|1",
     "1 makes it an error when the chosen device has no kernel for a node, which the CPU would run otherwise; with the CPU as device it "
     "has no effect."},
    {"hotset.cpu_activation", OptionType::choice, "auto", "auto|float|int8",
     "Activations of quantised products on the CPU: auto takes int8 where the node says accuracy_level=4 and float32 elsewhere, float is "
     "exact "
     "everywhere, int8 quantises everywhere."},
    {"hotset.router_weights_norm", OptionType::boolean, "1", "0|1",
     "0 uses router_weights (input 14 of QMoE) as they are, as onnxruntime's CPU provider does; 1 divides them by their sum where the node "
     "says "
     "normalize_routing_weights=1."},
    {"hotset.host_pages", OptionType::choice, "auto", "auto|map|huge",
     "Where experts lie that host memory has room for: map computes in the mapped file, huge reads them into huge pages and drops the "
     "file's pages; auto is map."},
    {"hotset.file_io", OptionType::choice, "auto", "auto|map|read",
     "How experts beyond host_expert_bytes come from the file: read into a cache, or map pages in and out; auto is read."},
    {"hotset.cublaslt", OptionType::choice, "auto", "auto|off",
     "Large float16 and bfloat16 products on a GPU: auto takes NVIDIA's cuBLASLt where the loader finds it, off always hotset's own "
     "kernels."},
    {"hotset.device", OptionType::text, "cpu", "cpu|cuda:N",
     "Device of the session: the CPU, or a GPU that holds all weights; nodes "
     "without a device kernel run on the CPU.",
     syntax::is_device},
    {"hotset.cuda_graph", OptionType::boolean, "1", "0|1",
     "0 launches every kernel of a GPU session by itself; 1 replays steps whose shapes and buffers repeat as CUDA graphs."},
    {"ep.cuda.disable_moe_gemv_tc", OptionType::boolean, "0", "0|1",
     "1 computes few bfloat16 rows by 2- and 4-bit experts on a GPU without tensor cores."},
    {"ep.cuda.disable_qmoe_int3_tc", OptionType::boolean, "0", "0|1",
     "1 computes few rows by 3-bit experts on a GPU without tensor cores."},
    {"hotset.fuse", OptionType::boolean, "1", "0|1", "0 runs the graph node by node as the file has it, for comparisons."},
    {"hotset.trace", OptionType::boolean, "0", "0|1",
     "1 records start and duration of every node of the last run for hotset_session_trace."},
    {"hotset.approximate_on_cpu", OptionType::boolean, "0", "0|1",
     "1 lets min_expert_weight and tail_substitution_threshold change the routing of a session without a GPU."},
    {"hotset.adapt_alpha", OptionType::real, "0.9", "0 to less than 1", "How much of an expert's usage counter is left after a run.",
     syntax::is_strict_double},
    {"hotset.popularity_save_file", OptionType::text, "", "",
     "File that gets the usage counters when the session ends, relative to the model's folder."},
    {"session.enable_moe_expert_counting", OptionType::boolean, "0", "0|1",
     "Accepted for compatibility: the use of experts is always counted.", syntax::is_digit_flag},
    {"session.enable_moe_expert_statistics", OptionType::boolean, "0", "0|1",
     "1 logs a JSON record of each expert layer of a run, of level info, at most 1024 a run.", syntax::is_digit_flag},
    {"session.moe_expert_counter_alpha", OptionType::real, "", "0..1", "Second name of hotset.adapt_alpha.", syntax::is_strict_double},
    {"session.moe_expert_counter_beta", OptionType::real, "", "0..1",
     "Weight of a run in the usage counters; what alpha leaves when it is not set.", syntax::is_strict_double},
    {"session.moe_expert_counter_state_file", OptionType::text, "", "", "Second name of session.moe.offload.popularity_file."},
    {"session.moe.offload.mode", OptionType::choice, "disabled", "disabled|off|0|auto|required|on|1",
     "Expert offload of a GPU session: auto keeps experts on the GPU if they fit, required fails where a node cannot be offloaded.",
     syntax::is_offload_mode},
    {"session.moe.offload.cpu_execution", OptionType::choice, "auto", "auto|enabled|1|disabled|0",
     "Whether experts that are not on the GPU may be computed on the CPU.", syntax::is_cpu_execution},
    {"session.moe.offload.placement", OptionType::choice, "adaptive", "adaptive|static",
     "Whether experts move to the GPU while the session runs.", syntax::is_placement},
    {"session.moe.offload.device_expert_bytes", OptionType::bytes, "auto", kBytesOrAuto,
     "GPU memory for experts, spare slots and lookup tables.", syntax::is_bytes_or_auto},
    {"session.moe.offload.gpu_budget_bytes", OptionType::bytes, "", kBytesOrAuto, "Second name of device_expert_bytes.",
     syntax::is_bytes_or_auto},
    {"session.moe.offload.host_expert_bytes", OptionType::bytes, "auto", kBytesOrAuto,
     "Hard bound of host memory that holds experts, mapped pages included; auto takes what is available, 0 the least that works.",
     syntax::is_bytes_or_auto},
    {"session.moe.offload.pinned_bytes", OptionType::bytes, "auto", kBytesOrAuto, "Page-locked host memory for experts of a GPU session.",
     syntax::is_bytes_or_auto},
    {"session.moe.offload.reserve_device_bytes", OptionType::bytes, "auto", kBytesOrAuto,
     "GPU memory left free when device_expert_bytes is auto.", syntax::is_bytes_or_auto},
    {"session.moe.offload.device_working_bytes", OptionType::bytes, "", kPositiveBytes, "Bound of GPU scratch for offload.",
     syntax::is_positive_bytes},
    {"session.moe.offload.host_working_bytes", OptionType::bytes, "", kPositiveBytes,
     "Bound of host scratch of expert layers: activations and partial results.", syntax::is_positive_bytes},
    {"session.moe.offload.gpu_device_mem_limit", OptionType::bytes, "0", "0..18446744073709551615",
     "Bound of GPU memory of the session; 0 is none.", syntax::is_bytes},
    {"session.moe.offload.budget_group", OptionType::text, "", "", "Sessions of one process with the same group share one GPU budget."},
    {"session.moe.offload.allow_file_backing", OptionType::boolean, "0", "0|1",
     "1 lets experts that host_expert_bytes has no room for stay in the file, read when they are needed.", syntax::is_word_flag},
    {"session.moe.offload.cpu_threads", OptionType::integer, "0", kInt32,
     "Threads that compute experts of a GPU session; CPU sessions use intra_op_num_threads.", syntax::is_int32},
    {"session.moe.offload.async_max_tokens", OptionType::integer, "", kInt32,
     "Largest number of rows whose experts are split between CPU and GPU.", syntax::is_int32},
    {"session.moe.offload.prefill_wave_experts", OptionType::integer, "", "1..2147483647",
     "Experts that travel to the GPU together when many rows are computed.", syntax::is_positive_int32},
    {"session.moe.offload.popularity_file", OptionType::text, "", "", "Profile of how often experts are chosen, to start from."},
    {"session.moe.offload.source_root", OptionType::text, "", "",
     "Folder of the model's external data; relative to the model's folder, which is also the default."},
    {"session.moe.offload.derived_cache_dir", OptionType::text, "", "",
     "Folder for experts in a converted layout; the CPU computes every layout of the file as it is and writes none."},
    {"session.moe.offload.node_overrides", OptionType::text, "", "node:max_resident_slots=N,device_expert_bytes=B;...",
     "GPU bounds of single nodes.", syntax::is_node_overrides},
    {"session.moe.offload.skip_zero_cold_doorbell", OptionType::boolean, "1", "0|1",
     "1 does not wake CPU workers in a GPU step without experts for them.", syntax::is_digit_flag},
    {"session.moe.offload.min_expert_weight", OptionType::real, "0", "0..1", "Routes of a smaller weight may be skipped; 0 is off.",
     syntax::is_unit_real},
    {"session.moe.offload.skip_tail_cold_only", OptionType::boolean, "1", "0|1", "1 skips only routes to experts that are not at hand.",
     syntax::is_digit_flag},
    {"session.moe.offload.tail_substitution_threshold", OptionType::real, "0", "0..3.4e38",
     "Loss of router logit up to which an expert at hand may replace one that is not; 0 is off.", syntax::is_strict_real},
    {"session.moe.offload.tail_substitution_min_rank", OptionType::integer, "6", kInt32,
     "First rank of a token's routes that may be replaced.", syntax::is_int32},
};

constexpr std::string_view kOffload = "session.moe.offload.";
constexpr std::string_view kOwn[] = {"hotset.", kOffload};

const OptionInfo* lookup(std::string_view key) {
  for (const OptionInfo& o : kTable)
    if (key == o.key) return &o;
  return nullptr;
}

// Edit distance, for "did you mean".
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
      diagonal = above;
    }
  }
  return row[b.size()];
}

bool parse_int(std::string_view text, int64_t* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size();
}

// "0..4096"
bool in_range(std::string_view allowed, int64_t value) {
  const size_t dots = allowed.find("..");
  int64_t low = std::numeric_limits<int64_t>::min(), high = std::numeric_limits<int64_t>::max();
  if (dots != std::string_view::npos) {
    parse_int(allowed.substr(0, dots), &low);
    parse_int(allowed.substr(dots + 2), &high);
  }
  return value >= low && value <= high;
}

bool is_choice(std::string_view allowed, std::string_view value) {
  for (size_t from = 0; from <= allowed.size();) {
    const size_t bar = std::min(allowed.find('|', from), allowed.size());
    if (allowed.substr(from, bar - from) == value) return true;
    from = bar + 1;
  }
  return false;
}

// Before texts about offload keys, for programs that look for it.
const char* code_of(std::string_view key) { return key.starts_with(kOffload) ? "OFFLOAD_BAD_OPTION: " : ""; }

Status invalid(const OptionInfo& o, std::string_view value) {
  return fail(Code::invalid_argument, "%soption '%s': value %s is not one of %s", code_of(o.key), o.key, model::quote(value).c_str(),
              o.allowed);
}

}  // namespace

std::span<const OptionInfo> option_table() { return kTable; }

const char* option_type_name(OptionType type) {
  switch (type) {
    case OptionType::integer:
      return "int";
    case OptionType::boolean:
      return "bool";
    case OptionType::choice:
      return "choice";
    case OptionType::bytes:
      return "bytes";
    case OptionType::real:
      return "real";
    case OptionType::text:
      return "text";
  }
  return "text";
}

Status Options::set(std::string_view key, std::string_view value) {
  const OptionInfo* o = lookup(key);
  if (!o) {
    HOTSET_FAIL_IF(key.starts_with("moe.cpu_offload."), invalid_argument,
                   "OFFLOAD_BAD_OPTION: option %s is the name of a prototype; expert offload is set by session.moe.offload.*",
                   model::quote(key).c_str());
    for (std::string_view own : kOwn) {
      if (!key.starts_with(own)) continue;
      const auto nearest = std::min_element(std::begin(kTable), std::end(kTable), [&](const OptionInfo& a, const OptionInfo& b) {
        return distance(key, a.key) < distance(key, b.key);
      });
      return fail(Code::invalid_argument, "%sunknown option %s; the nearest known one is '%s'", code_of(key), model::quote(key).c_str(),
                  nearest->key);
    }
    values_[std::string(key)] = value;
    return {};
  }
  if (o->is_valid && !o->is_valid(value)) return invalid(*o, value);
  int64_t number = 0;
  switch (o->type) {
    case OptionType::integer:
      if (!o->is_valid && (!parse_int(value, &number) || !in_range(o->allowed, number))) return invalid(*o, value);
      break;
    case OptionType::boolean:
      if (syntax::equals(value, "true")) value = "1";
      if (syntax::equals(value, "false")) value = "0";
      if (value != "0" && value != "1") return invalid(*o, value);
      break;
    case OptionType::choice:
      if (!o->is_valid && !is_choice(o->allowed, value)) return invalid(*o, value);
      break;
    case OptionType::bytes:
    case OptionType::real:
    case OptionType::text:
      break;
  }
  values_[std::string(key)] = value;
  return {};
}

const std::string* Options::find(std::string_view key) const {
  if (const auto it = values_.find(key); it != values_.end()) return &it->second;
  if (!lookup(key)) return nullptr;
  return &get(key);
}

const std::string& Options::get(std::string_view key) const {
  if (const auto it = values_.find(key); it != values_.end()) return it->second;
  // Defaults as strings, made once.
  static const std::map<std::string, std::string, std::less<>> defaults = [] {
    std::map<std::string, std::string, std::less<>> m;
    for (const OptionInfo& o : kTable) m.emplace(o.key, o.default_value);
    return m;
  }();
  const auto it = defaults.find(key);
  assert(it != defaults.end());
  return it->second;
}

int64_t Options::get_int(std::string_view key) const {
  int64_t value = 0;
  parse_int(get(key), &value);
  return value;
}

bool Options::get_bool(std::string_view key) const { return get(key) == "1"; }

int Options::device_index() const {
  const std::string& device = get("hotset.device");
  if (device == "cpu") return -1;
  int64_t index = 0;
  if (const size_t colon = device.find(':'); colon != std::string::npos) parse_int(std::string_view(device).substr(colon + 1), &index);
  return static_cast<int>(index);
}

std::vector<std::string> Options::unknown_keys() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : values_)
    if (!lookup(key)) keys.push_back(key);
  return keys;
}

}  // namespace hotset

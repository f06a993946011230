// SPDX-License-Identifier: Apache-2.0
// The option table and its parser.
#include "session/options.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "model/graph.h"

namespace hotset {
namespace {

constexpr OptionInfo kTable[] = {
    {"intra_op_num_threads", OptionType::integer, "0", "0..4096",
     "Threads of the session, the caller included; 0 takes every processor of the affinity mask."},
    {"session.model_external_initializers_file_folder_path", OptionType::text, "", "",
     "Folder of the external data of a model given as bytes."},
    {"session.disable_cpu_ep_fallback", OptionType::boolean, "0", "0|1",
     "1 makes it an error when the chosen device is absent or cannot run a node; with the CPU as device it has no effect."},
    {"hotset.cpu_activation", OptionType::choice, "auto", "auto|float|int8",
     "Activations of quantised products on the CPU: auto takes int8 where the node says accuracy_level=4 and float32 elsewhere, float is "
     "exact "
     "everywhere, int8 quantises everywhere."},
    {"hotset.router_weights_norm", OptionType::boolean, "1", "0|1",
     "0 uses router_weights (input 14 of QMoE) as they are, as onnxruntime's CPU provider does; 1 divides them by their sum where the node "
     "says "
     "normalize_routing_weights=1."},
    {"hotset.device", OptionType::text, "cpu", "cpu|cuda:N", "Device of the session; this build computes on the CPU."},
    {"hotset.fuse", OptionType::boolean, "1", "0|1", "0 runs the graph node by node as the file has it, for comparisons."},
    {"hotset.trace", OptionType::boolean, "0", "0|1",
     "1 records start and duration of every node of the last run for hotset_session_trace."},
};

constexpr std::string_view kOwn[] = {"hotset.", "session.moe.offload."};

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

Status invalid(const OptionInfo& o, std::string_view value) {
  return fail(Code::invalid_argument, "option '%s': value %s is not one of %s", o.key, model::quote(value).c_str(), o.allowed);
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
    case OptionType::text:
      return "text";
  }
  return "text";
}

Status Options::set(std::string_view key, std::string_view value) {
  const OptionInfo* o = lookup(key);
  if (!o) {
    for (std::string_view own : kOwn) {
      if (!key.starts_with(own)) continue;
      const auto nearest = std::min_element(std::begin(kTable), std::end(kTable), [&](const OptionInfo& a, const OptionInfo& b) {
        return distance(key, a.key) < distance(key, b.key);
      });
      return fail(Code::invalid_argument, "unknown option %s; the nearest known one is '%s'", model::quote(key).c_str(), nearest->key);
    }
    values_[std::string(key)] = value;
    return {};
  }
  int64_t number = 0;
  switch (o->type) {
    case OptionType::integer:
      if (!parse_int(value, &number) || !in_range(o->allowed, number)) return invalid(*o, value);
      break;
    case OptionType::boolean:
      if (value == "true") value = "1";
      if (value == "false") value = "0";
      if (value != "0" && value != "1") return invalid(*o, value);
      break;
    case OptionType::choice:
      if (!is_choice(o->allowed, value)) return invalid(*o, value);
      break;
    case OptionType::bytes:
    case OptionType::text:
      break;
  }
  if (key == "hotset.device" && value != "cpu") {
    if (!value.starts_with("cuda")) return invalid(*o, value);
    return fail(Code::unsupported, "option 'hotset.device': %s needs a build with CUDA operators; this build computes on the CPU",
                model::quote(value).c_str());
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

std::vector<std::string> Options::unknown_keys() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : values_)
    if (!lookup(key)) keys.push_back(key);
  return keys;
}

}  // namespace hotset

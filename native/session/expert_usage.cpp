// SPDX-License-Identifier: Apache-2.0
// Use of experts over the life of a session: profiles in and out, what runs add, statistics in the log.
#include <filesystem>

#include "session/json_text.h"
#include "session/session.h"

namespace hotset {
namespace {

constexpr int kLogInfo = 1, kLogWarning = 2;
constexpr int kMostRecords = 1024;  // of one run

std::string named(const char* key, const std::string& path) { return std::string(key) + " '" + path + "'"; }

}  // namespace

// Relative paths begin at the folder of the model, or are as they are when it was given as bytes.
std::string Session::beside_model(const std::string& path) const {
  namespace fs = std::filesystem;
  const auto make = [](const std::string& utf8) { return fs::path(std::u8string(utf8.begin(), utf8.end())); };
  const model::Model& model = program_->model();
  if (!model.model_mapped) return path;
  const std::u8string joined = (make(model.files[0]->path()).parent_path() / make(path)).u8string();
  return {joined.begin(), joined.end()};
}

std::vector<experts::ProfileNode> Session::profile_nodes() const {
  std::vector<experts::ProfileNode> nodes;
  for (int32_t layer : program_->expert_layers()) {
    const Step& step = program_->steps()[layer];
    const model::Node& node = program_->node(step);
    nodes.push_back({node.scope, node.index, node.op_type, step.kernel->experts()});
  }
  return nodes;
}

Status Session::start_usage() {
  for (int32_t layer : program_->expert_layers()) usage_.add_layer(program_->steps()[layer].kernel->experts());
  if (usage_options_.profile_file.empty()) return {};
  const std::string path = beside_model(usage_options_.profile_file);
  auto profile = experts::read_profile(path, profile_nodes());
  if (!profile.ok()) return profile.take_status().at("OFFLOAD_PROFILE_INVALID: " + named("popularity_file", path));
  for (size_t l = 0; l < usage_.n_layers(); ++l)
    usage_.seed(l, profile.value().popularity[l], program_->node(program_->steps()[program_->expert_layers()[l]]).get_int("k", 1));
  return {};
}

Status Session::save_profile(const std::string& path) const {
  const experts::UsageCounters::Snapshot s = usage_.snapshot();
  HOTSET_FAIL_IF(s.n_tokens == 0, invalid_state, "no run has used an expert yet: there is nothing to save");
  experts::Profile profile;
  profile.n_tokens = s.n_tokens;
  for (const std::vector<uint64_t>& routes : s.routes) {
    std::vector<float>& row = profile.popularity.emplace_back();
    for (uint64_t n : routes) row.push_back(static_cast<float>(static_cast<double>(n) / static_cast<double>(s.n_tokens)));
  }
  return experts::write_profile(path, profile, profile_nodes()).at("profile '" + path + "'");
}

// The counters as they are: a session that starts from them goes on where this one stopped.
void Session::save_counters() const noexcept {
  try {
    const experts::UsageCounters::Snapshot s = usage_.snapshot();
    if (usage_options_.save_file.empty() || s.n_tokens == 0 || process_id() != process_) return;
    experts::Profile profile;
    profile.n_tokens = s.n_tokens;
    for (const std::vector<double>& scores : s.scores) profile.popularity.emplace_back(scores.begin(), scores.end());
    const std::string path = beside_model(usage_options_.save_file);
    const Status status = experts::write_profile(path, profile, profile_nodes());
    if (!status.ok()) log(kLogWarning, named("hotset.popularity_save_file", path) + " " + status.text());
  } catch (const std::exception&) {  // without memory there is nobody to tell
  }
}

void Session::commit_usage(RunState& state, bool succeeded) noexcept {
  if (state.usage.empty()) return;
  if (succeeded) usage_.commit(state.usage);
  for (experts::RunUsage& layer : state.usage) layer.clear();
}

// Before the commit, when the run has succeeded.
void Session::log_usage(const RunState& state) {
  uint64_t negative = 0;
  for (const experts::RunUsage& layer : state.usage) negative += layer.changes().negative_tokens;
  if (negative && !warned_negative_.exchange(true))
    log(kLogWarning, "a token has a negative expert weight: approximate routing leaves such tokens as they are");
  if (!usage_options_.log_statistics || !callbacks_.log || callbacks_.log_level > kLogInfo) return;
  int n_records = 0;
  for (size_t l = 0; l < state.usage.size(); ++l) {
    const experts::RunUsage& usage = state.usage[l];
    if (usage.n_rows() == 0) continue;
    if (n_records++ == kMostRecords) {
      log(kLogWarning, format_text("{\"event\":\"moe_expert_counters_truncated\",\"records\":%d}", kMostRecords));
      return;
    }
    const model::Node& node = program_->node(program_->steps()[program_->expert_layers()[l]]);
    JsonText j;
    j.object().field("event", "moe_expert_counters").field("scope", node.scope).field("node_index", node.index);
    j.field("op_type", node.op_type).field("node", node.name).field("rows", usage.n_rows());
    j.field("skipped", usage.changes().skipped).field("substituted", usage.changes().substituted).key("routes").object();
    for (int32_t e : usage.touched()) j.field(std::to_string(e), usage.routes(e));
    j.end().end();
    log(kLogInfo, j.take());
  }
}

}  // namespace hotset

// SPDX-License-Identifier: Apache-2.0
// Checks between offload keys.
#include "session/offload.h"

#include <algorithm>
#include <cstdlib>

#include "base/available_memory.h"
#include "session/option_syntax.h"

namespace hotset {
namespace {

constexpr struct {
  const char* variable;
  const char* key;
} kFallbacks[] = {
    {"ORT_QMOE_MIN_EXPERT_WEIGHT", "session.moe.offload.min_expert_weight"},
    {"ORT_QMOE_SKIP_TAIL_COLD_ONLY", "session.moe.offload.skip_tail_cold_only"},
    {"ORT_QMOE_SKIP_ZERO_COLD_DOORBELL", "session.moe.offload.skip_zero_cold_doorbell"},
    {"ORT_QMOE_TAIL_SUBSTITUTION_THRESHOLD", "session.moe.offload.tail_substitution_threshold"},
    {"ORT_QMOE_TAIL_SUBSTITUTION_MIN_RANK", "session.moe.offload.tail_substitution_min_rank"},
};

// Keys that bound and order the expert store of a session without a GPU, or choose experts there.
constexpr std::string_view kOfHost[] = {
    "host_expert_bytes", "allow_file_backing", "source_root", "derived_cache_dir", "host_working_bytes", "popularity_file",
};
// The same with hotset.approximate_on_cpu.
constexpr std::string_view kOfTail[] = {
    "min_expert_weight", "skip_tail_cold_only", "tail_substitution_threshold", "tail_substitution_min_rank", "async_max_tokens",
};

constexpr std::string_view kPrefix = "session.moe.offload.";

}  // namespace

Status settle_offload_keys(Options* options, std::vector<std::string>* unused) {
  for (const auto& [variable, key] : kFallbacks) {
    const char* const value = std::getenv(variable);
    if (options->is_set(key) || !value || !*value) continue;
    if (Status status = options->set(key, value); !status.ok()) return std::move(status).at(std::string("environment ") + variable);
  }
  const char *const budget = "session.moe.offload.device_expert_bytes", *const alias = "session.moe.offload.gpu_budget_bytes";
  if (options->is_set(budget) && options->is_set(alias)) {
    const std::string &a = options->get(budget), &b = options->get(alias);
    HOTSET_FAIL_IF(syntax::parse_bytes(a) != syntax::parse_bytes(b), invalid_argument,
                   "OFFLOAD_BAD_OPTION: options '%s' and '%s' name the same budget, but one is '%s' and the other '%s'", budget, alias,
                   a.c_str(), b.c_str());
  }
  for (const OptionInfo& o : option_table()) {
    const std::string_view key = o.key;
    if (!key.starts_with(kPrefix) || !options->is_set(key) || options->get(key) == o.default_value) continue;
    const auto is_in = [&](std::span<const std::string_view> keys) {
      return std::find(keys.begin(), keys.end(), key.substr(kPrefix.size())) != keys.end();
    };
    if (!is_in(kOfHost) && !(is_in(kOfTail) && options->get_bool("hotset.approximate_on_cpu"))) unused->push_back(o.key);
  }
  return {};
}

experts::ExpertStore::Settings store_settings(const Options& options, bool planning) {
  experts::ExpertStore::Settings settings;
  const std::optional<uint64_t> bound = syntax::parse_bytes(options.get("session.moe.offload.host_expert_bytes"));
  settings.has_bound = bound.has_value();
  settings.bound = bound.value_or(0);
  settings.allow_file_backing = options.get_bool("session.moe.offload.allow_file_backing");
  settings.is_chosen = options.is_set("session.moe.offload.host_expert_bytes") || options.is_set("session.moe.offload.allow_file_backing");
  const std::string &pages = options.get("hotset.host_pages"), &io = options.get("hotset.file_io");
  settings.pages = pages == "map" ? experts::HostPages::map : pages == "huge" ? experts::HostPages::huge : experts::HostPages::automatic;
  settings.io = io == "map" ? experts::FileIo::map : io == "read" ? experts::FileIo::read : experts::FileIo::automatic;
  if (!planning) settings.available_bytes = available_memory();
  return settings;
}

}  // namespace hotset

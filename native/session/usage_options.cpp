// SPDX-License-Identifier: Apache-2.0
// Options about the use of experts, and what they say together.
#include "session/usage_options.h"

#include <charconv>
#include <cmath>

#include "model/graph.h"
#include "session/option_syntax.h"

namespace hotset {
namespace {

constexpr const char *kAlpha = "session.moe_expert_counter_alpha", *kBeta = "session.moe_expert_counter_beta",
                     *kStateFile = "session.moe_expert_counter_state_file";
constexpr double kRounding = 1e-9;  // of a sum of two decimal fractions

// In double precision: the table has checked the text.
double real(const Options& options, const char* key) {
  const std::string& text = options.get(key);
  double value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return std::fabs(value);  // of -0
}

// onnxruntime refuses these without counting; with offload counters are on.
Status check_counting(const Options& options) {
  const std::string& mode = options.get("session.moe.offload.mode");
  const bool offload = !syntax::equals(mode, "disabled") && !syntax::equals(mode, "off") && mode != "0";
  if (offload || options.get_bool("session.enable_moe_expert_counting") || options.get_bool("session.enable_moe_expert_statistics"))
    return {};
  for (const char* key : {kAlpha, kBeta, kStateFile})
    HOTSET_FAIL_IF(options.is_set(key), invalid_argument,
                   "option '%s' needs session.enable_moe_expert_counting or session.enable_moe_expert_statistics set to 1", key);
  return {};
}

Status check_same(const Options& options, const char* key, const char* alias) {
  if (!options.is_set(key) || !options.is_set(alias) || options.get(key) == options.get(alias)) return {};
  return fail(Code::invalid_argument, "options '%s' and '%s' are two names of one setting, but one is %s and the other %s", key, alias,
              model::quote(options.get(key)).c_str(), model::quote(options.get(alias)).c_str());
}

Status read_decay(const Options& options, experts::Decay* out) {
  HOTSET_TRY(check_same(options, "hotset.adapt_alpha", kAlpha));
  out->alpha = real(options, options.is_set(kAlpha) ? kAlpha : "hotset.adapt_alpha");
  out->beta = options.is_set(kBeta) ? real(options, kBeta) : 1 - out->alpha;
  HOTSET_FAIL_IF(!options.is_set(kBeta) && out->alpha >= 1, invalid_argument, "option '%s' is %g: without '%s' it is less than 1",
                 options.is_set(kAlpha) ? kAlpha : "hotset.adapt_alpha", out->alpha, kBeta);
  HOTSET_FAIL_IF(out->alpha + out->beta > 1 + kRounding, invalid_argument, "options '%s' %g and '%s' %g: their sum is more than 1", kAlpha,
                 out->alpha, kBeta, out->beta);
  return {};
}

experts::TailRule read_tail(const Options& options) {
  experts::TailRule tail;
  if (!options.get_bool("hotset.approximate_on_cpu")) return tail;
  tail.min_weight = syntax::parse_unit_real(options.get("session.moe.offload.min_expert_weight")).value_or(0);
  tail.skip_cold_only = options.get_bool("session.moe.offload.skip_tail_cold_only");
  tail.threshold = syntax::parse_strict_real(options.get("session.moe.offload.tail_substitution_threshold")).value_or(0);
  tail.min_rank = options.get_int("session.moe.offload.tail_substitution_min_rank");
  if (options.is_set("session.moe.offload.async_max_tokens")) tail.max_tokens = options.get_int("session.moe.offload.async_max_tokens");
  return tail;
}

}  // namespace

Result<UsageOptions> read_usage_options(const Options& options) {
  UsageOptions usage;
  HOTSET_TRY(check_counting(options));
  HOTSET_TRY(read_decay(options, &usage.decay));
  const char* const profile = "session.moe.offload.popularity_file";
  HOTSET_TRY(check_same(options, profile, kStateFile));
  HOTSET_FAIL_IF(options.is_set(kStateFile) && options.get(kStateFile).empty(), invalid_argument, "option '%s' names no file", kStateFile);
  usage.profile_file = options.get(options.is_set(kStateFile) ? kStateFile : profile);
  usage.save_file = options.get("hotset.popularity_save_file");
  usage.tail = read_tail(options);
  usage.log_statistics = options.get_bool("session.enable_moe_expert_statistics");
  return usage;
}

}  // namespace hotset

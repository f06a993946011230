// SPDX-License-Identifier: Apache-2.0
// Options about the use of experts: counters, profiles, approximate routing.
#pragma once
#include <string>

#include "experts/tail_routes.h"
#include "experts/usage_counters.h"
#include "session/options.h"

namespace hotset {

struct UsageOptions {
  experts::Decay decay;
  experts::TailRule tail;       // off unless hotset.approximate_on_cpu is 1
  std::string profile_file;     // to start from; empty: none
  std::string save_file;        // where the counters go when the session ends; empty: nowhere
  bool log_statistics = false;  // a message for every layer of every run
};

// Keys that exclude each other are refused.
Result<UsageOptions> read_usage_options(const Options& options);

}  // namespace hotset

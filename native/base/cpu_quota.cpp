// SPDX-License-Identifier: Apache-2.0
// Formats: cgroup-v2 and sched-bwc of the kernel's documentation.
#include "base/cpu_quota.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/control_group.h"

namespace hotset {
namespace {

// Processors' worth of time of one group; 0: unlimited, or no such file.
double quota_of(const std::string& folder, bool is_version_2) {
  if (is_version_2) {
    const std::string text = read_text_file(folder + "/cpu.max");  // "max 100000" or "150000 100000"
    char* rest = nullptr;
    const double quota = std::strtod(text.c_str(), &rest);
    const double period = std::strtod(rest, nullptr);
    return quota > 0 && period > 0 ? quota / period : 0;
  }
  const double quota = std::strtod(read_text_file(folder + "/cpu.cfs_quota_us").c_str(), nullptr);  // -1: unlimited
  const double period = std::strtod(read_text_file(folder + "/cpu.cfs_period_us").c_str(), nullptr);
  return quota > 0 && period > 0 ? quota / period : 0;
}

}  // namespace

int cpu_quota_threads(const std::string& root) {
  double least = 0;
  each_control_group(root, "cpu", [&](const std::string& folder, bool is_version_2) {
    const double quota = quota_of(folder, is_version_2);
    if (quota > 0 && (least == 0 || quota < least)) least = quota;
  });
  return least == 0 ? 0 : static_cast<int>(std::clamp(std::ceil(least - 1e-9), 1.0, 1e6));
}

}  // namespace hotset

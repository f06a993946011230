// SPDX-License-Identifier: Apache-2.0
// Formats: proc_meminfo(5); memory.max, memory.current, memory.stat and their counterparts of version 1 of the kernel's cgroup
// documentation.
#include "base/available_memory.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "base/control_group.h"

#if defined(_WIN32)
#include <windows.h>
#endif

namespace hotset {
namespace {

constexpr uint64_t kNoLimit = UINT64_MAX;

uint64_t number_at(std::string_view text, uint64_t otherwise) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  uint64_t n = 0;
  return std::from_chars(text.data(), text.data() + text.size(), n).ec == std::errc() ? n : otherwise;
}

// The number behind `name` at the beginning of a line.
uint64_t field(std::string_view text, std::string_view name, uint64_t otherwise) {
  for (size_t at = 0; (at = text.find(name, at)) != std::string_view::npos; ++at)
    if (at == 0 || text[at - 1] == '\n') return number_at(text.substr(at + name.size()), otherwise);
  return otherwise;
}

uint64_t minus(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

// What a group's limit leaves.
uint64_t left_in(const std::string& folder, bool is_version_2) {
  const uint64_t limit = number_at(read_text_file(folder + (is_version_2 ? "/memory.max" : "/memory.limit_in_bytes")), kNoLimit);
  if (limit >= uint64_t{1} << 60) return kNoLimit;  // version 1 writes the largest number of pages
  const uint64_t used = number_at(read_text_file(folder + (is_version_2 ? "/memory.current" : "/memory.usage_in_bytes")), 0);
  const std::string stat = read_text_file(folder + "/memory.stat");
  const std::string_view prefix = is_version_2 ? "" : "total_";
  const uint64_t files = field(stat, std::string(prefix) + "active_file ", 0) + field(stat, std::string(prefix) + "inactive_file ", 0);
  return minus(limit, minus(used, files));
}

}  // namespace

uint64_t available_memory(const std::string& root) {
#if defined(_WIN32)
  (void)root;
  MEMORYSTATUSEX status = {};
  status.dwLength = sizeof status;
  return GlobalMemoryStatusEx(&status) ? status.ullAvailPhys : kNoLimit;
#else
  const uint64_t kilobytes = field(read_text_file(root + "/proc/meminfo"), "MemAvailable:", kNoLimit);
  uint64_t least = kilobytes > kNoLimit / 1024 ? kNoLimit : kilobytes * 1024;
  each_control_group(root, "memory",
                     [&](const std::string& folder, bool is_version_2) { least = std::min(least, left_in(folder, is_version_2)); });
  return least;
#endif
}

}  // namespace hotset

// SPDX-License-Identifier: Apache-2.0
// Memory left by the machine and by control groups, read from files as Linux shows them.
#include "base/available_memory.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

namespace fs = std::filesystem;

namespace {

constexpr const char* kV2Mount = "29 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
constexpr const char* kV1Mount = "34 31 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
constexpr const char* kMachine = "MemTotal: 100 kB\nMemFree: 10 kB\nMemAvailable:      64 kB\n";
constexpr uint64_t kAll = 64 << 10;

struct Case {
  const char* what;
  uint64_t expected;
  const char *meminfo, *groups, *mountinfo;
  std::vector<std::pair<std::string, std::string>> files;
};

std::vector<Case> cases() {
  const std::string v2 = "/sys/fs/cgroup/a", v1 = "/sys/fs/cgroup/memory/a";
  return {
      {"nothing tells", UINT64_MAX, "", "", "", {}},
      {"the machine", kAll, kMachine, "", "", {}},
      {"v2, no limit", kAll, kMachine, "0::/a\n", kV2Mount, {{v2 + "/memory.max", "max\n"}, {v2 + "/memory.current", "1\n"}}},
      {"v2, pages of files can be freed",
       9000 - (5000 - 3000),
       kMachine,
       "0::/a\n",
       kV2Mount,
       {{v2 + "/memory.max", "9000\n"},
        {v2 + "/memory.current", "5000\n"},
        {v2 + "/memory.stat", "anon 2000\ninactive_anon 7\nactive_file 1000\ninactive_file 2000\n"}}},
      {"v2, full", 0, kMachine, "0::/a\n", kV2Mount, {{v2 + "/memory.max", "9000\n"}, {v2 + "/memory.current", "9500\n"}}},
      {"v2, a group above is tighter",
       700,
       kMachine,
       "0::/a/b\n",
       kV2Mount,
       {{v2 + "/b/memory.max", "9000\n"}, {v2 + "/memory.max", "700\n"}, {v2 + "/memory.current", "0\n"}}},
      {"v1",
       9000 - (5000 - 3000),
       kMachine,
       "4:memory:/a\n",
       kV1Mount,
       {{v1 + "/memory.limit_in_bytes", "9000\n"},
        {v1 + "/memory.usage_in_bytes", "5000\n"},
        {v1 + "/memory.stat", "active_file 1\ninactive_file 1\ntotal_inactive_file 2000\ntotal_active_file 1000\n"}}},
      {"v1, no limit", kAll, kMachine, "4:memory:/a\n", kV1Mount, {{v1 + "/memory.limit_in_bytes", "9223372036854771712\n"}}},
      {"v1, another controller", kAll, kMachine, "4:cpu:/a\n", kV1Mount, {{v1 + "/memory.limit_in_bytes", "9\n"}}},
  };
}

}  // namespace

int main() {
#if defined(_WIN32)
  return 77;
#endif
  int failures = 0, n = 0;
  const fs::path top = fs::temp_directory_path() / ("hotset-memory-" + std::to_string(std::rand()) + "-" + std::to_string(sizeof(void*)));
  for (const Case& c : cases()) {
    const fs::path root = top / std::to_string(n++);
    const auto put = [&](const std::string& path, const std::string& text) {
      fs::create_directories(fs::path(root.string() + path).parent_path());
      std::ofstream(root.string() + path) << text;
    };
    put("/proc/meminfo", c.meminfo);
    put("/proc/self/cgroup", c.groups);
    put("/proc/self/mountinfo", c.mountinfo);
    for (const auto& [path, text] : c.files) put(path, text);
    const uint64_t got = hotset::available_memory(root.string());
    if (got == c.expected) continue;
    ++failures;
    std::printf("FAILED: %s: %llu, expected %llu\n", c.what, static_cast<unsigned long long>(got),
                static_cast<unsigned long long>(c.expected));
  }
  fs::remove_all(top);
  if (hotset::available_memory() == 0) ++failures;
  if (failures == 0) std::printf("ok\n");
  return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}

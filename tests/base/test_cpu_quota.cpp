// SPDX-License-Identifier: Apache-2.0
// CPU quotas of control groups, read from files as Linux shows them on a host and in containers, versions 1 and 2.
#include "base/cpu_quota.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace fs = std::filesystem;

namespace {

constexpr const char* kV2Mount = "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
constexpr const char* kV1Mount =
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
    "33 31 0:30 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
    "34 31 0:31 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n";
constexpr const char* kV1 = "/sys/fs/cgroup/cpu,cpuacct";

struct Case {
  const char* what;
  int expected;
  const char* groups;     // /proc/self/cgroup
  const char* mountinfo;  // /proc/self/mountinfo
  std::vector<std::pair<std::string, std::string>> files;
};

std::vector<Case> cases() {
  const std::string v2 = "/sys/fs/cgroup", v1 = kV1;
  std::vector<Case> list = {
      {"no /proc at all", 0, "", "", {}},
      {"v2, two processors", 2, "0::/\n", kV2Mount, {{v2 + "/cpu.max", "200000 100000\n"}}},
      {"v2, one and a half count as two", 2, "0::/a\n", kV2Mount, {{v2 + "/a/cpu.max", "150000 100000\n"}}},
      {"v2, less than one is one", 1, "0::/a\n", kV2Mount, {{v2 + "/a/cpu.max", "1000 100000\n"}}},
      {"v2, another period", 3, "0::/a\n", kV2Mount, {{v2 + "/a/cpu.max", "30000 10000\n"}}},
      {"v2, no limit", 0, "0::/a\n", kV2Mount, {{v2 + "/a/cpu.max", "max 100000\n"}}},
      {"v2, no such file (the root group has none)", 0, "0::/\n", kV2Mount, {}},
      {"v2, the tightest group above holds",
       2,
       "0::/a/b/c\n",
       kV2Mount,
       {{v2 + "/a/b/c/cpu.max", "800000 100000\n"}, {v2 + "/a/b/cpu.max", "max 100000\n"}, {v2 + "/a/cpu.max", "200000 100000\n"}}},
      {"v2, a group of another process does not", 0, "0::/a\n", kV2Mount, {{v2 + "/b/cpu.max", "100000 100000\n"}}},
      {"v2, a group whose name begins alike does not", 0, "0::/ab\n", kV2Mount, {{v2 + "/a/cpu.max", "100000 100000\n"}}},
      {"v2, broken numbers", 0, "0::/a\n", kV2Mount, {{v2 + "/a/cpu.max", "100000\n"}}},
      {"v2, an empty file", 0, "0::/a\n", kV2Mount, {{v2 + "/a/cpu.max", ""}}},
      {"v2, a mount point with a blank",
       2,
       "0::/a\n",
       "29 23 0:26 / /mnt/my\\040groups rw - cgroup2 cgroup2 rw\n",
       {{"/mnt/my groups/a/cpu.max", "200000 100000\n"}}},
      {"v2, the container's group is the root of the mount",
       2,
       "0::/docker/17/init\n",
       "29 23 0:26 /docker/17 /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n",
       {{v2 + "/init/cpu.max", "max 100000\n"}, {v2 + "/cpu.max", "200000 100000\n"}}},
      {"v2, a path outside the mount", 2, "0::/../other\n", kV2Mount, {{v2 + "/cpu.max", "200000 100000\n"}}},
      {"v1, two processors",
       2,
       "5:cpuset:/x\n4:cpu,cpuacct:/a\n",
       kV1Mount,
       {{v1 + "/a/cpu.cfs_quota_us", "200000\n"}, {v1 + "/a/cpu.cfs_period_us", "100000\n"}}},
      {"v1, no limit",
       0,
       "4:cpu,cpuacct:/a\n",
       kV1Mount,
       {{v1 + "/a/cpu.cfs_quota_us", "-1\n"}, {v1 + "/a/cpu.cfs_period_us", "100000\n"}}},
      {"v1, a period of 0",
       0,
       "4:cpu,cpuacct:/a\n",
       kV1Mount,
       {{v1 + "/a/cpu.cfs_quota_us", "100\n"}, {v1 + "/a/cpu.cfs_period_us", "0\n"}}},
      {"v1, the group above holds",
       1,
       "4:cpu,cpuacct:/a/b\n",
       kV1Mount,
       {{v1 + "/a/b/cpu.cfs_quota_us", "-1\n"},
        {v1 + "/a/b/cpu.cfs_period_us", "100000\n"},
        {v1 + "/a/cpu.cfs_quota_us", "50000\n"},
        {v1 + "/a/cpu.cfs_period_us", "100000\n"}}},
      {"v1, a container shows its group as root",
       3,
       "4:cpu,cpuacct:/docker/17\n",
       "34 31 0:31 /docker/17 /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n",
       {{v1 + "/cpu.cfs_quota_us", "300000\n"}, {v1 + "/cpu.cfs_period_us", "100000\n"}}},
      {"v1, only other controllers", 0, "5:cpuset:/x\n6:cpuacct:/x\n", kV1Mount, {{v1 + "/x/cpu.cfs_quota_us", "100000\n"}}},
      {"both versions, the tighter one",
       2,
       "4:cpu,cpuacct:/\n0::/\n",
       nullptr,
       {{"/v2/cpu.max", "400000 100000\n"}, {v1 + "/cpu.cfs_quota_us", "200000\n"}, {v1 + "/cpu.cfs_period_us", "100000\n"}}},
      {"lines that are none", 0, "nonsense\n::\n0:\n", "short\n1 2 3 4 5 6 - cgroup2\n- - - -\n", {}},
  };
  static const std::string both = std::string(kV1Mount) + "41 31 0:38 / /v2 rw - cgroup2 cgroup2 rw\n";
  for (Case& c : list)
    if (!c.mountinfo) c.mountinfo = both.c_str();
  return list;
}

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

}  // namespace

int main() {
  int failures = 0;
  const fs::path base = fs::temp_directory_path() / ("hotset-cpu-quota-" + std::to_string(std::random_device()()));
  for (const Case& c : cases()) {
    fs::remove_all(base);
    fs::create_directories(base);
    if (*c.groups) write(base / "proc/self/cgroup", c.groups);
    if (*c.mountinfo) write(base / "proc/self/mountinfo", c.mountinfo);
    for (const auto& [path, text] : c.files) write(base.string() + path, text);
    const int got = hotset::cpu_quota_threads(base.string());
    if (got == c.expected) continue;
    std::printf("FAILED: %s: %d, expected %d\n", c.what, got, c.expected);
    ++failures;
  }
  fs::remove_all(base);
  if (hotset::cpu_quota_threads() < 0) ++failures;
  if (!failures) std::printf("ok\n");
  return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}

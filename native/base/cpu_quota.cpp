// SPDX-License-Identifier: Apache-2.0
// Formats: cgroups(7) (/proc/self/cgroup), proc_pid_mountinfo(5), and cgroup-v2 and sched-bwc of the kernel's documentation.
#include "base/cpu_quota.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <vector>

namespace hotset {
namespace {

// The file's text; empty when it cannot be read.
std::string read_text(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "re"), &std::fclose);
  std::string text;
  char buffer[4096];
  for (size_t n; file && text.size() < (size_t{1} << 22) && (n = std::fread(buffer, 1, sizeof buffer, file.get())) > 0;)
    text.append(buffer, n);
  return text;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t end; (end = text.find(separator)) != std::string_view::npos; text.remove_prefix(end + 1))
    parts.push_back(text.substr(0, end));
  parts.push_back(text);
  return parts;
}

bool contains(std::string_view list, std::string_view word) {
  const auto words = split(list, ',');
  return std::find(words.begin(), words.end(), word) != words.end();
}

// A mount point as mountinfo writes it: blanks, tabs, line ends and backslashes are three octal digits.
std::string unescape(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size()) {
      out += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

// Where the group's files are: the mounted part of the hierarchy, and the group's path in it.
struct Place {
  std::string mount, path;  // path: "" or "/a/b"
};

// Of the hierarchy that mountinfo shows with this type and, in version 1, the controller "cpu".
bool find_place(std::string_view mountinfo, bool version_2, std::string_view group, Place* place) {
  for (const std::string_view line : split(mountinfo, '\n')) {
    // id parent device root mount-point options [tags...] - type source super-options
    const auto words = split(line, ' ');
    const auto dash = std::find(words.begin(), words.end(), "-");
    if (words.size() < 6 || words.end() - dash < 4) continue;
    const bool fits = version_2 ? dash[1] == "cgroup2" : dash[1] == "cgroup" && contains(dash[3], "cpu");
    if (!fits) continue;
    place->mount = unescape(words[4]);
    const std::string root = unescape(words[3]);
    // A container may show its own group as the root of the mount while the path still begins above it.
    const std::string_view prefix = root == "/" ? std::string_view() : std::string_view(root);
    const bool below = group.starts_with(prefix) && (group.size() == prefix.size() || group[prefix.size()] == '/');
    place->path = below && group.find("/..") == std::string_view::npos ? group.substr(prefix.size()) : std::string_view();
    if (place->path == "/") place->path.clear();
    return true;
  }
  return false;
}

// Processors' worth of time of one group; 0: unlimited, or no such file.
double quota_of(const std::string& folder, bool version_2) {
  if (version_2) {
    const std::string text = read_text(folder + "/cpu.max");  // "max 100000" or "150000 100000"
    char* rest = nullptr;
    const double quota = std::strtod(text.c_str(), &rest);
    const double period = std::strtod(rest, nullptr);
    return quota > 0 && period > 0 ? quota / period : 0;
  }
  const double quota = std::strtod(read_text(folder + "/cpu.cfs_quota_us").c_str(), nullptr);  // -1: unlimited
  const double period = std::strtod(read_text(folder + "/cpu.cfs_period_us").c_str(), nullptr);
  return quota > 0 && period > 0 ? quota / period : 0;
}

}  // namespace

int cpu_quota_threads(const std::string& root) {
  const std::string groups = read_text(root + "/proc/self/cgroup");
  if (groups.empty()) return 0;
  const std::string mountinfo = read_text(root + "/proc/self/mountinfo");
  double least = 0;
  for (const std::string_view line : split(groups, '\n')) {
    // hierarchy:controllers:path; version 2 is "0::path"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string_view::npos || second == std::string_view::npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    const bool version_2 = line.starts_with("0::");
    if (!version_2 && !contains(controllers, "cpu")) continue;
    Place place;
    if (!find_place(mountinfo, version_2, line.substr(second + 1), &place)) continue;
    for (std::string path = place.path;; path.resize(path.rfind('/'))) {
      const double quota = quota_of(root + place.mount + path, version_2);
      if (quota > 0 && (least == 0 || quota < least)) least = quota;
      if (path.empty()) break;
    }
  }
  return least == 0 ? 0 : static_cast<int>(std::clamp(std::ceil(least - 1e-9), 1.0, 1e6));
}

}  // namespace hotset

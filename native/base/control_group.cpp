// SPDX-License-Identifier: Apache-2.0
// Formats: cgroups(7) (/proc/self/cgroup) and proc_pid_mountinfo(5).
#include "base/control_group.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <vector>

namespace hotset {
namespace {

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

// Of the hierarchy that mountinfo shows with this type and, in version 1, the controller.
bool find_place(std::string_view mountinfo, bool is_version_2, std::string_view controller, std::string_view group, Place* place) {
  for (const std::string_view line : split(mountinfo, '\n')) {
    // id parent device root mount-point options [tags...] - type source super-options
    const auto words = split(line, ' ');
    const auto dash = std::find(words.begin(), words.end(), "-");
    if (words.size() < 6 || words.end() - dash < 4) continue;
    const bool fits = is_version_2 ? dash[1] == "cgroup2" : dash[1] == "cgroup" && contains(dash[3], controller);
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

}  // namespace

std::string read_text_file(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "re"), &std::fclose);
  std::string text;
  char buffer[4096];
  for (size_t n; file && text.size() < (size_t{1} << 22) && (n = std::fread(buffer, 1, sizeof buffer, file.get())) > 0;)
    text.append(buffer, n);
  return text;
}

void each_control_group(const std::string& root, std::string_view controller,
                        const std::function<void(const std::string& folder, bool is_version_2)>& f) {
  const std::string groups = read_text_file(root + "/proc/self/cgroup");
  if (groups.empty()) return;
  const std::string mountinfo = read_text_file(root + "/proc/self/mountinfo");
  for (const std::string_view line : split(groups, '\n')) {
    // hierarchy:controllers:path; version 2 is "0::path"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string_view::npos || second == std::string_view::npos) continue;
    const bool is_version_2 = line.starts_with("0::");
    if (!is_version_2 && !contains(line.substr(first + 1, second - first - 1), controller)) continue;
    Place place;
    if (!find_place(mountinfo, is_version_2, controller, line.substr(second + 1), &place)) continue;
    for (std::string path = place.path;; path.resize(path.rfind('/'))) {
      f(root + place.mount + path, is_version_2);
      if (path.empty()) break;
    }
  }
}

}  // namespace hotset

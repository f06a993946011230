// SPDX-License-Identifier: Apache-2.0
// The Linux control groups that this process is in.
#pragma once
#include <functional>
#include <string>
#include <string_view>

namespace hotset {

// Calls f(folder, is_version_2) for the group of this process and for each one above it, in the hierarchy of version 2 and in that
// of version 1 with this controller, as far as they are mounted. `root` stands before every absolute path that is read (tests: a
// folder with files of their own).
void each_control_group(const std::string& root, std::string_view controller,
                        const std::function<void(const std::string& folder, bool is_version_2)>& f);

// The file's text; empty when it cannot be read.
std::string read_text_file(const std::string& path);

}  // namespace hotset

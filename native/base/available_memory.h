// SPDX-License-Identifier: Apache-2.0
// Memory that this process may still take.
#pragma once
#include <cstdint>
#include <string>

namespace hotset {

// Bytes that are free or that the system can free without swapping: of the machine, and of the control groups of this process
// (their limit less what is used; pages of files count as free). UINT64_MAX when nothing tells. `root`: see control_group.h.
uint64_t available_memory(const std::string& root = "");

}  // namespace hotset

// SPDX-License-Identifier: Apache-2.0
// Which of the device code of a build a GPU runs.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace hotset::cuda {

// Of targets as nvcc was told ("80,86,90a,ptx80"), the one that a driver picks for a compute capability: "sm_90a", "compute_80" for
// PTX that it compiles itself, "" when none fits. Machine code runs on its own major version from its minor version on, that of an
// "a" target on exactly its own; PTX on everything that is not older.
std::string choose_code(std::string_view targets, int major, int minor);

struct CodeChoice {
  std::string family;  // stem of the .cu file
  Status status;       // that it loads on the device, or why not
};

// Loads the device code of every family on a device.
hotset::Result<std::vector<CodeChoice>> load_all_code(int index);

}  // namespace hotset::cuda

// SPDX-License-Identifier: Apache-2.0
// Which tier serves each kernel family in this process.
#pragma once
#include <vector>

namespace hotset::cpu {

struct KernelChoice {
  const char* family;
  const char* isa;  // a name of cpu_level_name()
};

std::vector<KernelChoice> kernel_choices();

}  // namespace hotset::cpu

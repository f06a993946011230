// SPDX-License-Identifier: Apache-2.0
// Does the device code of this build load and run on a device of this machine?
#pragma once
#include <string>

namespace hotset::cuda {

// Loads a fatbin, launches its kernel on its own stream, copies the result back and compares.
// False with one sentence in *why: no driver, no device, no device code in this build or for this device, wrong result.
bool self_test(int index, std::string* why);

}  // namespace hotset::cuda

// SPDX-License-Identifier: Apache-2.0
// The header alone as C++20: it compiles first in a file, and its functions have C linkage.
#include <hotset/hotset.h>

#include <type_traits>

static_assert(std::is_standard_layout_v<hotset_tensor> && std::is_trivially_copyable_v<hotset_tensor>);
static_assert(std::is_same_v<decltype(hotset_api_version()), uint32_t>);

int main() { return hotset_api_version() == HOTSET_API_VERSION ? 0 : 1; }

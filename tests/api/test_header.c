/* SPDX-License-Identifier: Apache-2.0
 * The header alone as C11: sizes and offsets that callers compiled in years ago, pinned enum numbers, the version handshake. */
#include <hotset/hotset.h>

_Static_assert(HOTSET_API_VERSION == 1, "a new API version needs a new copy of this test");
_Static_assert(offsetof(hotset_tensor, struct_size) == 0, "struct_size comes first");
_Static_assert(offsetof(hotset_device_info, struct_size) == 0, "struct_size comes first");
_Static_assert(offsetof(hotset_option_info, struct_size) == 0, "struct_size comes first");
_Static_assert(offsetof(hotset_value_info, struct_size) == 0, "struct_size comes first");
_Static_assert(offsetof(hotset_sampler_config, struct_size) == 0, "struct_size comes first");
#if UINTPTR_MAX == UINT64_MAX
_Static_assert(sizeof(hotset_tensor) == 176 && offsetof(hotset_tensor, data) == 24 && offsetof(hotset_tensor, owner) == 168, "layout");
_Static_assert(sizeof(hotset_value_info) == 152, "layout");
_Static_assert(sizeof(hotset_device_info) == 160, "layout");
_Static_assert(sizeof(hotset_sampler_config) == 32, "layout");
#endif
_Static_assert(HOTSET_ERROR_INTERNAL == 20 && HOTSET_BFLOAT16 == 16 && HOTSET_CUDA == 2, "numbers are never reused");

int main(void) { return hotset_api_version() == HOTSET_API_VERSION && hotset_version()[0] != '\0' ? 0 : 1; }

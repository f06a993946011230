# SPDX-License-Identifier: Apache-2.0
"""The installed library on a real GPU; tools/gpu_check.sh runs these on a machine that has one."""

import pytest

from hotset._native import ffi, lib

pytestmark = pytest.mark.gpu


def device_info(index: int):
    info = ffi.new("hotset_device_info *", {"struct_size": ffi.sizeof("hotset_device_info")})
    assert lib.hotset_device_get_info(index, info) == lib.HOTSET_OK, ffi.string(lib.hotset_last_error())
    return info


def test_devices_are_described():
    count = ffi.new("int32_t *")
    assert lib.hotset_device_count(count) == lib.HOTSET_OK and count[0] > 0
    for index in range(count[0]):
        info = device_info(index)
        assert info.device == lib.HOTSET_CUDA and info.device_id == index
        assert info.name != b"" and info.compute_major >= 5 and info.memory_bytes > 1 << 30 and info.driver_version >= 12000

# SPDX-License-Identifier: Apache-2.0
"""Print the nvcc targets of this machine's GPUs, comma-separated ("90a"); nothing when there is no GPU or no driver.

Asks the driver itself: nvidia-smi is missing in many containers.
"""

import ctypes

MAJOR, MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*


def capabilities() -> list[tuple[int, int]]:
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    count, value = ctypes.c_int(), ctypes.c_int()
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return []
    found = []
    for index in range(count.value):
        device = ctypes.c_int()
        if cuda.cuDeviceGet(ctypes.byref(device), index):
            continue
        pair = []
        for attribute in (MAJOR, MINOR):
            cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
            pair.append(value.value)
        found.append(tuple(pair))
    return found


def main() -> None:
    # 9.0 alone has instructions (wgmma) that exist only under the architecture-specific name.
    names = {f"{major}{minor}" + ("a" if (major, minor) == (9, 0) else "") for major, minor in capabilities() if major >= 8}
    print(",".join(sorted(names)))


main()

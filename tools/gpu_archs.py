# SPDX-License-Identifier: Apache-2.0
"""Print the nvcc targets of this machine's GPUs, comma-separated ("90a"); nothing when there is no GPU or no driver.

Asks the driver itself: nvidia-smi is missing in many containers.
"""

import ctypes

MAJOR, MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
PLACES = ["libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1"]  # as native/cuda/driver.cpp


def load_driver():
    for path in PLACES:
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    return None


def capabilities() -> list[tuple[int, int]]:
    cuda = load_driver()
    count, value = ctypes.c_int(), ctypes.c_int()
    if not cuda or cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
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

# SPDX-License-Identifier: Apache-2.0
"""PEP 517 backend: meson-python with two changes.

1. The wheel holds a C library that any Python loads through cffi, so its tag is py3-none-<platform>, not cp311-cp311-<platform>.
   `-C host-platform=manylinux_2_28_aarch64` names the platform of a cross build. (Never the environment variable in a shell:
   pip itself reads it and would fetch build tools of the other platform.)
2. `-C setup-args=-Dcuda=enabled` where no nvcc is found asks pip for NVIDIA's compiler from PyPI. The default, auto, never does.
"""

import os
import pathlib
import subprocess
import sys

import mesonpy
from mesonpy import build_sdist, get_requires_for_build_sdist  # noqa: F401

# nvcc's own dependencies are not pinned, and cuda_fp16.h needs cccl which is not among them.
NVCC = [
    "nvidia-cuda-nvcc==13.0.88",
    "nvidia-nvvm==13.0.88",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cuda-cccl==13.0.85",
]

assert isinstance(mesonpy._WheelBuilder._has_extension_modules, property)  # the one private name we lean on
mesonpy._WheelBuilder._has_extension_modules = property(lambda self: False)


def _split(config_settings):
    rest = dict(config_settings or {})
    return rest.pop("host-platform", None), rest


def _wants_nvcc(settings) -> bool:
    arguments = settings.get("setup-args", [])
    arguments = [arguments] if isinstance(arguments, str) else arguments
    if "-Dcuda=enabled" not in arguments or "-Dkernels=prebuilt" in arguments:
        return False
    find = pathlib.Path(__file__).with_name("find_nvcc.py")
    return subprocess.run([sys.executable, str(find)], capture_output=True).returncode != 0


def get_requires_for_build_wheel(config_settings=None):
    settings = _split(config_settings)[1]
    return mesonpy.get_requires_for_build_wheel(settings) + (NVCC if _wants_nvcc(settings) else [])


get_requires_for_build_editable = get_requires_for_build_wheel


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    platform, settings = _split(config_settings)
    if platform:
        os.environ["_PYTHON_HOST_PLATFORM"] = platform.replace("win_amd64", "win-amd64")
    return mesonpy.build_wheel(wheel_directory, settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    return mesonpy.build_editable(wheel_directory, _split(config_settings)[1], metadata_directory)

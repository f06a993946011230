# SPDX-License-Identifier: Apache-2.0
"""Print the nvcc to use; exit 1 with a way out when there is none.

$NVCC, else the one that PyPI's nvidia-cuda-nvcc put beside this Python, else PATH, else /usr/local/cuda.
"""

import importlib.util
import os
import pathlib
import shutil
import sys


def candidates():
    yield os.environ.get("NVCC")
    try:
        package = importlib.util.find_spec("nvidia.cu13")
    except ModuleNotFoundError:
        package = None
    for base in (package.submodule_search_locations or []) if package else []:
        for name in ("nvcc", "nvcc.exe"):
            path = pathlib.Path(base) / "bin" / name
            yield str(path) if path.exists() else None
    yield shutil.which("nvcc")
    yield "/usr/local/cuda/bin/nvcc" if os.path.exists("/usr/local/cuda/bin/nvcc") else None


def main() -> None:
    found = next(filter(None, candidates()), None)
    if not found:
        sys.exit(
            "no nvcc: set NVCC, or pip install nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 "
            "nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85"
        )
    print(found)


main()

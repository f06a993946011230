# SPDX-License-Identifier: Apache-2.0
"""Print the include folder of the PyPI package nlohmann-json, which holds <nlohmann/json.hpp>."""
import importlib.util
import pathlib
import sys


def main():
    spec = importlib.util.find_spec("nlohmann_json")
    folder = pathlib.Path(next(iter(spec.submodule_search_locations))) / "include" if spec else None
    if folder is None or not (folder / "nlohmann" / "json.hpp").is_file():
        sys.exit("the headers of nlohmann-json are missing: pip install nlohmann-json==3.12.0")
    print(folder.as_posix())


main()

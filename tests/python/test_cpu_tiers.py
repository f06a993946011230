# SPDX-License-Identifier: Apache-2.0
"""HOTSET_CPU: every tier of the machine can be forced and takes hold, everything else is refused."""

import json
import os
import subprocess
import sys

import pytest

import hotset

TIERS = hotset.doctor()["cpu"]["tiers"]
ALL = [
    ["scalar", "avx2", "avx2vnni", "avx512", "avx512vnni", "avx512bf16", "amx"],
    ["scalar", "neon", "neondot", "neoni8mm"],
]
ORDER = next(order for order in ALL if set(TIERS) <= set(order))
CODE = """
import json
import hotset
from hotset.generator import model_folder

try:
    with hotset.InferenceSession(str(model_folder("demo") / "model.onnx")) as session:
        found = sorted({node["kernel"] for node in session.plan()["nodes"] if node["op"] == "QMoE"})
except hotset.Error as error:
    found = [type(error).__name__, str(error)]
print(json.dumps([found, hotset.doctor()]))
"""


def start(tier):
    """(kernels of the demo model's expert layers or the error, the report of the machine) of a process with HOTSET_CPU=tier."""
    done = subprocess.run([sys.executable, "-c", CODE], env=os.environ | {"HOTSET_CPU": tier}, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("tier", TIERS)
def test_a_tier_takes_hold(tier):
    implementations, report = start(tier)
    assert report["cpu"]["level"] == tier and "error" not in report["cpu"]
    allowed = ORDER[: ORDER.index(tier) + 1]
    assert set(report["kernels"].values()) <= set(allowed)
    assert set(implementations) <= set(allowed)
    expected = {"scalar": "scalar", "avx2": "avx2", "avx512": "avx512", "neon": "neon"}
    if tier in expected:
        assert report["kernels"]["float weights"] == report["kernels"]["int4 weights, float activations"] == expected[tier]
    dot_products = {"avx2vnni", "avx512vnni", "amx", "neondot", "neoni8mm"}
    if tier in dot_products:
        assert report["kernels"]["int4 weights, int8 activations"] == tier


def test_the_last_tier_is_the_default():
    implementations, report = start("")
    assert report["cpu"]["level"] == TIERS[-1]
    assert (implementations, report["kernels"]) == (start(TIERS[-1])[0], start(TIERS[-1])[1]["kernels"])


@pytest.mark.parametrize("tier", ["avx", "AVX2", "sse4", "avx512 ", *ALL[1 if TIERS[-1] in ALL[0] else 0][1:]])
def test_an_unknown_tier_is_refused(tier):
    (kind, text), report = start(tier)
    assert kind == "Unsupported" and "\n" not in text
    for word in (f"HOTSET_CPU='{tier}'", "no tier of this architecture", *ORDER):
        assert word in text
    assert text.endswith(report["cpu"]["error"]) and report["cpu"]["level"] == TIERS[-1]


@pytest.mark.parametrize("tier", [tier for tier in ORDER if tier not in TIERS])
def test_a_tier_of_another_machine_is_refused(tier):
    (kind, text), _ = start(tier)
    assert kind == "Unsupported" and f"HOTSET_CPU='{tier}'" in text and "does not have it" in text and TIERS[-1] in text

# SPDX-License-Identifier: Apache-2.0
"""What the library says about GPUs, on a stand-in driver."""

import json
import subprocess
import sys

import pytest


def doctor(environment):
    command = [sys.executable, "-m", "hotset", "doctor", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["cuda"]


def test_devices_are_described(fake_gpu):
    cuda = doctor(fake_gpu | {"FAKE_CUDA_DEVICES": "2", "FAKE_CUDA_MEMORY": str(8 << 30), "FAKE_CUDA_COMPUTE": "89"})
    assert cuda["note"] == "NVIDIA driver for CUDA 13.0"
    assert [d["name"] for d in cuda["devices"]] == ["Fake GPU 0", "Fake GPU 1"]
    for device in cuda["devices"]:
        assert device["compute_capability"] == "8.9" and device["free_bytes"] == device["total_bytes"] == 8 << 30
        assert "fill" in device["device_code"] and "error" not in device


def test_one_family_does_not_load(fake_gpu):
    code = doctor(fake_gpu | {"FAKE_CUDA_FAIL": "cuLibraryLoadData:1=209"})["devices"][0]["device_code"]
    refused = [text for text in code.values() if "CUDA_ERROR_NO_BINARY_FOR_GPU" in text]
    assert len(refused) == 1 and "compute capability 9.0" in refused[0]


@pytest.mark.parametrize("call", ["cuDevicePrimaryCtxRetain", "cuMemGetInfo", "cuDeviceGetName"])
def test_a_device_that_fails(fake_gpu, call):
    device = doctor(fake_gpu | {"FAKE_CUDA_FAIL": f"{call}:1=999"})["devices"][0]
    assert "CUDA error 999" in device["error"]


@pytest.mark.parametrize("mode, text", [("nodevice", "CUDA_ERROR_NO_DEVICE"), ("missing", "lacks cuLibraryLoadData")])
def test_no_usable_driver(fake_gpu, mode, text):
    cuda = doctor(fake_gpu | {"FAKE_CUDA": mode})
    assert text in cuda["note"] and cuda["devices"] == []

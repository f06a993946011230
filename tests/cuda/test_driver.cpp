// SPDX-License-Identifier: Apache-2.0
// The driver layer against stand-ins for libcuda: what it says when there is no driver, no device, or a broken one.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "cuda/driver.h"
#include "cuda/fatbins.h"
#include "cuda/self_test.h"

using namespace hotset::cuda;

namespace {

int failures = 0;

void expect(bool ok, const char* what, const std::string& seen) {
  if (ok) return;
  ++failures;
  std::printf("FAIL %s: '%s'\n", what, seen.c_str());
}

void expect_driver(const char* mode, const char* path, DriverState state, const char* text) {
  setenv("FAKE_CUDA", mode, 1);
  const Driver d = load_driver(path);
  expect(d.state == state && d.why.find(text) != std::string::npos && d.why.find('\n') == std::string::npos, mode, d.why);
}

}  // namespace

int main() {
  const std::string good = FAKE_CUDA_FOLDER "/libfake_cuda.so";
  const std::string old = FAKE_CUDA_FOLDER "/libfake_cuda_old.so";
  expect_driver("absent file", "/nonexistent/libcuda.so.1", DriverState::kNoDriver, "no NVIDIA driver: /nonexistent/libcuda.so.1");
  expect_driver("nodevice", good.c_str(), DriverState::kNoDevice,
                "(CUDA 13.0) reports CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected");
  expect_driver("mismatch", good.c_str(), DriverState::kUnusable, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH");
  expect_driver("missing", good.c_str(), DriverState::kUnusable, "lacks cuLibraryLoadData");
  expect_driver("old driver", old.c_str(), DriverState::kUnusable, "too old: CUDA 12.0");
  expect_driver("other library", "libc.so.6", DriverState::kUnusable, "has no cuInit");

  const std::string junk = FAKE_CUDA_FOLDER "/junk_cuda.so";
  std::ofstream(junk) << "this is no library";
  expect_driver("junk file", junk.c_str(), DriverState::kNoDriver, "no NVIDIA driver: ");

  // The process-wide driver, by the variable that names it.
  setenv("HOTSET_LIBCUDA", good.c_str(), 1);
  setenv("FAKE_CUDA", "", 1);
  int n = 0;
  std::string note;
  expect(device_count(&n, &note) && n == 1 && note == "NVIDIA driver for CUDA 13.0", "one device", note);
  DeviceInfo info;
  expect(device_info(0, &info, &note), "device 0", note);
  expect(info.name == "Fake GPU 0" && info.memory_bytes == 143771ull << 20 && info.compute_major == 9 && info.compute_minor == 0 &&
             info.driver_version == 13000,
         "properties", info.name);
  expect(!device_info(1, &info, &note) && note == "no CUDA device 1: there are 1", "device 1", note);
  expect(!device_info(-1, &info), "device -1", "");
  expect(!self_test(0, &note), "self-test on a device that runs nothing", note);
  expect(note.find(kFatbinCount ? "element 0 is 0, expected" : "no device code") != std::string::npos, "self-test says why", note);
  setenv("FAKE_CUDA", "badcount", 1);
  expect(!device_count(&n, &note) && n == 0 && note.find("cannot count") != std::string::npos, "count fails", note);
  setenv("FAKE_CUDA", "empty", 1);
  expect(!device_count(&n, &note) && n == 0 && note == "NVIDIA driver for CUDA 13.0, no device visible", "no device visible", note);

  for (std::size_t i = 0; i < kFatbinCount; ++i) {  // fatbin magic; the driver wants them aligned
    const Fatbin& f = kFatbins[i];
    expect(f.end - f.begin > 64 && f.begin[0] == 0x50 && f.begin[1] == 0xed && f.begin[2] == 0x55 && f.begin[3] == 0xba &&
               reinterpret_cast<std::uintptr_t>(f.begin) % 64 == 0,
           "fatbin", f.name);
  }
  std::printf("%d failures\n", failures);
  return failures != 0;
}

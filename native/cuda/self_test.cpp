// SPDX-License-Identifier: Apache-2.0
// Self-test of one device: load, launch, copy, compare.
#include "cuda/self_test.h"

#include <cstdint>
#include <vector>

#include "cuda/driver.h"
#include "cuda/fatbins.h"

namespace hotset::cuda {
namespace {

// What the test holds on the device; given back in reverse order on every way out.
struct Holdings {
  const Driver& d;
  Device device = 0;
  Context context = nullptr;
  bool pushed = false;
  Library library = nullptr;
  Stream stream = nullptr;
  DevicePtr buffer = 0;

  ~Holdings() {
    if (buffer) d.mem_free(buffer);
    if (stream) d.stream_destroy(stream);
    if (library) d.library_unload(library);
    Context previous = nullptr;
    if (pushed) d.ctx_pop(&previous);
    if (context) d.primary_ctx_release(device);
  }
};

}  // namespace

bool self_test(int index, std::string* why) {
  DeviceInfo info;
  if (!device_info(index, &info, why)) return false;
  const Fatbin* fatbin = find_fatbin("fill");
  if (!fatbin) {
    *why = "this build has no device code";
    return false;
  }

  std::uint32_t n = 100003, seed = 17;
  std::vector<std::uint32_t> seen(n);
  const Driver& d = driver();
  Holdings h{d};
  Kernel kernel = nullptr;
  Function function = nullptr;
  const auto ok = [&](const char* step, Result result) {
    if (result != 0) *why = info.name + ": " + step + ": " + d.describe(result);
    return result == 0;
  };
  if (!ok("cuDeviceGet", d.device_get(&h.device, index))) return false;
  if (!ok("cuDevicePrimaryCtxRetain", d.primary_ctx_retain(&h.context, h.device))) return false;
  if (!ok("cuCtxPushCurrent", d.ctx_push(h.context))) return false;
  h.pushed = true;
  if (!ok("cuLibraryLoadData", d.library_load_data(&h.library, fatbin->begin, nullptr, nullptr, 0, nullptr, nullptr, 0))) return false;
  if (!ok("cuLibraryGetKernel", d.library_get_kernel(&kernel, h.library, "hotset_fill_u32"))) return false;
  if (!ok("cuKernelGetFunction", d.kernel_get_function(&function, kernel))) return false;
  if (!ok("cuStreamCreate", d.stream_create(&h.stream, 1 /* CU_STREAM_NON_BLOCKING */))) return false;
  if (!ok("cuMemAlloc", d.mem_alloc(&h.buffer, n * sizeof(std::uint32_t)))) return false;
  void* parameters[] = {&h.buffer, &n, &seed};
  const LaunchConfig config{(n + 255) / 256, 1, 1, 256, 1, 1, 0, h.stream, nullptr, 0};
  if (!ok("cuLaunchKernelEx", d.launch_kernel_ex(&config, function, parameters, nullptr))) return false;
  if (!ok("cuMemcpyDtoHAsync", d.memcpy_dtoh_async(seen.data(), h.buffer, n * sizeof(std::uint32_t), h.stream))) return false;
  if (!ok("cuStreamSynchronize", d.stream_synchronize(h.stream))) return false;
  for (std::uint32_t i = 0; i < n; ++i) {
    const std::uint32_t expected = (i + seed) * 2654435761u;
    if (seen[i] != expected) {
      *why = info.name + ": element " + std::to_string(i) + " is " + std::to_string(seen[i]) + ", expected " + std::to_string(expected);
      return false;
    }
  }
  *why = info.name + ": device code runs";
  return true;
}

}  // namespace hotset::cuda

// SPDX-License-Identifier: Apache-2.0
// Finds and loads the NVIDIA driver and asks it what devices there are.
#include "cuda/driver.h"

#include <atomic>
#include <cstdlib>

#include "base/thread_pool.h"

#if defined(_WIN32)
#include <windows.h>
#else
#include <dlfcn.h>
#endif

namespace hotset::cuda {
namespace {

constexpr Result kNotInitialized = 3, kErrorNoDevice = 100;
constexpr int kComputeMajor = 75;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
constexpr int kComputeMinor = 76;

#if defined(_WIN32)

void* open_library(const char* path, std::string* why) {
  HMODULE module = path ? LoadLibraryA(path) : LoadLibraryExA("nvcuda.dll", nullptr, LOAD_LIBRARY_SEARCH_SYSTEM32);
  if (!module) *why = std::string(path ? path : "nvcuda.dll") + ": Windows error " + std::to_string(GetLastError());
  return reinterpret_cast<void*>(module);
}

void* find_symbol(void* library, const char* name) {
  return reinterpret_cast<void*>(GetProcAddress(reinterpret_cast<HMODULE>(library), name));
}

#else

void* open_library(const char* path, std::string* why) {
  // The second is WSL's, which is on no search path; the third is where containers without ldconfig have it.
  const char* usual[] = {"libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1"};
  for (const char* name : usual) {
    if (path) name = path;
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
    if (why->empty()) *why = dlerror();
    if (path) break;
  }
  return nullptr;
}

void* find_symbol(void* library, const char* name) { return dlsym(library, name); }

#endif

std::string version_text(int version) { return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10); }

std::atomic<bool> ending{false};
std::atomic<std::int64_t> loaded_by{0};  // process; 0: not yet

// Made after the driver's own handlers for the end of the process, so it ends before they run.
struct EndMark {
  ~EndMark() { ending.store(true, std::memory_order_relaxed); }
};

Driver fail(Driver driver, DriverState state, std::string why) {
  driver.state = state;
  driver.why = std::move(why);
  return driver;
}

}  // namespace

std::string Driver::describe(Result result) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (get_error_name) get_error_name(result, &name);
  if (get_error_string) get_error_string(result, &text);
  std::string all = (name ? std::string(name) : "CUDA error " + std::to_string(result)) + (text ? std::string(": ") + text : "");
  if (result == kNotInitialized && !driver_lives()) all += " (CUDA cannot be used in a child made by fork() after its parent used it)";
  return all;
}

Driver load_driver(const char* path) {
  Driver d;
  std::string why;
  void* library = open_library(path, &why);
  if (!library) return fail(d, DriverState::kNoDriver, "no NVIDIA driver: " + why);

  using GetProcAddress = Result(HOTSET_CUDAAPI*)(const char*, void**, int, std::uint64_t, int*);
  const auto get_proc = reinterpret_cast<GetProcAddress>(find_symbol(library, "cuGetProcAddress_v2"));
  if (!get_proc) {
    return fail(d, DriverState::kUnusable,
                find_symbol(library, "cuInit") ? "the NVIDIA driver is too old: CUDA 12.0 or newer is needed"
                                               : "the library found as NVIDIA driver is none: it has no cuInit");
  }
#define X(member, symbol, number, parameters)                                                                     \
  {                                                                                                               \
    void* address = nullptr;                                                                                      \
    int status = 0;                                                                                               \
    if (get_proc(symbol, &address, number, 0, &status) != 0 || status != 0 || !address)                           \
      return fail(d, DriverState::kUnusable, "the NVIDIA driver lacks " symbol ": CUDA 12.0 or newer is needed"); \
    d.member = reinterpret_cast<decltype(d.member)>(address);                                                     \
  }
  HOTSET_CUDA_FUNCTIONS(X)
#undef X

  if (d.driver_get_version(&d.version) != 0) d.version = 0;
  const Result result = d.init(0);
  if (result != 0) {
    const std::string text = "the NVIDIA driver (CUDA " + version_text(d.version) + ") reports " + d.describe(result);
    return fail(d, result == kErrorNoDevice ? DriverState::kNoDevice : DriverState::kUnusable, text);
  }
  d.state = DriverState::kReady;
  return d;
}

const Driver& driver() {
  // Never destroyed: sessions that a host keeps in static objects end after it would have been.
  static const Driver& loaded = *[] {
    const char* path = std::getenv("HOTSET_LIBCUDA");
    const Driver* d = new Driver(load_driver(path && *path ? path : nullptr));
    static const EndMark mark;
    loaded_by.store(process_id(), std::memory_order_relaxed);
    return d;
  }();
  return loaded;
}

bool driver_lives() {
  const std::int64_t process = loaded_by.load(std::memory_order_relaxed);
  return !ending.load(std::memory_order_relaxed) && (process == 0 || process == process_id());
}

bool device_count(int* n, std::string* note) {
  *n = 0;
  const Driver& d = driver();
  if (d.state != DriverState::kReady) {
    *note = d.why;
    return false;
  }
  const Result result = d.device_get_count(n);
  if (result != 0) {
    *n = 0;
    *note = "the NVIDIA driver cannot count its devices: " + d.describe(result);
    return false;
  }
  *note = "NVIDIA driver for CUDA " + version_text(d.version) + (*n > 0 ? "" : ", no device visible");
  return *n > 0;
}

bool device_info(int index, DeviceInfo* out, std::string* why) {
  int n = 0;
  std::string note;
  std::string& text = why ? *why : note;
  if (!device_count(&n, &text)) return false;
  if (index < 0 || index >= n) {
    text = "no CUDA device " + std::to_string(index) + ": there are " + std::to_string(n);
    return false;
  }
  const Driver& d = driver();
  Device device = 0;
  char name[256] = {};
  std::size_t bytes = 0;
  Result result = d.device_get(&device, index);
  if (result == 0) result = d.device_get_name(name, static_cast<int>(sizeof name) - 1, device);
  if (result == 0) result = d.device_total_mem(&bytes, device);
  if (result == 0) result = d.device_get_attribute(&out->compute_major, kComputeMajor, device);
  if (result == 0) result = d.device_get_attribute(&out->compute_minor, kComputeMinor, device);
  if (result != 0) {
    text = "CUDA device " + std::to_string(index) + ": " + d.describe(result);
    return false;
  }
  out->name = name;
  out->memory_bytes = bytes;
  out->driver_version = d.version;
  return true;
}

}  // namespace hotset::cuda

// SPDX-License-Identifier: Apache-2.0
// Gpu and what it gives out, on a stand-in driver: every call of the driver fails once, and afterwards nothing is left, the text
// says what happened, and other users of the same device go on. Needs the names of the device code (-Dkernels=empty suffices).
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <string_view>
#include <thread>
#include <vector>

#include "cuda/device.h"
#include "cuda/fatbins.h"
#include "fake_gpu.h"

using namespace hotset;
using namespace hotset::cuda;

namespace {

int failures = 0;

void expect(bool ok, const std::string& what, const std::string& seen = {}) {
  if (ok) return;
  ++failures;
  std::printf("FAIL %s: '%s'\n", what.c_str(), seen.c_str());
}

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

// All that a session does with a device, once: bytes go up and come back, a kernel with much shared memory is launched.
Status use(int index) {
  HOTSET_ASSIGN(const std::shared_ptr<Gpu> gpu, Gpu::open(index));
  HOTSET_ASSIGN(const OwnStream stream, OwnStream::make(gpu));
  HOTSET_ASSIGN(const DeviceMemory memory, DeviceMemory::take(gpu, 1000, Purpose::weights, "weights"));
  HOTSET_ASSIGN(const PinnedMemory pinned, PinnedMemory::take(gpu, 2000, "staging"));
  HOTSET_ASSIGN(const Function function, gpu->function("fill", "hotset_fill_u32", 100 << 10));
  size_t free = 0, total = 0;
  HOTSET_TRY(gpu->free_memory(&free, &total));
  const Current current(*gpu);
  const Driver& d = driver();
  std::memset(pinned.data(), 5, 1000);
  HOTSET_TRY(gpu->check(d.memcpy_htod_async(memory.address(), pinned.data(), 1000, stream.get()), "upload"));
  HOTSET_TRY(launch_with(*gpu, stream.get(), Launch{.function = function, .block = 256, .shared_bytes = 100 << 10, .overlap = true}, 7));
  HOTSET_TRY(gpu->check(d.memcpy_dtoh_async(pinned.data() + 1000, memory.address(), 1000, stream.get()), "download"));
  HOTSET_TRY(stream.synchronize());
  HOTSET_FAIL_IF(std::memcmp(pinned.data(), pinned.data() + 1000, 1000) != 0, internal, "the bytes are not those that went up");
  return {};
}

bool gives_back(std::string_view function) {
  return function.ends_with("Free") || function.ends_with("FreeHost") || function.ends_with("Destroy") || function.ends_with("Unload") ||
         function.ends_with("Release") || function == "cuCtxPopCurrent";
}

bool is_told(const Status& status, std::string_view function) {
  if (function == "cuDeviceGetCount") return contains(status.text(), "cannot count its devices: CUDA error 999");
  const char* text = function == "cuCtxPushCurrent" ? "CUDA_ERROR_INVALID_CONTEXT" : "CUDA error 999";
  return status.code() == Code::device && contains(status.text(), text);
}

const std::vector<const char*> kFunctions = {
#define X(member, symbol, version, parameters) symbol,
    HOTSET_CUDA_FUNCTIONS(X)
#undef X
};

// How often each function is called by use(). A context that exists can be made current, so that fails only where one begins.
std::map<std::string, int> counts() {
  fake::reset();
  const Status status = use(0);
  expect(status.ok() && fake::misuse().empty(), "without a failure", status.text() + fake::misuse());
  std::map<std::string, int> found;
  for (const char* name : kFunctions) found[name] = static_cast<int>(fake::calls(name));
  found["cuCtxPushCurrent"] = 1;
  found["cuInit"] = 0;  // called once in a process
  return found;
}

void fail_every_call(long held) {
  int injected = 0;
  for (const auto& [function, n] : counts()) {
    for (int nth = 1; nth <= n; ++nth) {
      fake::reset();
      fake::fail(function.c_str(), nth, 999);
      const Status status = use(0);
      const std::string where = function + " " + std::to_string(nth);
      expect(status.ok() == gives_back(function), where, status.text());
      expect(status.ok() || (is_told(status, function) && !contains(status.text(), "\n")), where + " says what happened", status.text());
      expect(fake::live() == held, where + " leaves objects", std::to_string(fake::live() - held) + " " + fake::misuse());
      ++injected;
    }
  }
  expect(injected >= (held ? 15 : 25), "enough calls have failed", std::to_string(injected));
  const Status after = use(0);
  expect(after.ok(), "works afterwards", after.text());
}

void test_beside_another_user() {
  auto opened = Gpu::open(0);
  expect(opened.ok(), "open");
  const std::shared_ptr<Gpu> gpu = std::move(opened.value());
  auto taken = DeviceMemory::take(gpu, 4096, Purpose::caches, "cache");
  auto stream = OwnStream::make(gpu);
  expect(taken.ok() && stream.ok() && gpu->bytes(Purpose::caches) == 4096 && gpu->function("fill", "hotset_fill_u32", 100 << 10).ok(),
         "take");
  fail_every_call(fake::live());
  expect(gpu->bytes(Purpose::weights) == 0 && gpu->pinned_bytes() == 0, "what failed is not accounted");
  const Current current(*gpu);
  expect(gpu->check(driver().memset_d8_async(taken.value().address(), 1, 4096, stream.value().get()), "memset").ok() &&
             stream.value().synchronize().ok(),
         "the other user goes on");
}

void test_memory_runs_out() {
  fake::reset();
  fake::set_memory(0, 1 << 20);
  auto opened = Gpu::open(0);
  const std::shared_ptr<Gpu> gpu = std::move(opened.value());
  auto first = DeviceMemory::take(gpu, 700 << 10, Purpose::weights, "weights");
  auto second = DeviceMemory::take(gpu, 700 << 10, Purpose::experts, "experts of layer 3");
  expect(first.ok() && !second.ok(), "the second does not fit");
  const Status status = second.take_status();
  expect(status.code() == Code::out_of_device_memory && contains(status.text(), "experts of layer 3: 716800 bytes of device memory"),
         "names what did not fit", status.text());
  expect(gpu->bytes(Purpose::weights) == 700 << 10 && gpu->bytes(Purpose::experts) == 0, "accounted");
  first.value().give();
  expect(gpu->bytes(Purpose::weights) == 0 && DeviceMemory::take(gpu, 700 << 10, Purpose::experts, "experts").ok(), "fits then");
  fake::fail("cuMemHostAlloc", 1, 2);
  auto pinned = PinnedMemory::take(gpu, 4096, "staging");
  expect(!pinned.ok() && pinned.take_status().code() == Code::out_of_memory, "host memory that cannot be pinned is host memory");
  fake::set_memory(0, size_t{143771} << 20);
}

void test_lost_device() {
  fake::reset();
  {
    auto first = Gpu::open(0), second = Gpu::open(1);
    expect(first.ok() && second.ok(), "two devices");
    const std::shared_ptr<Gpu> gpu = std::move(first.value());
    auto memory = DeviceMemory::take(gpu, 100, Purpose::values, "values");
    fake::fail("cuStreamSynchronize", 1, 700);
    Status status = use(0);
    expect(status.code() == Code::device && contains(status.text(), "cuStreamSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS") &&
               contains(status.text(), "lost until every session on it is freed"),
           "an illegal address", status.text());
    expect(gpu->lost() && !second.value()->lost(), "one is lost");
    for (int again = 0; again < 2; ++again) {
      status = use(0);
      expect(status.code() == Code::device && contains(status.text(), "was lost before (CUDA_ERROR_ILLEGAL_ADDRESS"), "later",
             status.text());
    }
    expect(!gpu->function("fill", "another", 0).ok(), "nothing works on it");
    status = use(1);
    expect(status.ok(), "the other device goes on", status.text());
  }
  expect(fake::live() == 0, "all is given back", std::to_string(fake::live()));
  const Status status = use(0);
  expect(status.ok(), "a fresh context after all have let go", status.text());
}

void test_code_that_does_not_fit() {
  for (int code : {209, 222}) {
    fake::reset();
    fake::fail("cuLibraryLoadData", 1, code);
    const Status status = use(0);
    expect(status.code() == Code::unsupported && contains(status.text(), "Fake GPU 0 (compute capability 9.0, driver for CUDA 13.0)") &&
               contains(status.text(), "'fill'") && contains(status.text(), *kFatbinArchs ? kFatbinArchs : "ready-made"),
           "no device code for this device", status.text());
  }
  auto gpu = Gpu::open(0);
  const Status status = gpu.value()->function("no_such", "kernel").take_status();
  expect(status.code() == Code::unsupported && contains(status.text(), "no device code 'no_such'"), "unknown device code", status.text());
}

void test_numbers_of_devices() {
  fake::reset();
  for (int index : {-1, 2, 17}) {
    const Status status = Gpu::open(index).take_status();
    expect(status.code() == Code::invalid_argument && contains(status.text(), "there are cuda:0 to cuda:1"), "no such device",
           status.text());
  }
  setenv("FAKE_CUDA", "empty", 1);
  const Status status = Gpu::open(0).take_status();
  setenv("FAKE_CUDA", "", 1);
  expect(status.code() == Code::unsupported && contains(status.text(), "device cuda:0: ") && contains(status.text(), "no device visible"),
         "no device at all", status.text());
}

void test_threads() {
  fake::reset();
  std::vector<std::thread> threads;
  std::vector<Status> results(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50 && results[t].ok(); ++i) results[t] = use(t % 2);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : results) expect(status.ok(), "threads", status.text());
  expect(fake::live() == 0 && fake::misuse().empty(), "threads leave objects", fake::misuse());
}

void test_fork() {
  fake::reset();
  auto opened = Gpu::open(0);
  auto memory = DeviceMemory::take(opened.value(), 100, Purpose::values, "values");
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    const Status status = DeviceMemory::take(opened.value(), 100, Purpose::values, "values").take_status();
    const Status again = Gpu::open(1).take_status();
    memory.value().give();
    std::printf("child: %s\n", status.text().c_str());
    std::fflush(stdout);
    _exit(status.code() == Code::invalid_state && contains(status.text(), "fork()") && contains(again.text(), "fork()") ? 0 : 1);
  }
  int status = 0;
  expect(waitpid(child, &status, 0) == child && status == 0, "a forked child gets an error", std::to_string(status));
  expect(fake::live("memory") == 1 && use(0).ok(), "the parent goes on");
}

// In a process of its own: this program with an argument.
void expect_process(const char* program, const char* what, const char* variable) {
  fflush(stdout);
  const int status = std::system((std::string(variable) + " '" + program + "' " + what).c_str());
  expect(status == 0, what, std::to_string(status));
}

DeviceMemory kept_to_the_end;  // made before the driver is loaded, ends after it

int keep_to_the_end() {
  auto gpu = Gpu::open(0);
  auto memory = DeviceMemory::take(gpu.value(), 100, Purpose::values, "values");
  kept_to_the_end = std::move(memory.value());
  return 0;
}

int use_old_driver() {
  fake::fail("cuLibraryLoadData", 1, 222);
  const Status status = use(0);
  expect(contains(status.text(), "driver for CUDA 12.40)"), "names the driver", status.text());
  expect(!kFatbinToolkit || contains(status.text(), "needs a driver for CUDA 13"), "and what it should be", status.text());
  return failures;
}

}  // namespace

int main(int argc, char** argv) {
  setenv("FAKE_CUDA_DEVICES", "2", 1);
  fake::library();
  if (kFatbinCount == 0) {
    std::printf("built without names of device code\n");
    return 77;
  }
  if (argc > 1) return std::string_view(argv[1]) == "keep" ? keep_to_the_end() : use_old_driver();
  fail_every_call(0);
  test_beside_another_user();
  test_memory_runs_out();
  test_lost_device();
  test_code_that_does_not_fit();
  test_numbers_of_devices();
  test_threads();
  test_fork();
  expect(fake::live() == 0 && fake::misuse().empty(), "at the end", fake::misuse());
  expect_process(argv[0], "keep", "");
  expect_process(argv[0], "old", "FAKE_CUDA_VERSION=12400");
  std::printf("%d failures\n", failures);
  return failures != 0;
}

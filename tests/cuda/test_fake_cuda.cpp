// SPDX-License-Identifier: Apache-2.0
// The stand-in driver itself: that it moves bytes, keeps order, and notices what a driver would refuse.
#include <cstring>
#include <vector>

#include "base/status.h"
#include "cuda/driver.h"
#include "fake_gpu.h"

using namespace hotset::cuda;

namespace {

int failures = 0;

void expect(bool ok, const char* what, const std::string& seen = {}) {
  if (ok) return;
  ++failures;
  std::printf("FAIL %s: '%s'\n", what, seen.c_str());
}

struct Rig {
  const Driver& d = driver();
  Device device = 0;
  Context context = nullptr;
  Stream a = nullptr, b = nullptr;
  DevicePtr memory = 0;
  std::vector<unsigned char> host = std::vector<unsigned char>(256, 1), back = std::vector<unsigned char>(256, 0);

  Rig() {
    fake::reset();
    const bool ok = d.device_get(&device, 0) == 0 && d.primary_ctx_retain(&context, device) == 0 && d.ctx_push(context) == 0 &&
                    d.stream_create(&a, 1) == 0 && d.stream_create(&b, 1) == 0 && d.mem_alloc(&memory, 256) == 0;
    expect(ok, "rig", fake::misuse());
  }
  ~Rig() {
    if (memory) d.mem_free(memory);
    d.stream_destroy(a);
    d.stream_destroy(b);
    d.ctx_pop(&context);
    d.primary_ctx_release(device);
    expect(fake::live() == 0, "objects are left", std::to_string(fake::live()));
  }
};

void test_order() {
  Rig r;
  fake::set_lazy(true);
  Event event = nullptr;
  expect(r.d.event_create(&event, 2) == 0, "event");
  expect(r.d.memcpy_htod_async(r.memory, r.host.data(), 256, r.a) == 0, "up");
  expect(r.d.event_record(event, r.a) == 0 && r.d.event_query(event) != 0, "an event before its work is done");
  // Without a wait, the second stream does not see what the first one has to do.
  expect(r.d.memcpy_dtoh_async(r.back.data(), r.memory, 256, r.b) == 0 && r.back[0] == 0, "down");
  r.d.event_synchronize(event);
  r.d.memset_d8_async(r.memory, 7, 256, r.a);
  r.d.event_record(event, r.a);
  r.d.stream_wait_event(r.b, event, 0);
  r.d.memcpy_dtoh_async(r.back.data(), r.memory, 256, r.b);
  r.d.stream_synchronize(r.b);
  expect(r.back[0] == 7 && r.back[255] == 7, "a stream that waited", std::to_string(r.back[0]));
  expect(r.d.event_query(event) == 0, "an event after its work");
  r.d.event_destroy(event);
  expect(fake::misuse().empty(), "misuse", fake::misuse());
  fake::set_lazy(false);
}

void test_unwaited_copy_is_late() {
  Rig r;
  fake::set_lazy(true);
  r.d.memcpy_htod_async(r.memory, r.host.data(), 256, r.a);
  std::memset(r.host.data(), 9, 256);  // too early: nobody has waited
  r.d.memcpy_dtoh_async(r.back.data(), r.memory, 256, r.a);
  expect(r.back[0] == 0, "nothing is back before the wait");
  r.d.stream_synchronize(r.a);
  expect(r.back[0] == 9, "the copy took what was there when it ran", std::to_string(r.back[0]));
  fake::set_lazy(false);
}

void test_graph() {
  Rig r;
  Graph graph = nullptr;
  GraphExec exec = nullptr;
  Event fork = nullptr, join = nullptr;
  r.d.event_create(&fork, 2);
  r.d.event_create(&join, 2);
  expect(r.d.stream_begin_capture(r.a, 1) == 0, "capture");
  expect(r.d.memcpy_htod_async(r.memory, r.host.data(), 256, r.a) == 0, "captured copy");
  r.d.event_record(fork, r.a);
  r.d.stream_wait_event(r.b, fork, 0);
  r.d.memcpy_dtoh_async(r.back.data(), r.memory, 256, r.b);
  r.d.event_record(join, r.b);
  r.d.stream_wait_event(r.a, join, 0);
  DevicePtr other = 0;
  expect(r.d.mem_alloc(&other, 1) == 900, "no memory during a capture");
  expect(fake::misuse().find("cuMemAlloc: memory is taken during a capture") == 0, "said so", fake::misuse());
  expect(r.d.stream_end_capture(r.a, &graph) == 0 && r.d.graph_instantiate(&exec, graph, 0) == 0, "graph");
  r.d.graph_destroy(graph);
  expect(r.back[0] == 0, "nothing runs while captured");
  for (unsigned char value : {3, 4}) {
    std::memset(r.host.data(), value, 256);
    expect(r.d.graph_launch(exec, r.a) == 0 && r.d.stream_synchronize(r.a) == 0, "replay");
    expect(r.back[0] == value && r.back[255] == value, "a replay copies again", std::to_string(r.back[0]));
  }
  r.d.graph_exec_destroy(exec);
  r.d.event_destroy(fork);
  r.d.event_destroy(join);
}

void expect_misuse(int result, const char* text) {
  expect(result != 0 && fake::misuse().find(text) != std::string::npos, text, std::to_string(result) + " " + fake::misuse());
  fake::reset();
}

void test_misuse() {
  Rig r;
  expect_misuse(r.d.memcpy_htod_async(r.memory + 1, r.host.data(), 256, r.a), "target is no such memory");
  expect_misuse(r.d.memcpy_htod_async(reinterpret_cast<DevicePtr>(r.back.data()), r.host.data(), 256, r.a), "target is no such memory");
  expect_misuse(r.d.memcpy_htod_async(r.memory, reinterpret_cast<void*>(r.memory), 256, r.a), "source is no such memory");
  expect_misuse(r.d.mem_free(r.memory + 8), "not the address");
  expect_misuse(r.d.stream_synchronize(reinterpret_cast<Stream>(&r)), "no stream");
  expect_misuse(r.d.mem_host_register(r.host.data(), 256, 8 | 2), "private mapping");
  const LaunchConfig config{1, 1, 1, 2048, 1, 1, 0, r.a, nullptr, 0};
  expect_misuse(r.d.launch_kernel_ex(&config, nullptr, nullptr, nullptr), "no function");
  DevicePtr other = 0;
  expect(r.d.mem_alloc(&other, size_t{1} << 50) == 2 && fake::misuse().empty(), "more than the device has is no misuse");
  Context popped = nullptr;
  r.d.ctx_pop(&popped);
  expect_misuse(r.d.mem_alloc(&other, 1), "no context is current");
  r.d.ctx_push(r.context);
}

}  // namespace

int main() {
  fake::library();
  test_order();
  test_unwaited_copy_is_late();
  test_graph();
  test_misuse();
  std::printf("%d failures\n", failures);
  return failures != 0;
}

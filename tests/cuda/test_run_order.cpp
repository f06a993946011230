// SPDX-License-Identifier: Apache-2.0
// Runs in the order of a caller's stream, on a stand-in driver whose streams run as late as they may: a wait that is missing in
// either direction gives old bytes. The model is z = x + x, and its kernel is a function of this test.
#include <hotset/hotset.h>

#include <cstring>
#include <vector>

#include "cuda/device.h"
#include "fake_gpu.h"
#include "model/proto.h"

using namespace hotset::cuda;

namespace {

constexpr int64_t kElements = 1000;
constexpr size_t kBytes = kElements * sizeof(float);

hotset_session* open_session(const char* device) {
  const proto::Message model = proto::model(proto::graph({{"x"}, {"z"}, {proto::node("Add", {"x", "x"}, {"z"})}}));
  hotset_options* options = nullptr;
  hotset_session* session = nullptr;
  CHECK(!hotset_options_create(&options) && !hotset_options_set(options, "hotset.device", device));
  if (hotset_session_create_from_memory(&session, model.bytes.data(), model.bytes.size(), options))
    std::printf("%s\n", hotset_last_error());
  CHECK(session);
  hotset_options_free(options);
  return session;
}

hotset_tensor device_tensor() {
  hotset_tensor t = {};
  t.struct_size = sizeof t;
  t.dtype = HOTSET_FLOAT32;
  t.device = HOTSET_CUDA;
  t.rank = 1;
  t.shape[0] = kElements;
  return t;
}

struct Rig {
  hotset_session* session = open_session("cuda:0");
  std::shared_ptr<Gpu> gpu = std::move(Gpu::open(0).value());
  Current current{*gpu};
  OwnStream stream = std::move(OwnStream::make(gpu).value());
  hotset_tensor x = device_tensor(), z = device_tensor();
  std::vector<float> source = std::vector<float>(kElements), seen = std::vector<float>(kElements);
  std::vector<float> read;  // what the kernel found at each launch
  const char* x_name = "x";
  const char* z_name = "z";

  Rig() {
    CHECK(!hotset_tensor_allocate(&x) && !hotset_tensor_allocate(&z));
    fake::on_launch(add, this);
  }
  ~Rig() {
    fake::on_launch(nullptr, nullptr);
    hotset_tensor_free(&x);
    hotset_tensor_free(&z);
    hotset_session_free(session);
  }
  static float* host_view(const hotset_tensor& t) {
    return reinterpret_cast<float*>(reinterpret_cast<uintptr_t>(t.data) & ~(uint64_t{1} << 62));
  }
  // What the kernel does to the bound tensors.
  static void add(const char*, void* rig) {
    Rig& r = *static_cast<Rig*>(rig);
    r.read.push_back(host_view(r.x)[0]);
    for (int64_t i = 0; i < kElements; ++i) host_view(r.z)[i] = 2 * host_view(r.x)[i];
  }
  // Enqueued in the caller's stream and not run.
  void write_input(float value) {
    source.assign(kElements, value);
    CHECK(driver().memcpy_htod_async(reinterpret_cast<DevicePtr>(x.data), source.data(), kBytes, stream.get()) == 0);
  }
  void read_output() { CHECK(driver().memcpy_dtoh_async(seen.data(), reinterpret_cast<DevicePtr>(z.data), kBytes, stream.get()) == 0); }
  hotset_tensor bound_z() const {
    hotset_tensor t = z;
    t.owner = nullptr;  // a buffer of the caller
    return t;
  }
  void run() {
    hotset_tensor out = bound_z();
    if (hotset_run_async(session, nullptr, &x_name, &x, 1, &z_name, &out, 1, stream.get())) std::printf("%s\n", hotset_last_error());
    CHECK(out.data == z.data && out.owner == nullptr);
  }
};

// What the caller's stream gets after a run comes after it, and the run after what the stream had.
void test_both_directions() {
  Rig r;
  for (float value = 1; value < 6; ++value) {  // graphs are captured and replayed on the way
    r.write_input(value);
    const long waits = fake::calls("cuStreamSynchronize");
    r.run();
    CHECK(fake::calls("cuStreamSynchronize") == waits || value > 1);  // the first run waits for nothing
    r.read_output();
    CHECK(r.seen[0] != 2 * value);  // nobody has waited yet
    CHECK(r.stream.synchronize().ok());
    CHECK(r.seen[0] == 2 * value && r.seen[kElements - 1] == 2 * value);
  }
}

// The session's own stream is made to run first: it must still wait for the caller's.
void test_the_run_comes_after_the_stream() {
  Rig r;
  r.write_input(7);
  r.run();
  hotset_tensor unused = r.bound_z();
  CHECK(!hotset_run_async(r.session, nullptr, &r.x_name, &r.x, 1, &r.z_name, &unused, 1, r.stream.get()));  // waits for the first
  hotset_tensor host = {};
  host.struct_size = sizeof host;
  host.dtype = HOTSET_FLOAT32;
  host.rank = 1;
  host.shape[0] = kElements;
  host.data = r.seen.data();
  host.bytes = kBytes;
  CHECK(!hotset_stream_order(0, r.stream.get(), nullptr));
  CHECK(!hotset_tensor_copy(&host, &r.z));
  CHECK(r.seen[0] == 14 && r.read == std::vector<float>({7, 7}));
}

// Without a stream of the caller: after the default stream, and waited for.
void test_plain_run() {
  Rig r;
  fake::set_lazy(false);
  r.source.assign(kElements, 5);
  CHECK(driver().memcpy_htod_async(reinterpret_cast<DevicePtr>(r.x.data), r.source.data(), kBytes, nullptr) == 0);
  fake::set_lazy(true);
  hotset_tensor out = device_tensor();  // the library allocates
  CHECK(!hotset_run(r.session, nullptr, &r.x_name, &r.x, 1, &r.z_name, &out, 1) && out.owner && out.device == HOTSET_CUDA);
  void* managed = nullptr;
  CHECK(!hotset_tensor_to_dlpack(&out, &managed));
  hotset_tensor view = {};
  view.struct_size = sizeof view;
  CHECK(!hotset_tensor_from_dlpack(&view, managed) && view.data == out.data && view.shape[0] == kElements && view.bytes == kBytes);
  hotset_tensor_free(&out);
  CHECK(fake::live("memory") >= 3);  // x, z and the one that is still shared
  hotset_tensor again = device_tensor();
  CHECK(!hotset_tensor_allocate(&again) && !hotset_tensor_copy(&again, &view));
  hotset_tensor_free(&again);
  struct Managed {
    char tensor[48];
    void* context;
    void (*deleter)(void*);
  };
  static_cast<Managed*>(managed)->deleter(managed);
}

// Any call of the driver may fail in a run: a status, and what was taken is given back.
void test_failures() {
  for (const char* function : {"cuEventRecord", "cuStreamWaitEvent", "cuMemcpyDtoDAsync", "cuStreamSynchronize", "cuGraphLaunch",
                               "cuStreamBeginCapture", "cuStreamEndCapture", "cuGraphInstantiateWithFlags", "cuPointerGetAttribute"}) {
    for (int nth = 1; nth <= 3; ++nth) {
      fake::reset();
      {
        Rig r;
        fake::fail(function, nth, 999);
        int failed = 0;
        for (int i = 0; i < 4; ++i) {
          hotset_tensor out = r.bound_z();
          failed += hotset_run_async(r.session, nullptr, &r.x_name, &r.x, 1, &r.z_name, &out, 1, r.stream.get()) != HOTSET_OK;
        }
        CHECK(failed <= 4);
      }
      CHECK(fake::live() == 0);
      if (!fake::misuse().empty()) std::printf("%s %d: %s\n", function, nth, fake::misuse().c_str());
      CHECK(fake::misuse().empty());
    }
  }
}

void test_refusals() {
  hotset_session* on_cpu = open_session("cpu");
  float values[4] = {};
  hotset_tensor x = {};
  x.struct_size = sizeof x;
  x.dtype = HOTSET_FLOAT32;
  x.rank = 1;
  x.shape[0] = 4;
  x.data = values;
  x.bytes = sizeof values;
  hotset_tensor out = {};
  out.struct_size = sizeof out;
  const char *x_name = "x", *z_name = "z";
  CHECK(hotset_run_async(on_cpu, nullptr, &x_name, &x, 1, &z_name, &out, 1, nullptr) == HOTSET_ERROR_UNSUPPORTED);
  x.device = 9;
  CHECK(hotset_run(on_cpu, nullptr, &x_name, &x, 1, &z_name, &out, 1) == HOTSET_ERROR_UNSUPPORTED);
  x.device = HOTSET_CUDA;
  CHECK(hotset_run(on_cpu, nullptr, &x_name, &x, 1, &z_name, &out, 1) == HOTSET_ERROR_UNSUPPORTED);
  CHECK(std::strstr(hotset_last_error(), "computes on the CPU"));
  void* managed = nullptr;
  CHECK(hotset_tensor_to_dlpack(&out, &managed) == HOTSET_ERROR_INVALID_ARGUMENT);
  x.device = HOTSET_CPU;
  CHECK(hotset_tensor_to_dlpack(&x, &managed) == HOTSET_ERROR_UNSUPPORTED && !managed);
  CHECK(hotset_tensor_allocate(&x) == HOTSET_ERROR_INVALID_ARGUMENT);
  hotset_session_free(on_cpu);
}

}  // namespace

int main() {
  fake::library();
  fake::set_lazy(true);
  test_both_directions();
  test_the_run_comes_after_the_stream();
  test_plain_run();
  CHECK(fake::misuse().empty() && fake::live() == 0);
  test_failures();
  test_refusals();
  std::printf("ok\n");
  return 0;
}

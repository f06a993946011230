// SPDX-License-Identifier: Apache-2.0
// What goes wrong inside a run becomes a status, and the session serves the next run: exceptions of worker tasks, cancel from
// another thread, operators that refuse a shape, memory that is refused. The operators of this program are its own.
#include <hotset/hotset.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "model/proto.h"
#include "ops/op.h"

namespace {

std::atomic<size_t> refused_bytes{SIZE_MAX};  // allocations of at least this size fail

}  // namespace

// Both forms: that of a sanitizer's runtime, which throws nothing, does not call the one that throws.
void* operator new(size_t n, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  const size_t a = static_cast<size_t>(alignment);
  return n >= refused_bytes.load() ? nullptr : std::aligned_alloc(a, (n + a - 1) / a * a);
}
void* operator new(size_t n, std::align_val_t alignment) {
  void* p = operator new(n, alignment, std::nothrow);
  return p ? p : throw std::bad_alloc();
}
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { std::free(p); }

namespace hotset::ops {
namespace {

// y = x, computed by 64 tasks; one of them throws what x[0] says.
class Throw final : public Kernel {
 public:
  Status infer(InferContext& c) const override {
    c.set_output(0, DType::f32, c.shape(0));
    return {};
  }
  Status run(const RunContext& c) const override {
    const float* x = c.input(0)->as<const float>();
    c.pool->parallel_for(64, [&](int64_t task, int) {
      if (task == 0) std::memcpy(c.output(0)->data, x, c.input(0)->bytes());
      if (task != 37) return;
      if (x[0] == 1) throw std::runtime_error("task 37 met a fault");
      if (x[0] == 2) throw std::bad_alloc();
      if (x[0] == 3) throw 3;
    });
    return {};
  }
};

// y = x, after a millisecond.
class Slow final : public Kernel {
 public:
  Status infer(InferContext& c) const override {
    c.set_output(0, DType::f32, c.shape(0));
    return {};
  }
  Status run(const RunContext& c) const override {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::memcpy(c.output(0)->data, c.input(0)->data, c.input(0)->bytes());
    return {};
  }
};

// y = x; inference fails after the shape was set when the second input is 13.
class Late final : public Kernel {
 public:
  Status infer(InferContext& c) const override {
    c.set_output(0, DType::f32, c.shape(0));
    const Tensor* number = c.known(1);
    if (!number) return c.defer(1);
    HOTSET_FAIL_IF(*number->as<const float>() == 13, invalid_argument, "13 is refused");
    return {};
  }
  Status run(const RunContext& c) const override {
    std::memcpy(c.output(0)->data, c.input(0)->data, c.input(0)->bytes());
    return {};
  }
  uint32_t shape_inputs() const override { return 2; }
};

// y = x[0], whatever the size of x.
class First final : public Kernel {
 public:
  Status infer(InferContext& c) const override {
    const int64_t one = 1;
    c.set_output(0, DType::f32, Shape(std::span(&one, 1)));
    return {};
  }
  Status run(const RunContext& c) const override {
    std::memcpy(c.output(0)->data, c.input(0)->data, sizeof(float));
    return {};
  }
};

template <class K>
Result<std::unique_ptr<Kernel>> make(const OpContext&) {
  return std::unique_ptr<Kernel>(new K);
}

}  // namespace

HOTSET_OPS(test_faults, {"tests", "Throw", 1, kLatest, make<Throw>, {1, 1}}, {"tests", "Slow", 1, kLatest, make<Slow>, {1, 1}},
           {"tests", "First", 1, kLatest, make<First>, {1, 1}}, {"tests", "Late", 1, kLatest, make<Late>, {2, 2}});

// Takes the place of the generated table of the library's operators.
extern const OpList* const kOpLists[];
extern const size_t kOpListCount;
const OpList* const kOpLists[] = {&ops_test_faults};
const size_t kOpListCount = 1;

}  // namespace hotset::ops

namespace {

using proto::Message;
using proto::Names;

hotset_session* create(const std::vector<Message>& nodes, const Names& inputs, const Names& outputs, const char* threads = "3") {
  Message bytes = proto::model(proto::graph({inputs, outputs, nodes}));
  bytes.add(8, proto::opset("tests", 1));
  hotset_options* options = nullptr;
  CHECK(!hotset_options_create(&options));
  CHECK(!hotset_options_set(options, "intra_op_num_threads", threads));
  hotset_session* session = nullptr;
  if (hotset_session_create_from_memory(&session, bytes.bytes.data(), bytes.bytes.size(), options))
    std::printf("%s\n", hotset_last_error());
  CHECK(session);
  hotset_options_free(options);
  return session;
}

hotset_tensor view(std::vector<float>& x) {
  hotset_tensor t = {};
  t.struct_size = sizeof t;
  t.dtype = HOTSET_FLOAT32;
  t.device = HOTSET_CPU;
  t.rank = 1;
  t.data = x.data();
  t.bytes = x.size() * sizeof(float);
  t.shape[0] = static_cast<int64_t>(x.size());
  return t;
}

bool last_error_has(const char* text) { return std::strstr(hotset_last_error(), text) != nullptr; }

hotset_status run(hotset_session* session, std::vector<float>& x, hotset_tensor* y, hotset_run_options* run_options = nullptr) {
  const char *in[] = {"x"}, *out[] = {"y"};
  const hotset_tensor input = view(x);
  *y = {};
  y->struct_size = sizeof *y;
  return hotset_run(session, run_options, in, &input, 1, out, y, 1);
}

void exceptions_of_tasks_become_statuses() {
  hotset_session* session = create({proto::node("Throw", {"x"}, {"y"}, "tests", "thrower")}, {"x"}, {"y"});
  hotset_tensor y;
  std::vector<float> x(100, 0.5f);
  CHECK(!run(session, x, &y));
  hotset_tensor_free(&y);
  const struct {
    float kind;
    hotset_status status;
    const char* text;
  } cases[] = {{1, HOTSET_ERROR_INTERNAL, "task 37 met a fault"},
               {2, HOTSET_ERROR_OUT_OF_MEMORY, "out of memory"},
               {3, HOTSET_ERROR_INTERNAL, "unknown exception"}};
  for (int round = 0; round < 20; ++round) {
    for (const auto& c : cases) {
      x[0] = c.kind;
      CHECK(run(session, x, &y) == c.status);
      CHECK(last_error_has(c.text) && last_error_has("thrower"));
      CHECK(!y.data && !y.owner);
      x[0] = 0.25f;
      CHECK(!run(session, x, &y));
      CHECK(y.bytes == 400 && std::memcmp(y.data, x.data(), 400) == 0);
      hotset_tensor_free(&y);
    }
  }
  char* stats = nullptr;
  CHECK(!hotset_session_stats(session, &stats));
  CHECK(std::strstr(stats, "\"failed_runs\":60") || std::strstr(stats, "\"failed_runs\": 60"));
  hotset_text_free(stats);
  hotset_session_free(session);
}

// A chain that takes 2 s is cancelled from another thread and ends at once.
void cancel_in_the_middle() {
  std::vector<Message> nodes;
  constexpr int kNodes = 2000;
  for (int i = 0; i < kNodes; ++i)
    nodes.push_back(
        proto::node("Slow", {i ? "v" + std::to_string(i) : "x"}, {i + 1 < kNodes ? "v" + std::to_string(i + 1) : "y"}, "tests"));
  hotset_session* session = create(nodes, {"x"}, {"y"});
  hotset_run_options* run_options = nullptr;
  CHECK(!hotset_run_options_create(&run_options));
  CHECK(!hotset_run_options_set_tag(run_options, "long one"));
  std::vector<float> x(10, 1);
  hotset_tensor y;
  for (int round = 0; round < 3; ++round) {
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      CHECK(!hotset_cancel(run_options));
    });
    const auto begin = std::chrono::steady_clock::now();
    CHECK(run(session, x, &y, run_options) == HOTSET_ERROR_CANCELLED);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    other.join();
    CHECK(last_error_has("long one") && !y.data);
    CHECK(took.count() < 1.5);
    CHECK(run(session, x, &y, run_options) == HOTSET_ERROR_CANCELLED);  // stays set until reset
    CHECK(!hotset_run_options_reset(run_options));
  }
  hotset_run_options_free(run_options);
  hotset_session_free(session);
}

// Two threads run one session; cancelling one run leaves the other alone.
void cancel_ends_its_own_run_only() {
  std::vector<Message> nodes;
  for (int i = 0; i < 100; ++i)
    nodes.push_back(proto::node("Slow", {i ? "v" + std::to_string(i) : "x"}, {i < 99 ? "v" + std::to_string(i + 1) : "y"}, "tests"));
  hotset_session* session = create(nodes, {"x"}, {"y"});
  hotset_run_options* run_options = nullptr;
  CHECK(!hotset_run_options_create(&run_options));
  std::thread other([&] {
    std::vector<float> x(7, 2);
    hotset_tensor y;
    CHECK(!run(session, x, &y));
    hotset_tensor_free(&y);
  });
  std::thread canceller([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK(!hotset_cancel(run_options));
  });
  std::vector<float> x(9, 1);
  hotset_tensor y;
  CHECK(run(session, x, &y, run_options) == HOTSET_ERROR_CANCELLED);
  other.join();
  canceller.join();
  hotset_run_options_free(run_options);
  hotset_session_free(session);
}

hotset_status bound_run(hotset_binding* binding, std::vector<float>& x, float number) {
  std::vector<float> k(1, number);
  const hotset_tensor xt = view(x), kt = view(k);
  CHECK(!hotset_binding_set_input(binding, "x", &xt) && !hotset_binding_set_input(binding, "k", &kt));
  CHECK(!hotset_binding_set_output(binding, "y", nullptr));
  const hotset_status status = hotset_binding_run(binding, nullptr);
  if (status) return status;
  hotset_tensor y = {};
  y.struct_size = sizeof y;
  CHECK(!hotset_binding_output(binding, "y", &y));
  CHECK(y.bytes && y.bytes <= x.size() * sizeof(float) && std::memcmp(y.data, x.data(), y.bytes) == 0);
  return status;
}

// The shape of a failed inference must not pass for one that memory was laid out for.
void a_refused_shape_is_laid_out_when_it_is_accepted() {
  hotset_session* session =
      create({proto::node("Late", {"x", "k"}, {"v"}, "tests"), proto::node("First", {"v"}, {"y"}, "tests")}, {"x", "k"}, {"y"});
  hotset_binding* binding = nullptr;
  CHECK(!hotset_binding_create(&binding, session));
  std::vector<float> small(4, 1), large(1 << 20, 2);
  CHECK(!bound_run(binding, small, 1));
  CHECK(bound_run(binding, large, 13) == HOTSET_ERROR_INVALID_ARGUMENT && last_error_has("13 is refused"));
  CHECK(!bound_run(binding, large, 1));
  CHECK(bound_run(binding, small, 13) == HOTSET_ERROR_INVALID_ARGUMENT);
  CHECK(!bound_run(binding, small, 1));
  hotset_binding_free(binding);
  hotset_session_free(session);
}

// A binding whose memory was refused works once there is memory again.
void refused_memory_is_asked_for_again() {
  hotset_session* session =
      create({proto::node("Slow", {"x"}, {"v"}, "tests"), proto::node("Late", {"v", "k"}, {"y"}, "tests")}, {"x", "k"}, {"y"});
  hotset_binding* binding = nullptr;
  CHECK(!hotset_binding_create(&binding, session));
  std::vector<float> small(4, 1), large(1 << 20, 2);
  CHECK(!bound_run(binding, small, 1));
  for (int round = 0; round < 2; ++round) {
    refused_bytes = 1 << 20;
    CHECK(bound_run(binding, large, 1) == HOTSET_ERROR_OUT_OF_MEMORY);
    refused_bytes = SIZE_MAX;
    CHECK(!bound_run(binding, round ? large : small, 1));
  }
  CHECK(!bound_run(binding, large, 1));
  hotset_binding_free(binding);
  hotset_session_free(session);
}

}  // namespace

int main() {
  exceptions_of_tasks_become_statuses();
  cancel_in_the_middle();
  cancel_ends_its_own_run_only();
  a_refused_shape_is_laid_out_when_it_is_accepted();
  refused_memory_is_asked_for_again();
  std::printf("ok\n");
}

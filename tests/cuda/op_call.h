// SPDX-License-Identifier: Apache-2.0
// One node with inputs in host memory, run by its CPU kernel and by its device kernel.
#pragma once
#include <map>

#include "base/thread_pool.h"
#include "device_arrays.h"
#include "ops/device_kernel.h"

namespace device_check {

using namespace hotset::ops;

// Shapes for Kernel::infer and DeviceKernel::plan.
class CallContext final : public InferContext {
 public:
  std::vector<Tensor> inputs, outputs;  // undefined dtype: absent
  std::vector<bool> wanted;
  size_t workspace = 0;

  bool has_input(int i) const override { return static_cast<size_t>(i) < inputs.size() && at(i).dtype != DType::undefined; }
  bool has_output(int i) const override { return static_cast<size_t>(i) < wanted.size() && wanted[static_cast<size_t>(i)]; }
  DType dtype(int i) const override { return at(i).dtype; }
  const Shape& shape(int i) const override { return at(i).shape; }
  const Tensor* known(int i) const override { return &at(i); }
  Status defer(int) override { return fail(Code::internal, "deferred"); }
  void set_output(int i, DType dtype, const Shape& shape) override { outputs[static_cast<size_t>(i)] = {nullptr, dtype, shape}; }
  void alias(int, int, size_t) override {}
  void may_overwrite(int, int) override {}
  void* provide(int) override { return nullptr; }
  void set_workspace(size_t bytes, size_t) override { workspace = bytes; }
  int n_threads() const override { return 1; }

 private:
  const Tensor& at(int i) const { return inputs[static_cast<size_t>(i)]; }
};

// The node: set attributes and inputs, call make(), run.
class OpCall {
 public:
  OpCall(const char* op_type, size_t n_inputs, std::vector<bool> outputs) {
    node.op_type = op_type;
    node.domain = "com.microsoft";
    shapes.inputs.resize(n_inputs);
    data.resize(n_inputs);
    shapes.wanted = std::move(outputs);
    shapes.outputs.resize(shapes.wanted.size());
    in_place.assign(shapes.wanted.size(), -1);
  }

  model::Node node;
  CallContext shapes;
  std::vector<std::vector<uint8_t>> data;  // of each input
  std::vector<int> in_place;               // input whose buffer is the output's too, or -1

  void set(const char* attribute, int64_t x) { node.attributes[attribute].value = x; }
  void set(const char* attribute, float x) { node.attributes[attribute].value = x; }
  void set(const char* attribute, const char* x) { node.attributes[attribute].value = std::string(x); }
  void put(int i, DType type, const Shape& shape, std::vector<uint8_t> bytes) {
    const size_t at = static_cast<size_t>(i);
    data[at] = std::move(bytes);
    shapes.inputs[at] = {data[at].data(), type, shape};
  }
  template <class T>
  void put_list(int i, DType type, const Shape& shape, const std::vector<T>& list) {
    const uint8_t* const from = reinterpret_cast<const uint8_t*>(list.data());
    put(i, type, shape, {from, from + list.size() * sizeof(T)});
  }

  void make() {
    const auto value = [&](DType type) {
      graph_.values.push_back({});
      graph_.values.back().dtype = type;
      return static_cast<model::ValueId>(graph_.values.size() - 1);
    };
    node.name = "call";
    for (const Tensor& t : shapes.inputs) node.inputs.push_back(t.dtype == DType::undefined ? model::kNone : value(t.dtype));
    for (const bool wanted : shapes.wanted) node.outputs.push_back(wanted ? value(shapes.inputs[0].dtype) : model::kNone);
    graph_.nodes.push_back(node);
    kernel_ =
        must(find_op(node.domain, node.op_type, 1, nullptr)->create(OpContext(graph_, graph_.nodes[0], OpConfig(), OpContext::Warn())));
  }

  // The CPU kernel's outputs, over bytes 0xff.
  std::vector<std::vector<uint8_t>> run_on_cpu() {
    ThreadPool pool(1);
    must(kernel_->infer(shapes));
    std::vector<std::vector<uint8_t>> in = data, out(shapes.wanted.size());
    std::vector<uint8_t> workspace(shapes.workspace + 64);
    std::vector<Tensor> inputs = shapes.inputs, outputs = shapes.outputs;
    std::vector<Tensor*> in_list, out_list;
    for (size_t i = 0; i < inputs.size(); ++i) {
      inputs[i].data = in[i].data();
      in_list.push_back(inputs[i].dtype == DType::undefined ? nullptr : &inputs[i]);
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      const bool wanted = shapes.wanted[i];
      if (wanted) out[i].assign(outputs[i].bytes(), 0xff);
      outputs[i].data = in_place[i] >= 0 ? inputs[static_cast<size_t>(in_place[i])].data : out[i].data();
      out_list.push_back(wanted ? &outputs[i] : nullptr);
    }
    uint8_t* const work = workspace.data() + (64 - reinterpret_cast<uintptr_t>(workspace.data()) % 64) % 64;
    must(kernel_->run({in_list, out_list, work, &pool}));
    for (size_t i = 0; i < outputs.size(); ++i)
      if (in_place[i] >= 0) out[i] = in[static_cast<size_t>(in_place[i])];
    return out;
  }

 private:
  friend class OpOnDevice;
  model::Graph graph_;
  std::unique_ptr<Kernel> kernel_;
};

// The node's arrays on the device, `copies` times, for launches and times of launches.
class OpOnDevice {
 public:
  OpOnDevice(OpCall& call, const Device& device, int copies = 1) : call_(call), device_(device) {
    std::string reason;
    must(call.kernel_->infer(call.shapes));
    kernel_ = must(make_device_kernel(OpContext(call.graph_, call.graph_.nodes[0], OpConfig(), OpContext::Warn()), *call.kernel_,
                                      *device.gpu, &reason));
    if (!kernel_) must(fail(Code::unsupported, "%s", reason.c_str()));
    size_t bytes = 0;
    must(kernel_->plan(call.shapes, &bytes));
    workspace_ = std::make_unique<Array>(device, bytes);
    copies_.resize(static_cast<size_t>(copies));
    for (Copy& copy : copies_) {
      copy.inputs = call.shapes.inputs;
      copy.outputs = call.shapes.outputs;
      for (size_t i = 0; i < call.data.size(); ++i) {
        copy.arrays.push_back(call.data[i].empty() ? nullptr : std::make_unique<Array>(device, call.data[i]));
        copy.inputs[i].data = copy.arrays[i] ? copy.arrays[i]->data() : nullptr;
        copy.in_list.push_back(copy.inputs[i].dtype == DType::undefined ? nullptr : &copy.inputs[i]);
      }
      for (size_t i = 0; i < copy.outputs.size(); ++i) {
        const bool wanted = call.shapes.wanted[i], own = wanted && call.in_place[i] < 0;
        copy.out_arrays.push_back(own ? std::make_unique<Array>(device, copy.outputs[i].bytes()) : nullptr);
        copy.outputs[i].data = own      ? copy.out_arrays[i]->data()
                               : wanted ? copy.inputs[static_cast<size_t>(call.in_place[i])].data
                                        : nullptr;
        copy.out_list.push_back(wanted ? &copy.outputs[i] : nullptr);
      }
    }
  }
  void launch(int i) {
    Copy& copy = copies_[static_cast<size_t>(i) % copies_.size()];
    must(kernel_->launch({*device_.gpu, device_.stream.get(), copy.in_list, copy.out_list, workspace_->data(), nullptr}));
  }
  std::vector<std::vector<uint8_t>> outputs() const {
    std::vector<std::vector<uint8_t>> all(call_.shapes.wanted.size());
    const Copy& copy = copies_[0];
    workspace_->bytes();  // its guards too
    for (size_t i = 0; i < all.size(); ++i)
      if (call_.shapes.wanted[i])
        all[i] = (copy.out_arrays[i] ? copy.out_arrays[i] : copy.arrays[static_cast<size_t>(call_.in_place[i])])->bytes();
    return all;
  }

 private:
  struct Copy {
    std::vector<Tensor> inputs, outputs;
    std::vector<std::unique_ptr<Array>> arrays, out_arrays;
    std::vector<Tensor*> in_list, out_list;
  };
  OpCall& call_;
  const Device& device_;
  std::unique_ptr<DeviceKernel> kernel_;
  std::unique_ptr<Array> workspace_;
  std::vector<Copy> copies_;
};

inline int64_t pick(std::mt19937& rng, std::initializer_list<int64_t> from) { return from.begin()[rng() % from.size()]; }
inline bool chance(std::mt19937& rng, unsigned percent) { return rng() % 100 < percent; }

inline double tolerance(DType type) { return type == DType::f32 ? 1e-4 : type == DType::f16 ? 2e-3 : 1.6e-2; }

// Largest error in units of the tolerance; NaN must meet NaN.
inline double compare(DType type, const std::vector<uint8_t>& ours, const std::vector<uint8_t>& theirs, double scale = 1) {
  double worst = 0;
  for (size_t i = 0; i < theirs.size() / element_bytes(type); ++i) {
    const double x = value_at(type, ours.data(), i), y = value_at(type, theirs.data(), i);
    if (std::isnan(x) && std::isnan(y)) continue;
    const double error = x == y ? 0 : std::abs(x - y) / (tolerance(type) * scale * (1 + std::abs(y)));
    worst = std::isnan(error) ? 1e30 : std::max(worst, error);
  }
  return worst;
}

}  // namespace device_check

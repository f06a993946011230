// SPDX-License-Identifier: Apache-2.0
// LayerNormalization, RMSNormalization, SimplifiedLayerNormalization and their forms with a residual sum.
#include "cpu_avx/norm.h"
#include "ops/elements.h"

namespace hotset::ops {
namespace {

// What one operator makes of its inputs and outputs; -1: it has no such thing.
struct Form {
  bool center;
  int skip, gamma, beta, bias;            // input positions; x is input 0
  int mean, inverse, sum;                 // output positions; y is output 0
  float epsilon;                          // default
};
constexpr Form kLayer = {true, -1, 1, 2, -1, 1, 2, -1, 1e-5f};
constexpr Form kRms = {false, -1, 1, -1, -1, -1, -1, -1, 1e-5f};
constexpr Form kSimplified = {false, -1, 1, -1, -1, -1, 1, -1, 1e-5f};
constexpr Form kSkipLayer = {true, 1, 2, 3, 4, 1, 2, 3, 1e-12f};
constexpr Form kSkipSimplified = {false, 1, 2, -1, 3, 1, 2, 3, 1e-12f};

constexpr int64_t kGrain = 1 << 15;  // elements a task has at least

class NormKernel final : public Kernel {
 public:
  NormKernel(const Form& form, const OpContext& c)
      : form_(form), epsilon_(c.node().get_float("epsilon", form.epsilon)), axis_(form.skip >= 0 ? -1 : c.node().get_int("axis", -1)) {}
  std::string_view implementation() const override { return cpu::norm_isa(); }

  Status infer(InferContext& c) const override {
    const Shape& x = c.shape(0);
    const DType type = c.dtype(0);
    HOTSET_FAIL_IF(type != DType::f32 && type != DType::f16 && type != DType::bf16, unsupported, "input of type %s, expected float, float16 or bfloat16",
                   dtype_name(type));
    int axis = 0;
    HOTSET_FAIL_IF(!normalize_axis(axis_, x.rank, &axis), invalid_argument, "axis %lld is out of range for shape %s", static_cast<long long>(axis_),
                   to_text(x).c_str());
    const int64_t width = x.product(axis, x.rank), rows = x.product(0, axis);
    bool mixed = false;
    for (const auto& [name, i] : {std::pair{"gamma", form_.gamma}, {"beta", form_.beta}, {"bias", form_.bias}}) {
      if (i < 0 || !c.has_input(i)) continue;
      const DType t = c.dtype(i);
      HOTSET_FAIL_IF(t != DType::f32 && t != DType::f16 && t != DType::bf16, unsupported, "%s of type %s", name, dtype_name(t));
      HOTSET_FAIL_IF(c.shape(i).size() != width, invalid_argument, "%s of shape %s, expected %lld elements as the input of shape %s has from axis %d on", name,
                     to_text(c.shape(i)).c_str(), static_cast<long long>(width), to_text(x).c_str(), axis);
      mixed |= t != type;
    }
    HOTSET_FAIL_IF(!c.has_input(form_.gamma), invalid_model, "no gamma at input %d", form_.gamma);
    if (form_.skip >= 0) {
      const Shape& skip = c.shape(form_.skip);
      const DType t = c.dtype(form_.skip);
      HOTSET_FAIL_IF(t != DType::f32 && t != DType::f16 && t != DType::bf16, unsupported, "skip of type %s", dtype_name(t));
      HOTSET_FAIL_IF(skip.rank == 0 || skip[-1] != width || skip.size() == 0 ? rows != 0 : rows % (skip.size() / width) != 0, invalid_argument,
                     "skip of shape %s does not fit the input of shape %s", to_text(skip).c_str(), to_text(x).c_str());
      mixed |= t != type;
    }
    c.set_output(0, type, x);
    Shape statistics = x;
    for (int i = axis; i < x.rank; ++i) statistics[i] = 1;
    if (form_.mean >= 0 && c.has_output(form_.mean)) c.set_output(form_.mean, DType::f32, statistics);
    if (form_.inverse >= 0 && c.has_output(form_.inverse)) c.set_output(form_.inverse, DType::f32, statistics);
    if (form_.sum >= 0 && c.has_output(form_.sum)) c.set_output(form_.sum, type, x);
    c.set_workspace(workspace_floats(width, mixed, c.n_threads()) * sizeof(float));
    return {};
  }

  Status run(const RunContext& c) const override {
    const Tensor& x = *c.inputs[0];
    Tensor& y = *c.outputs[0];
    const int axis = static_cast<int>(axis_ < 0 ? axis_ + x.shape.rank : axis_);
    cpu::NormRows a;
    a.dtype = static_cast<int>(x.dtype);
    a.width = x.shape.product(axis, x.shape.rank);
    if (x.size() == 0) return {};
    const int64_t rows = x.shape.product(0, axis);
    a.epsilon = epsilon_;
    a.center = form_.center;
    const Tensor* inputs[4] = {input(c, form_.skip), input(c, form_.gamma), input(c, form_.beta), input(c, form_.bias)};
    a.x = x.data;
    a.y = y.data;
    if (inputs[0]) {
      a.skip = inputs[0]->data;
      a.skip_rows = inputs[0]->size() / a.width;
    }
    a.gamma = inputs[1]->data;
    if (inputs[2]) a.beta = inputs[2]->data;
    if (inputs[3]) a.bias = inputs[3]->data;
    if (const Tensor* t = output(c, form_.sum)) a.sum = t->data;
    if (const Tensor* t = output(c, form_.mean)) a.mean = t->as<float>();
    if (const Tensor* t = output(c, form_.inverse)) a.inverse = t->as<float>();
    bool mixed = false;
    for (const Tensor* t : inputs) mixed |= t && t->dtype != x.dtype;
    float* const workspace = static_cast<float*>(c.workspace);
    if (!mixed) {
      if (rows == 1 || rows * a.width < 2 * kGrain) {
        cpu::norm_rows(a, 0, rows, workspace);
        return {};
      }
      shared(c, rows, a.width, [&](int64_t r0, int64_t r1, int thread) { cpu::norm_rows(a, r0, r1, workspace + thread * padded(a.width)); });
      return {};
    }
    run_mixed(c, a, inputs, rows, workspace);
    return {};
  }

 private:
  static int64_t padded(int64_t width) { return (width + 15) / 16 * 16; }
  // A row of scratch a thread; with mixed types also x, skip, y and sum as float32 a thread, and gamma, beta, bias once.
  static size_t workspace_floats(int64_t width, bool mixed, int n_threads) {
    return static_cast<size_t>(padded(width)) * (mixed ? 5u * static_cast<size_t>(n_threads) + 3u : static_cast<size_t>(n_threads));
  }
  static const Tensor* input(const RunContext& c, int i) { return i < 0 ? nullptr : c.input(i); }
  static const Tensor* output(const RunContext& c, int i) { return i < 0 ? nullptr : c.output(i); }

  template <class F>
  static void shared(const RunContext& c, int64_t rows, int64_t width, F&& f) {
    const int64_t step = std::max<int64_t>(1, kGrain / width), tasks = (rows + step - 1) / step;
    c.pool->parallel_for(tasks, [&](int64_t task, int thread) { f(task * step, std::min(rows, (task + 1) * step), thread); });
  }

  // Everything as float32; the unrounded sum still goes into the norm.
  void run_mixed(const RunContext& c, cpu::NormRows a, const Tensor* const (&inputs)[4], int64_t rows, float* workspace) const {
    const int64_t width = a.width, row = padded(width);
    const DType type = static_cast<DType>(a.dtype);
    const void *x = a.x, *skip = a.skip;
    void *y = a.y, *sum = a.sum;
    const DType skip_type = inputs[0] ? inputs[0]->dtype : type;
    float* shared_rows = workspace;
    const auto widen_once = [&](const Tensor* t) -> const void* {
      if (!t) return nullptr;
      float* at = shared_rows;
      shared_rows += row;
      cpu::to_f32(t->dtype, t->data, at, width);
      return at;
    };
    a.gamma = widen_once(inputs[1]);
    a.beta = widen_once(inputs[2]);
    a.bias = widen_once(inputs[3]);
    a.dtype = 1;
    const int64_t bytes = element_bytes(type), skip_bytes = element_bytes(skip_type), skip_rows = a.skip_rows;
    shared(c, rows, width, [&](int64_t r0, int64_t r1, int thread) {
      float* own = workspace + row * 3 + row * 5 * thread;
      for (int64_t r = r0; r < r1; ++r) {
        cpu::NormRows one = a;
        one.x = own + row;
        one.y = own + 3 * row;
        one.sum = sum ? own + 4 * row : nullptr;
        one.skip_rows = 1;
        if (one.mean) one.mean += r;
        if (one.inverse) one.inverse += r;
        cpu::to_f32(type, static_cast<const char*>(x) + r * width * bytes, own + row, width);
        if (skip) {
          one.skip = own + 2 * row;
          cpu::to_f32(skip_type, static_cast<const char*>(skip) + r % skip_rows * width * skip_bytes, own + 2 * row, width);
        }
        cpu::norm_rows(one, 0, 1, own);
        cpu::from_f32(type, own + 3 * row, static_cast<char*>(y) + r * width * bytes, width);
        if (sum) cpu::from_f32(type, own + 4 * row, static_cast<char*>(sum) + r * width * bytes, width);
      }
    });
  }

  const Form& form_;
  const float epsilon_;
  const int64_t axis_;
};

template <const Form& form>
Result<std::unique_ptr<Kernel>> make_norm(const OpContext& c) {
  if (c.n_inputs() < (form.skip >= 0 ? 3 : 2)) return c.fail(Code::invalid_model, "%d inputs, expected at least %d", c.n_inputs(), form.skip >= 0 ? 3 : 2);
  return make_kernel<NormKernel>(form, c);
}

}  // namespace

HOTSET_OPS(layer_norm,
           {"", "LayerNormalization", 1, kLatest, make_norm<kLayer>, {2, 3, 3}},
           {"", "RMSNormalization", 23, kLatest, make_norm<kRms>, {2, 2}},
           {"", "SimplifiedLayerNormalization", 1, kLatest, make_norm<kSimplified>, {2, 2, 2}},
           {"com.microsoft", "SimplifiedLayerNormalization", 1, kLatest, make_norm<kSimplified>, {2, 2, 2}},
           {"com.microsoft", "SkipLayerNormalization", 1, kLatest, make_norm<kSkipLayer>, {3, 5, 4}},
           {"com.microsoft", "SkipSimplifiedLayerNormalization", 1, kLatest, make_norm<kSkipSimplified>, {3, 4, 4}});

}  // namespace hotset::ops

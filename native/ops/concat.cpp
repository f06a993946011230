// SPDX-License-Identifier: Apache-2.0
// Concat and Split along one axis.
#include "ops/axes.h"

namespace hotset::ops {
namespace {

class Concat final : public Kernel {
 public:
  explicit Concat(int64_t axis) : axis_(axis) {}
  Status infer(InferContext& c) const override {
    Shape out = c.shape(0);
    int axis = 0;
    HOTSET_FAIL_IF(!normalize_axis(axis_, out.rank, &axis), invalid_argument, "axis %lld is out of range for shape %s", static_cast<long long>(axis_),
                   to_text(out).c_str());
    HOTSET_FAIL_IF(element_bytes(c.dtype(0)) == 0, unsupported, "inputs of type %s", dtype_name(c.dtype(0)));
    int n = 1;
    for (; c.has_input(n); ++n) {
      const Shape& s = c.shape(n);
      HOTSET_FAIL_IF(c.dtype(n) != c.dtype(0), invalid_model, "input %d is %s, input 0 is %s", n, dtype_name(c.dtype(n)), dtype_name(c.dtype(0)));
      bool fits = s.rank == out.rank;
      for (int i = 0; fits && i < out.rank; ++i) fits = i == axis || s[i] == out[i];
      HOTSET_FAIL_IF(!fits, invalid_argument, "input %d of shape %s does not join %s along axis %d", n, to_text(s).c_str(), to_text(c.shape(0)).c_str(), axis);
      HOTSET_FAIL_IF(__builtin_add_overflow(out[axis], s[axis], &out[axis]), invalid_argument, "axis %d becomes too large", axis);
    }
    c.set_output(0, c.dtype(0), out);
    if (n == 1) c.alias(0, 0);
    return {};
  }

  Status run(const RunContext& c) const override {
    if (c.inputs.size() == 1) return {};
    const Tensor& out = *c.outputs[0];
    const int axis = static_cast<int>(axis_ < 0 ? axis_ + out.shape.rank : axis_);
    const int64_t outer = out.shape.product(0, axis), tail = out.shape.product(axis + 1, out.shape.rank) * element_bytes(out.dtype);
    const int64_t row = out.shape[axis] * tail;
    if (row == 0) return {};
    over_range(c.pool, outer, std::max<int64_t>(1, (1 << 18) / row), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        char* to = out.as<char>() + r * row;
        for (const Tensor* t : c.inputs) {
          const size_t bytes = static_cast<size_t>(t->shape[axis] * tail);
          if (bytes) std::memcpy(to, t->as<char>() + r * static_cast<int64_t>(bytes), bytes);
          to += bytes;
        }
      }
    });
    return {};
  }

 private:
  const int64_t axis_;
};

class Split final : public Kernel {
 public:
  explicit Split(const OpContext& c)
      : axis_(c.node().get_int("axis", 0)), n_parts_(c.node().get_int("num_outputs", 0)), n_outputs_(c.n_outputs()), sizes_(c.node().get_ints("split")) {}
  uint32_t shape_inputs() const override { return 2; }

  Status infer(InferContext& c) const override {
    const Shape& in = c.shape(0);
    int axis = 0;
    HOTSET_FAIL_IF(!normalize_axis(axis_, in.rank, &axis), invalid_argument, "axis %lld is out of range for shape %s", static_cast<long long>(axis_),
                   to_text(in).c_str());
    const int64_t bytes = element_bytes(c.dtype(0)), size = in[axis];
    HOTSET_FAIL_IF(bytes == 0, unsupported, "input of type %s", dtype_name(c.dtype(0)));
    const Tensor* sizes = nullptr;
    if (c.has_input(1)) {
      sizes = c.known(1);
      if (!sizes) return c.defer(1);
      HOTSET_FAIL_IF(sizes->dtype != DType::i64, invalid_model, "split of type %s, expected int64", dtype_name(sizes->dtype));
    }
    const int64_t n_sizes = sizes ? sizes->size() : sizes_ ? static_cast<int64_t>(sizes_->size()) : n_outputs_;
    HOTSET_FAIL_IF(n_sizes != n_outputs_, invalid_argument, "%lld sizes for %d outputs", static_cast<long long>(n_sizes), n_outputs_);
    HOTSET_FAIL_IF(n_parts_ && n_parts_ != n_outputs_, invalid_argument, "num_outputs is %lld for %d outputs", static_cast<long long>(n_parts_), n_outputs_);
    const bool even = !sizes && !sizes_;
    const int64_t each = (size + n_outputs_ - 1) / n_outputs_;  // the last one may be shorter
    HOTSET_FAIL_IF(even && !n_parts_ && size % n_outputs_, invalid_argument, "axis %d of size %lld does not split into %d equal parts", axis,
                   static_cast<long long>(size), n_outputs_);
    const bool view = in.product(0, axis) == 1;
    const int64_t tail = in.product(axis + 1, in.rank) * bytes;
    int64_t at = 0;
    for (int i = 0; i < n_outputs_; ++i) {
      const int64_t part = even ? std::clamp<int64_t>(size - at, 0, each) : sizes ? int_at(*sizes, i) : (*sizes_)[static_cast<size_t>(i)];
      HOTSET_FAIL_IF(part < 0 || part > size - at, invalid_argument, "sizes up to output %d exceed axis %d of size %lld", i, axis, static_cast<long long>(size));
      Shape out = in;
      out[axis] = part;
      if (c.has_output(i)) {
        c.set_output(i, c.dtype(0), out);
        if (view) c.alias(i, 0, static_cast<size_t>(at * tail));
      }
      at += part;
    }
    HOTSET_FAIL_IF(at != size, invalid_argument, "sizes sum to %lld, axis %d has %lld", static_cast<long long>(at), axis, static_cast<long long>(size));
    return {};
  }

  Status run(const RunContext& c) const override {
    const Tensor& in = *c.inputs[0];
    const int axis = static_cast<int>(axis_ < 0 ? axis_ + in.shape.rank : axis_);
    const int64_t outer = in.shape.product(0, axis), tail = in.shape.product(axis + 1, in.shape.rank) * element_bytes(in.dtype);
    const int64_t row = in.shape[axis] * tail;
    if (outer == 1 || row == 0) return {};  // views, or nothing
    // Outputs that nobody reads have no tensor: their width follows from the sizes alone.
    const int64_t each = (in.shape[axis] + n_outputs_ - 1) / n_outputs_;
    over_range(c.pool, outer, std::max<int64_t>(1, (1 << 18) / row), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const char* from = in.as<char>() + r * row;
        int64_t left = in.shape[axis];
        for (int i = 0; i < n_outputs_; ++i) {
          const Tensor* out = c.output(i);
          const int64_t part = out                 ? out->shape[axis]
                               : c.input(1)        ? int_at(*c.input(1), i)
                               : sizes_            ? (*sizes_)[static_cast<size_t>(i)]
                                                   : std::clamp<int64_t>(left, 0, each);
          const size_t bytes = static_cast<size_t>(part * tail);
          if (out && bytes) std::memcpy(out->as<char>() + r * static_cast<int64_t>(bytes), from, bytes);
          from += bytes;
          left -= part;
        }
      }
    });
    return {};
  }

 private:
  const int64_t axis_, n_parts_;
  const int n_outputs_;
  const std::vector<int64_t>* sizes_;  // attribute, before opset 13
};

}  // namespace

HOTSET_OPS(concat,
           {"", "Concat", 4, kLatest, [](const OpContext& c) { return make_kernel<Concat>(c.node().get_int("axis", 0)); }, {1, kAny}},
           {"", "Split", 2, kLatest, [](const OpContext& c) { return make_kernel<Split>(c); }, {1, 2, kAny, false}});

}  // namespace hotset::ops

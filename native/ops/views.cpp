// SPDX-License-Identifier: Apache-2.0
// Operators that only rename dimensions: Reshape, Flatten, Squeeze, Unsqueeze, Identity. Their outputs are views.
#include "ops/axes.h"

namespace hotset::ops {
namespace {

// run() of all of them: the planner made the output a view of the input.
class View : public Kernel {
 public:
  Status run(const RunContext&) const override { return {}; }
  std::string_view implementation() const override { return "view"; }

 protected:
  static void set(InferContext& c, const Shape& shape) {
    c.set_output(0, c.dtype(0), shape);
    c.alias(0, 0);
  }
};

class Identity final : public View {
 public:
  Status infer(InferContext& c) const override {
    set(c, c.shape(0));
    return {};
  }
};

class Reshape final : public View {
 public:
  explicit Reshape(bool allow_zero) : allow_zero_(allow_zero) {}
  uint32_t shape_inputs() const override { return 2; }
  Status infer(InferContext& c) const override {
    const Tensor* target = c.known(1);
    if (!target) return c.defer(1);
    const Shape& in = c.shape(0);
    HOTSET_FAIL_IF(target->dtype != DType::i64 || target->shape.rank != 1, invalid_model, "shape input of type %s and shape %s, expected a list of int64",
                   dtype_name(target->dtype), to_text(target->shape).c_str());
    HOTSET_FAIL_IF(target->size() > kMaxRank, unsupported, "target of rank %lld, at most %d", static_cast<long long>(target->size()), kMaxRank);
    Shape out;
    out.rank = static_cast<int>(target->size());
    int wildcard = -1;
    int64_t rest = 1;
    bool zero = false;
    for (int i = 0; i < out.rank; ++i) {
      int64_t d = int_at(*target, i);
      HOTSET_FAIL_IF(d < -1, invalid_argument, "target dimension %d is %lld", i, static_cast<long long>(d));
      if (d == -1) {
        HOTSET_FAIL_IF(wildcard >= 0, invalid_argument, "two target dimensions are -1");
        wildcard = i;
        continue;
      }
      if (d == 0 && !allow_zero_) {
        HOTSET_FAIL_IF(i >= in.rank, invalid_argument, "target dimension %d copies a dimension that the input of shape %s does not have", i, to_text(in).c_str());
        d = in[i];
      }
      zero |= d == 0;
      out[i] = d;
      HOTSET_FAIL_IF(__builtin_mul_overflow(rest, d, &rest), invalid_argument, "target is too large");
    }
    const int64_t n = in.size();
    if (wildcard >= 0) {
      HOTSET_FAIL_IF(zero && allow_zero_, invalid_argument, "target holds both 0 and -1");
      HOTSET_FAIL_IF(rest == 0 ? n != 0 : n % rest != 0, invalid_argument, "%lld elements of shape %s do not divide into %lld", static_cast<long long>(n),
                     to_text(in).c_str(), static_cast<long long>(rest));
      out[wildcard] = rest == 0 ? 0 : n / rest;
    }
    HOTSET_FAIL_IF(out.size() != n, invalid_argument, "shape %s does not reshape to %s", to_text(in).c_str(), to_text(out).c_str());
    set(c, out);
    return {};
  }

 private:
  const bool allow_zero_;
};

class Flatten final : public View {
 public:
  explicit Flatten(int64_t axis) : axis_(axis) {}
  Status infer(InferContext& c) const override {
    const Shape& in = c.shape(0);
    const int64_t axis = axis_ < 0 ? axis_ + in.rank : axis_;
    HOTSET_FAIL_IF(axis < 0 || axis > in.rank, invalid_argument, "axis %lld is out of range for rank %d", static_cast<long long>(axis_), in.rank);
    set(c, {in.product(0, static_cast<int>(axis)), in.product(static_cast<int>(axis), in.rank)});
    return {};
  }

 private:
  const int64_t axis_;
};

class Squeeze final : public View {
 public:
  explicit Squeeze(const OpContext& c) : axes_(c, 1) {}
  uint32_t shape_inputs() const override { return axes_.shape_inputs(); }
  Status infer(InferContext& c) const override {
    IntList list;
    bool deferred;
    HOTSET_TRY(axes_.read(c, &list, &deferred));
    if (deferred) return {};
    const Shape& in = c.shape(0);
    uint32_t axes = 0;
    HOTSET_TRY(axis_set(list, in.rank, &axes));
    Shape out;
    for (int i = 0; i < in.rank; ++i) {
      const bool drop = list.n ? axes >> i & 1 : in[i] == 1;  // an empty list is none, as in onnxruntime
      HOTSET_FAIL_IF(drop && in[i] != 1, invalid_argument, "dimension %d of shape %s is not 1", i, to_text(in).c_str());
      if (!drop) out.dim[out.rank++] = in[i];
    }
    set(c, out);
    return {};
  }

 private:
  const AxesArgument axes_;
};

class Unsqueeze final : public View {
 public:
  explicit Unsqueeze(const OpContext& c) : axes_(c, 1) {}
  uint32_t shape_inputs() const override { return axes_.shape_inputs(); }
  Status infer(InferContext& c) const override {
    IntList list;
    bool deferred;
    HOTSET_TRY(axes_.read(c, &list, &deferred));
    if (deferred) return {};
    const Shape& in = c.shape(0);
    const int rank = in.rank + list.n;
    HOTSET_FAIL_IF(rank > kMaxRank, unsupported, "result of rank %d, at most %d", rank, kMaxRank);
    uint32_t axes = 0;
    HOTSET_TRY(axis_set(list, rank, &axes));
    Shape out;
    out.rank = rank;
    for (int i = 0, from = 0; i < rank; ++i) out[i] = axes >> i & 1 ? 1 : in[from++];
    set(c, out);
    return {};
  }

 private:
  const AxesArgument axes_;
};

Result<std::unique_ptr<Kernel>> make_unsqueeze(const OpContext& c) {
  if (!c.node().get_ints("axes") && !c.has_input(1)) return c.fail(Code::invalid_model, "input 1 (axes) is missing");
  return make_kernel<Unsqueeze>(c);
}

}  // namespace

HOTSET_OPS(views,
           {"", "Identity", 1, kLatest, [](const OpContext&) { return make_kernel<Identity>(); }, {1, 1}},
           {"", "Reshape", 5, kLatest, [](const OpContext& c) { return make_kernel<Reshape>(c.node().get_int("allowzero", 0) != 0); }, {2, 2}},
           {"", "Flatten", 1, kLatest, [](const OpContext& c) { return make_kernel<Flatten>(c.node().get_int("axis", 1)); }, {1, 1}},
           {"", "Squeeze", 1, kLatest, [](const OpContext& c) { return make_kernel<Squeeze>(c); }, {1, 2}},
           {"", "Unsqueeze", 1, kLatest, make_unsqueeze, {1, 2}});

}  // namespace hotset::ops

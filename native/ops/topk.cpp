// SPDX-License-Identifier: Apache-2.0
// TopK along one axis; of equal values the lower index comes first. NaN counts as the largest value.
#include "ops/elements.h"

namespace hotset::ops {
namespace {

constexpr int64_t kInsert = 16;  // up to this k the best are kept by insertion, without a workspace row

template <class T>
bool above(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) return a > b || (a != a && b == b);
  else return a > b;
}

// One row of n values `stride` elements apart; the k results are `stride` apart as well.
template <class T>
void select(const char* values, int64_t n, int64_t k, int64_t stride, bool largest, char* out, int64_t* out_index, int64_t* order) {
  using W = Wide<T>;
  const auto value = [&](int64_t i) -> W { return load_at<T>(values, i * stride); };
  const auto before = [&](int64_t i, int64_t j) {
    const W a = value(i), b = value(j);
    if (largest ? above(a, b) : above(b, a)) return true;
    if (largest ? above(b, a) : above(a, b)) return false;
    return i < j;
  };
  int64_t best[kInsert];
  if (k <= kInsert) {
    W worst{};
    int64_t have = 0;
    for (int64_t i = 0; i < n; ++i) {
      const W v = value(i);
      if (have == k && !(largest ? above(v, worst) : above(worst, v))) continue;
      int64_t at = have < k ? have++ : k - 1;
      for (; at > 0 && before(i, best[at - 1]); --at) best[at] = best[at - 1];
      best[at] = i;
      worst = value(best[have - 1]);
    }
    order = best;
  } else {
    for (int64_t i = 0; i < n; ++i) order[i] = i;
    std::partial_sort(order, order + k, order + n, before);
  }
  for (int64_t i = 0; i < k; ++i) {
    if (out) store_at<T>(out, i * stride, load_at<T>(values, order[i] * stride));
    if (out_index) out_index[i * stride] = order[i];
  }
}

class TopK final : public Kernel {
 public:
  explicit TopK(const OpContext& c)
      : axis_(c.node().get_int("axis", -1)), k_(c.node().get_int("k", -1)), largest_(c.node().get_int("largest", 1) != 0) {}
  uint32_t shape_inputs() const override { return k_ >= 0 ? 0 : 2; }

  Status infer(InferContext& c) const override {
    const Shape& in = c.shape(0);
    int axis = 0;
    HOTSET_FAIL_IF(!normalize_axis(axis_, in.rank, &axis), invalid_argument, "axis %lld is out of range for shape %s", static_cast<long long>(axis_),
                   to_text(in).c_str());
    HOTSET_FAIL_IF(!visit_number(c.dtype(0), [](auto) {}), unsupported, "not defined for type %s", dtype_name(c.dtype(0)));
    int64_t k = k_;
    if (k < 0) {
      const Tensor* t = c.known(1);
      if (!t) return c.defer(1);
      HOTSET_FAIL_IF(t->dtype != DType::i64 || t->size() != 1, invalid_model, "k of %s and shape %s, expected one int64", dtype_name(t->dtype),
                     to_text(t->shape).c_str());
      k = int_at(*t, 0);
    }
    HOTSET_FAIL_IF(k < 0 || k > in[axis], invalid_argument, "k is %lld for axis %d of size %lld", static_cast<long long>(k), axis, static_cast<long long>(in[axis]));
    Shape out = in;
    out[axis] = k;
    if (c.has_output(0)) c.set_output(0, c.dtype(0), out);
    if (c.has_output(1)) c.set_output(1, DType::i64, out);
    if (k > kInsert) c.set_workspace(static_cast<size_t>(in[axis]) * sizeof(int64_t) * static_cast<size_t>(c.n_threads()));
    return {};
  }

  Status run(const RunContext& c) const override {
    const Tensor& in = *c.inputs[0];
    const Tensor *values = c.output(0), *indices = c.output(1);
    if (!values && !indices) return {};
    const int axis = static_cast<int>(axis_ < 0 ? axis_ + in.shape.rank : axis_);
    const int64_t n = in.shape[axis], k = (values ? values : indices)->shape[axis];
    const int64_t inner = in.shape.product(axis + 1, in.shape.rank), rows = in.shape.product(0, axis) * inner, bytes = element_bytes(in.dtype);
    if (k == 0 || rows == 0) return {};
    const auto row = [&](int64_t r, int thread) {
      const int64_t outer = r / inner, at = r % inner;
      visit_number(in.dtype, [&](auto tag) {
        select<decltype(tag)>(in.as<char>() + (outer * n * inner + at) * bytes, n, k, inner, largest_,
                              values ? values->as<char>() + (outer * k * inner + at) * bytes : nullptr,
                              indices ? indices->as<int64_t>() + outer * k * inner + at : nullptr, static_cast<int64_t*>(c.workspace) + n * thread);
      });
    };
    if (rows * n < (1 << 14)) {
      for (int64_t r = 0; r < rows; ++r) row(r, 0);
      return {};
    }
    const int64_t step = std::max<int64_t>(1, (1 << 13) / n);
    c.pool->parallel_for((rows + step - 1) / step, [&](int64_t task, int thread) {
      for (int64_t r = task * step, end = std::min(rows, r + step); r < end; ++r) row(r, thread);
    });
    return {};
  }

 private:
  const int64_t axis_, k_;  // k_: attribute, before opset 10
  const bool largest_;
};

Result<std::unique_ptr<Kernel>> make_topk(const OpContext& c) {
  if (c.node().get_int("k", -1) < 0 && !c.has_input(1)) return c.fail(Code::invalid_model, "input 1 (k) is missing");
  return make_kernel<TopK>(c);
}

}  // namespace

HOTSET_OPS(topk, {"", "TopK", 1, kLatest, make_topk, {1, 2, 2, false}});

}  // namespace hotset::ops

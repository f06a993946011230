// SPDX-License-Identifier: Apache-2.0
// ScatterElements and ScatterND, with reductions.
#include "ops/elements.h"

namespace hotset::ops {
namespace {

enum class Reduction { none, add, mul, max, min };

// to[0..n) = reduce(to, from)
using Join = void (*)(void* to, const void* from, int64_t n);

template <class T, Reduction reduction>
void join(void* to, const void* from, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const Wide<T> a = load_at<T>(to, i), b = load_at<T>(from, i);
    Wide<T> r;
    if constexpr (reduction == Reduction::max) r = a > b || a != a ? a : b;
    else if constexpr (reduction == Reduction::min) r = a < b || a != a ? a : b;
    else if constexpr (std::is_integral_v<T>) {
      const uint64_t x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
      r = static_cast<T>(reduction == Reduction::add ? x + y : x * y);
    } else {
      r = reduction == Reduction::add ? a + b : a * b;
    }
    store_at<T>(to, i, static_cast<T>(r));
  }
}

Join find_join(Reduction reduction, DType type) {
  Join found = nullptr;
  visit_number(type, [&](auto tag) {
    using T = decltype(tag);
    switch (reduction) {
      case Reduction::add: found = join<T, Reduction::add>; break;
      case Reduction::mul: found = join<T, Reduction::mul>; break;
      case Reduction::max: found = join<T, Reduction::max>; break;
      case Reduction::min: found = join<T, Reduction::min>; break;
      case Reduction::none: break;
    }
  });
  return found;
}

bool parse(const std::string& name, Reduction* out) {
  constexpr const char* kNames[] = {"none", "add", "mul", "max", "min"};
  for (int i = 0; i < 5; ++i) {
    if (name != kNames[i]) continue;
    *out = static_cast<Reduction>(i);
    return true;
  }
  return false;
}

// data -> output, then the updates.
class ScatterKernel : public Kernel {
 public:
  explicit ScatterKernel(Reduction reduction) : reduction_(reduction) {}

 protected:
  Status check(InferContext& c) const {
    HOTSET_FAIL_IF(c.dtype(1) != DType::i64 && c.dtype(1) != DType::i32, invalid_model, "indices of type %s, expected int64", dtype_name(c.dtype(1)));
    HOTSET_FAIL_IF(c.dtype(2) != c.dtype(0), invalid_model, "updates of type %s, data of type %s", dtype_name(c.dtype(2)), dtype_name(c.dtype(0)));
    HOTSET_FAIL_IF(element_bytes(c.dtype(0)) == 0 || (reduction_ != Reduction::none && !find_join(reduction_, c.dtype(0))), unsupported, "not defined for type %s",
                   dtype_name(c.dtype(0)));
    c.set_output(0, c.dtype(0), c.shape(0));
    c.may_overwrite(0, 0);
    return {};
  }
  static void copy_data(const RunContext& c) {
    const Tensor &in = *c.inputs[0], &out = *c.outputs[0];
    if (in.data != out.data && in.size() > 0) std::memcpy(out.data, in.data, in.bytes());
  }
  const Reduction reduction_;
};

class ScatterElements final : public ScatterKernel {
 public:
  ScatterElements(Reduction reduction, int64_t axis) : ScatterKernel(reduction), axis_(axis) {}
  Status infer(InferContext& c) const override {
    HOTSET_TRY(check(c));
    const Shape &data = c.shape(0), &indices = c.shape(1);
    int axis = 0;
    HOTSET_FAIL_IF(!normalize_axis(axis_, data.rank, &axis), invalid_argument, "axis %lld is out of range for data of shape %s", static_cast<long long>(axis_),
                   to_text(data).c_str());
    HOTSET_FAIL_IF(!(c.shape(2) == indices), invalid_argument, "updates of shape %s, indices of shape %s", to_text(c.shape(2)).c_str(), to_text(indices).c_str());
    bool fits = indices.rank == data.rank;
    for (int i = 0; fits && i < data.rank; ++i) fits = i == axis || indices[i] <= data[i];
    HOTSET_FAIL_IF(!fits, invalid_argument, "indices of shape %s exceed data of shape %s", to_text(indices).c_str(), to_text(data).c_str());
    return {};
  }
  Status run(const RunContext& c) const override {
    const Tensor &indices = *c.inputs[1], &updates = *c.inputs[2], &out = *c.outputs[0];
    const int rank = out.shape.rank, axis = static_cast<int>(axis_ < 0 ? axis_ + rank : axis_);
    const int64_t bytes = element_bytes(out.dtype), size = out.shape[axis], n = indices.size();
    for (int64_t k = 0; k < n; ++k) {
      const int64_t index = int_at(indices, k);
      HOTSET_FAIL_IF(index < -size || index >= size, invalid_argument, "index %lld at position %lld is out of range for axis %d of size %lld",
                     static_cast<long long>(index), static_cast<long long>(k), axis, static_cast<long long>(size));
    }
    copy_data(c);
    const Join joined = find_join(reduction_, out.dtype);
    int64_t stride[kMaxRank], step = 1, at[kMaxRank] = {}, base = 0;
    for (int i = rank - 1; i >= 0; --i) {
      stride[i] = step;
      step *= out.shape[i];
    }
    for (int64_t k = 0; k < n; ++k) {
      const int64_t index = int_at(indices, k);
      char* to = out.as<char>() + (base + (index < 0 ? index + size : index) * stride[axis]) * bytes;
      if (joined) joined(to, updates.as<char>() + k * bytes, 1);
      else std::memcpy(to, updates.as<char>() + k * bytes, static_cast<size_t>(bytes));
      for (int i = rank - 1; i >= 0; --i) {  // base: the position without the axis
        if (i != axis) base += stride[i];
        if (++at[i] < indices.shape[i]) break;
        at[i] = 0;
        if (i != axis) base -= stride[i] * indices.shape[i];
      }
    }
    return {};
  }

 private:
  const int64_t axis_;
};

class ScatterNd final : public ScatterKernel {
 public:
  using ScatterKernel::ScatterKernel;
  Status infer(InferContext& c) const override {
    HOTSET_TRY(check(c));
    const Shape &data = c.shape(0), &indices = c.shape(1), &updates = c.shape(2);
    const int64_t depth = indices.rank ? indices[-1] : 0;
    HOTSET_FAIL_IF(depth < 1 || depth > data.rank, invalid_argument, "indices of shape %s for data of shape %s", to_text(indices).c_str(), to_text(data).c_str());
    Shape wanted;
    bool fits = indices.rank - 1 + data.rank - depth <= kMaxRank;
    for (int i = 0; fits && i < indices.rank - 1; ++i) wanted.dim[wanted.rank++] = indices[i];
    for (int i = static_cast<int>(depth); fits && i < data.rank; ++i) wanted.dim[wanted.rank++] = data[i];
    HOTSET_FAIL_IF(!fits || !(updates == wanted), invalid_argument, "updates of shape %s for data %s and indices %s", to_text(updates).c_str(),
                   to_text(data).c_str(), to_text(indices).c_str());
    return {};
  }
  Status run(const RunContext& c) const override {
    const Tensor &indices = *c.inputs[1], &updates = *c.inputs[2], &out = *c.outputs[0];
    const int depth = static_cast<int>(indices.shape[-1]);
    const int64_t run = out.shape.product(depth, out.shape.rank), bytes = run * element_bytes(out.dtype), n = indices.size() / depth;
    const Join joined = find_join(reduction_, out.dtype);
    for (int64_t k = 0; k < n * depth; ++k) {
      const int64_t index = int_at(indices, k), size = out.shape[static_cast<int>(k % depth)];
      HOTSET_FAIL_IF(index < -size || index >= size, invalid_argument, "index %lld at position %lld is out of range for dimension %lld of size %lld",
                     static_cast<long long>(index), static_cast<long long>(k), static_cast<long long>(k % depth), static_cast<long long>(size));
    }
    copy_data(c);
    for (int64_t k = 0; k < n && bytes > 0; ++k) {
      int64_t offset = 0;
      for (int d = 0; d < depth; ++d) {
        const int64_t index = int_at(indices, k * depth + d), size = out.shape[d];
        offset = offset * size + (index < 0 ? index + size : index);
      }
      char* to = out.as<char>() + offset * bytes;
      if (joined) joined(to, updates.as<char>() + k * bytes, run);
      else std::memcpy(to, updates.as<char>() + k * bytes, static_cast<size_t>(bytes));
    }
    return {};
  }
};

Result<std::unique_ptr<Kernel>> make_elements(const OpContext& c) {
  Reduction reduction;
  const std::string name = c.node().get_string("reduction", "none");
  if (!parse(name, &reduction)) return c.fail(Code::invalid_model, "reduction '%s', expected none, add, mul, max or min", name.c_str());
  return make_kernel<ScatterElements>(reduction, c.node().get_int("axis", 0));
}

Result<std::unique_ptr<Kernel>> make_nd(const OpContext& c) {
  Reduction reduction;
  const std::string name = c.node().get_string("reduction", "none");
  if (!parse(name, &reduction)) return c.fail(Code::invalid_model, "reduction '%s', expected none, add, mul, max or min", name.c_str());
  return make_kernel<ScatterNd>(reduction);
}

}  // namespace

HOTSET_OPS(scatter,
           {"", "ScatterElements", 11, kLatest, make_elements, {3, 3}},
           {"", "Scatter", 9, 10, make_elements, {3, 3}},
           {"", "ScatterND", 11, kLatest, make_nd, {3, 3}});

}  // namespace hotset::ops

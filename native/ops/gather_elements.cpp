// SPDX-License-Identifier: Apache-2.0
// GatherElements and GatherND.
#include "ops/elements.h"

namespace hotset::ops {
namespace {

Status check_indices(InferContext& c, int i) {
  HOTSET_FAIL_IF(c.dtype(i) != DType::i64 && c.dtype(i) != DType::i32, invalid_model, "indices of type %s, expected int64", dtype_name(c.dtype(i)));
  HOTSET_FAIL_IF(element_bytes(c.dtype(0)) == 0, unsupported, "data of type %s", dtype_name(c.dtype(0)));
  return {};
}

class GatherElements final : public Kernel {
 public:
  explicit GatherElements(int64_t axis) : axis_(axis) {}
  Status infer(InferContext& c) const override {
    HOTSET_TRY(check_indices(c, 1));
    const Shape &data = c.shape(0), &indices = c.shape(1);
    int axis = 0;
    HOTSET_FAIL_IF(!normalize_axis(axis_, data.rank, &axis), invalid_argument, "axis %lld is out of range for data of shape %s", static_cast<long long>(axis_),
                   to_text(data).c_str());
    bool fits = indices.rank == data.rank;
    for (int i = 0; fits && i < data.rank; ++i) fits = i == axis || indices[i] <= data[i];
    HOTSET_FAIL_IF(!fits, invalid_argument, "indices of shape %s exceed data of shape %s", to_text(indices).c_str(), to_text(data).c_str());
    c.set_output(0, c.dtype(0), indices);
    return {};
  }
  Status run(const RunContext& c) const override {
    const Tensor &data = *c.inputs[0], &indices = *c.inputs[1];
    const int rank = data.shape.rank, axis = static_cast<int>(axis_ < 0 ? axis_ + rank : axis_);
    const int64_t bytes = element_bytes(data.dtype), size = data.shape[axis], n = indices.size();
    int64_t stride[kMaxRank], step = 1, at[kMaxRank] = {}, base = 0;
    for (int i = rank - 1; i >= 0; --i) {
      stride[i] = step;
      step *= data.shape[i];
    }
    char* to = c.outputs[0]->as<char>();
    for (int64_t k = 0; k < n; ++k) {
      int64_t index = int_at(indices, k);
      HOTSET_FAIL_IF(index < -size || index >= size, invalid_argument, "index %lld at position %lld is out of range for axis %d of size %lld",
                     static_cast<long long>(index), static_cast<long long>(k), axis, static_cast<long long>(size));
      if (index < 0) index += size;
      std::memcpy(to + k * bytes, data.as<char>() + (base + index * stride[axis]) * bytes, static_cast<size_t>(bytes));
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

class GatherNd final : public Kernel {
 public:
  explicit GatherNd(int64_t batch_dims) : batch_dims_(batch_dims) {}
  Status infer(InferContext& c) const override {
    HOTSET_TRY(check_indices(c, 1));
    const Shape &data = c.shape(0), &indices = c.shape(1);
    const int64_t b = batch_dims_;
    HOTSET_FAIL_IF(indices.rank < 1 || b < 0 || b >= indices.rank || b >= data.rank, invalid_argument, "batch_dims %lld with data of shape %s and indices of shape %s",
                   static_cast<long long>(b), to_text(data).c_str(), to_text(indices).c_str());
    const int64_t depth = indices[-1];
    HOTSET_FAIL_IF(depth < 1 || depth > data.rank - b, invalid_argument, "indices of shape %s address %lld dimensions of data of shape %s",
                   to_text(indices).c_str(), static_cast<long long>(depth), to_text(data).c_str());
    for (int i = 0; i < b; ++i)
      HOTSET_FAIL_IF(data[i] != indices[i], invalid_argument, "batch dimension %d differs: data %s, indices %s", i, to_text(data).c_str(), to_text(indices).c_str());
    const int64_t tail = data.rank - b - depth;
    HOTSET_FAIL_IF(indices.rank - 1 + tail > kMaxRank, unsupported, "result of rank %lld, at most %d", static_cast<long long>(indices.rank - 1 + tail), kMaxRank);
    Shape out;
    for (int i = 0; i < indices.rank - 1; ++i) out.dim[out.rank++] = indices[i];
    for (int i = static_cast<int>(b + depth); i < data.rank; ++i) out.dim[out.rank++] = data[i];
    c.set_output(0, c.dtype(0), out);
    return {};
  }
  Status run(const RunContext& c) const override {
    const Tensor &data = *c.inputs[0], &indices = *c.inputs[1];
    const int b = static_cast<int>(batch_dims_), depth = static_cast<int>(indices.shape[-1]), rank = data.shape.rank;
    const int64_t bytes = data.shape.product(b + depth, rank) * element_bytes(data.dtype), n = indices.size() / depth;
    if (n == 0 || bytes == 0) return {};
    const int64_t per_batch = n / indices.shape.product(0, b), batch_bytes = data.shape.product(b, b + depth) * bytes;
    char* to = c.outputs[0]->as<char>();
    for (int64_t k = 0; k < n; ++k) {
      int64_t offset = 0;
      for (int d = 0; d < depth; ++d) {
        const int64_t size = data.shape[b + d];
        int64_t index = int_at(indices, k * depth + d);
        HOTSET_FAIL_IF(index < -size || index >= size, invalid_argument, "index %lld at position %lld is out of range for dimension %d of size %lld",
                       static_cast<long long>(index), static_cast<long long>(k * depth + d), b + d, static_cast<long long>(size));
        offset = offset * size + (index < 0 ? index + size : index);
      }
      std::memcpy(to + k * bytes, data.as<char>() + k / per_batch * batch_bytes + offset * bytes, static_cast<size_t>(bytes));
    }
    return {};
  }

 private:
  const int64_t batch_dims_;
};

}  // namespace

HOTSET_OPS(gather_elements,
           {"", "GatherElements", 11, kLatest, [](const OpContext& c) { return make_kernel<GatherElements>(c.node().get_int("axis", 0)); }, {2, 2}},
           {"", "GatherND", 11, kLatest, [](const OpContext& c) { return make_kernel<GatherNd>(c.node().get_int("batch_dims", 0)); }, {2, 2}});

}  // namespace hotset::ops

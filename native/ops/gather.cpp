// SPDX-License-Identifier: Apache-2.0
// Gather: slices of one axis, by index.
#include "ops/elements.h"

namespace hotset::ops {
namespace {

class Gather final : public Kernel {
 public:
  explicit Gather(const OpContext& c) : axis_(c.node().get_int("axis", 0)) {}
  Status infer(InferContext& c) const override {
    const Shape &data = c.shape(0), &indices = c.shape(1);
    const DType index_type = c.dtype(1);
    HOTSET_FAIL_IF(index_type != DType::i64 && index_type != DType::i32, invalid_model, "indices of type %s, expected int32 or int64", dtype_name(index_type));
    HOTSET_FAIL_IF(element_bytes(c.dtype(0)) == 0, unsupported, "data of type %s", dtype_name(c.dtype(0)));
    int axis = 0;
    HOTSET_FAIL_IF(!normalize_axis(axis_, data.rank, &axis), invalid_argument, "axis %lld is out of range for data of shape %s", static_cast<long long>(axis_),
                   to_text(data).c_str());
    HOTSET_FAIL_IF(data.rank - 1 + indices.rank > kMaxRank, unsupported, "result of rank %d, at most %d", data.rank - 1 + indices.rank, kMaxRank);
    Shape out;
    for (int i = 0; i < axis; ++i) out.dim[out.rank++] = data[i];
    for (int i = 0; i < indices.rank; ++i) out.dim[out.rank++] = indices[i];
    for (int i = axis + 1; i < data.rank; ++i) out.dim[out.rank++] = data[i];
    c.set_output(0, c.dtype(0), out);
    return {};
  }

  Status run(const RunContext& c) const override {
    const Tensor &data = *c.inputs[0], &indices = *c.inputs[1];
    const int axis = static_cast<int>(axis_ < 0 ? axis_ + data.shape.rank : axis_);
    const int64_t size = data.shape[axis], n = indices.size(), outer = data.shape.product(0, axis);
    const int64_t bytes = data.shape.product(axis + 1, data.shape.rank) * element_bytes(data.dtype);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t index = int_at(indices, i);
      HOTSET_FAIL_IF(index < -size || index >= size, invalid_argument, "index %lld at position %lld is out of range for axis %d of size %lld",
                     static_cast<long long>(index), static_cast<long long>(i), axis, static_cast<long long>(size));
    }
    const char* from = data.as<char>();
    char* to = c.outputs[0]->as<char>();
    const auto copy = [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const int64_t index = int_at(indices, r % n);
        const char* source = from + (r / n * size + (index < 0 ? index + size : index)) * bytes;
        if (bytes == 8) std::memcpy(to + r * 8, source, 8);
        else std::memcpy(to + r * bytes, source, static_cast<size_t>(bytes));
      }
    };
    if (n > 0 && bytes > 0) over_range(c.pool, outer * n, std::max<int64_t>(1, (1 << 18) / bytes), copy);
    return {};
  }

 private:
  const int64_t axis_;
};

}  // namespace

HOTSET_OPS(gather, {"", "Gather", 1, kLatest, [](const OpContext& c) { return make_kernel<Gather>(c); }, {2, 2}});

}  // namespace hotset::ops

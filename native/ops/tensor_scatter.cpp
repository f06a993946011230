// SPDX-License-Identifier: Apache-2.0
// TensorScatter (opset 24): writes new rows into a cache, at a row of its own for each batch entry.
#include <cstring>

#include "ops/attend.h"
#include "ops/op.h"

namespace hotset::ops {
namespace {

class TensorScatter final : public Kernel {
 public:
  TensorScatter(int64_t axis, bool circular) : axis_(axis), circular_(circular) {}
  int in_place_input(int out) const override { return out == 0 ? 0 : -1; }

  Status infer(InferContext& c) const override {
    const Shape &cache = c.shape(0), &update = c.shape(1);
    HOTSET_FAIL_IF(c.dtype(1) != c.dtype(0), invalid_argument, "update is %s, past_cache is %s", dtype_name(c.dtype(1)),
                   dtype_name(c.dtype(0)));
    HOTSET_FAIL_IF(dtype_bits(c.dtype(0)) % 8 != 0 || dtype_bits(c.dtype(0)) == 0, unsupported, "past_cache is %s", dtype_name(c.dtype(0)));
    const int64_t axis = axis_ < 0 ? axis_ + cache.rank : axis_;
    HOTSET_FAIL_IF(axis < 1 || axis >= cache.rank, invalid_argument, "axis is %lld, past_cache has shape %s", static_cast<long long>(axis_),
                   to_text(cache).c_str());
    bool fits = update.rank == cache.rank;
    for (int i = 0; fits && i < cache.rank; ++i) fits = i == axis ? update[i] <= cache[i] : update[i] == cache[i];
    HOTSET_FAIL_IF(!fits, invalid_argument, "update has shape %s, which does not fit past_cache %s along axis %lld",
                   to_text(update).c_str(), to_text(cache).c_str(), static_cast<long long>(axis));
    if (c.has_input(2))
      HOTSET_FAIL_IF(c.dtype(2) != DType::i64 || !(c.shape(2) == Shape{cache[0]}), invalid_argument,
                     "write_indices is %s %s, expected int64 [%lld]", dtype_name(c.dtype(2)), to_text(c.shape(2)).c_str(),
                     static_cast<long long>(cache[0]));
    c.set_output(0, c.dtype(0), cache);
    c.may_overwrite(0, 0);
    return {};
  }

  Status run(const RunContext& c) const override {
    const Tensor &cache = *c.input(0), &update = *c.input(1);
    uint8_t* const out = c.output(0)->as<uint8_t>();
    const int axis = static_cast<int>(axis_ < 0 ? axis_ + cache.shape.rank : axis_);
    const int64_t rows = cache.shape[axis], added = update.shape[axis], outer = cache.shape.product(1, axis);
    const size_t row = dtype_bytes(cache.dtype) * static_cast<size_t>(cache.shape.product(axis + 1, cache.shape.rank));
    const int64_t* const index = c.input(2) ? c.input(2)->as<int64_t>() : nullptr;
    for (int64_t b = 0; index && b < cache.shape[0]; ++b)
      HOTSET_FAIL_IF(index[b] < 0 || (!circular_ && index[b] > rows - added), invalid_argument,
                     "write_indices[%lld] is %lld: %lld rows do not fit a cache of %lld rows", static_cast<long long>(b),
                     static_cast<long long>(index[b]), static_cast<long long>(added), static_cast<long long>(rows));
    const size_t block = static_cast<size_t>(rows) * row;
    const bool copies = out != cache.data;
    const int64_t work =
        cache.shape[0] * outer * static_cast<int64_t>((copies ? static_cast<size_t>(rows) : static_cast<size_t>(added)) * row);
    for_tasks(c.pool, cache.shape[0] * outer, work > kParallelWork, [&](int64_t task, int) {
      uint8_t* const to = out + static_cast<size_t>(task) * block;
      const uint8_t* const from = update.as<uint8_t>() + static_cast<size_t>(task * added) * row;
      if (block == 0) return;
      if (copies) std::memcpy(to, cache.as<uint8_t>() + static_cast<size_t>(task) * block, block);
      const int64_t start = index ? index[task / outer] % rows : 0, first = std::min(added, rows - start);
      std::memcpy(to + static_cast<size_t>(start) * row, from, static_cast<size_t>(first) * row);
      std::memcpy(to, from + static_cast<size_t>(first) * row, static_cast<size_t>(added - first) * row);
    });
    return {};
  }

 private:
  const int64_t axis_;
  const bool circular_;
};

Result<std::unique_ptr<Kernel>> make_tensor_scatter(const OpContext& c) {
  const std::string mode = c.node().get_string("mode", "linear");
  if (mode != "linear" && mode != "circular") return c.fail(Code::invalid_model, "mode is '%s', expected linear or circular", mode.c_str());
  if (!c.has_input(0) || !c.has_input(1)) return c.fail(Code::invalid_model, "past_cache or update is missing");
  return std::unique_ptr<Kernel>(std::make_unique<TensorScatter>(c.node().get_int("axis", -2), mode == "circular"));
}

}  // namespace

HOTSET_OPS(tensor_scatter, {"", "TensorScatter", 24, kLatest, make_tensor_scatter, {2, 3}});

}  // namespace hotset::ops

// SPDX-License-Identifier: Apache-2.0
// Shape and Size: known without any content.
#include "ops/elements.h"

namespace hotset::ops {
namespace {

class ShapeKernel final : public Kernel {
 public:
  explicit ShapeKernel(const OpContext& c) : start_(c.node().get_int("start", 0)), end_(c.node().get_int("end", kMaxRank)) {}
  bool reads_content() const override { return false; }
  Status infer(InferContext& c) const override {
    const Shape& in = c.shape(0);
    const int64_t start = clamp(start_, in.rank), end = std::max(start, clamp(end_, in.rank));
    c.set_output(0, DType::i64, {end - start});
    if (!c.has_output(0)) return {};
    void* out = c.provide(0);
    for (int64_t i = start; i < end; ++i) store_at<int64_t>(out, i - start, in[static_cast<int>(i)]);
    return {};
  }
  Status run(const RunContext& c) const override {
    const Shape& in = c.inputs[0]->shape;
    const int64_t start = clamp(start_, in.rank), end = std::max(start, clamp(end_, in.rank));
    for (int64_t i = start; i < end; ++i) store_at<int64_t>(c.outputs[0]->data, i - start, in[static_cast<int>(i)]);
    return {};
  }

 private:
  static int64_t clamp(int64_t i, int rank) { return std::clamp<int64_t>(i < 0 ? i + rank : i, 0, rank); }
  const int64_t start_, end_;
};

class SizeKernel final : public Kernel {
 public:
  bool reads_content() const override { return false; }
  Status infer(InferContext& c) const override {
    c.set_output(0, DType::i64, {});
    if (c.has_output(0)) store_at<int64_t>(c.provide(0), 0, c.shape(0).size());
    return {};
  }
  Status run(const RunContext& c) const override {
    store_at<int64_t>(c.outputs[0]->data, 0, c.inputs[0]->size());
    return {};
  }
};

}  // namespace

HOTSET_OPS(shape,
           {"", "Shape", 1, kLatest, [](const OpContext& c) { return make_kernel<ShapeKernel>(c); }, {1, 1}},
           {"", "Size", 1, kLatest, [](const OpContext&) { return make_kernel<SizeKernel>(); }, {1, 1}});

}  // namespace hotset::ops

// SPDX-License-Identifier: Apache-2.0
// Cast and CastLike.
#include "ops/convert_elements.h"
#include "ops/elements.h"

namespace hotset::ops {
namespace {

class Cast final : public Kernel {
 public:
  // to: undefined for CastLike, which takes the type of input 1.
  Cast(const OpContext& c, DType to, bool saturate) : to_(to), saturate_(saturate), isa_(isa(c)) {}
  std::string_view implementation() const override { return isa_; }
  Status infer(InferContext& c) const override {
    const DType from = c.dtype(0), to = to_ == DType::undefined ? c.dtype(1) : to_;
    HOTSET_FAIL_IF(!convertible(from), unsupported, "input of type %s", dtype_name(from));
    HOTSET_FAIL_IF(!convertible(to), unsupported, "cast to %s", dtype_name(to));
    c.set_output(0, to, c.shape(0));
    if (from == to) c.alias(0, 0);
    return {};
  }
  Status run(const RunContext& c) const override {
    const Tensor& in = *c.inputs[0];
    Tensor& out = *c.outputs[0];
    if (in.dtype == out.dtype) return {};
    const int64_t n = in.size(), step = kParallel / 2;
    if (n < kParallel) {
      convert_elements(in.dtype, in.data, out.dtype, out.data, 0, n, saturate_);
      return {};
    }
    // Tasks begin at even elements: two 4-bit elements share a byte.
    c.pool->parallel_for((n + step - 1) / step, [&](int64_t task, int) {
      convert_elements(in.dtype, in.data, out.dtype, out.data, task * step, std::min(step, n - task * step), saturate_);
    });
    return {};
  }

 private:
  // Conversions between 16-bit floats and float32 have vector loops.
  std::string_view isa(const OpContext& c) const {
    const DType from = c.declared_type(0), to = to_ == DType::undefined ? c.declared_type(1) : to_;
    if (from == to && from != DType::undefined) return "view";
    if (from == DType::undefined || to == DType::undefined) return cpu::convert_isa() == std::string_view("scalar") ? "scalar" : "by type";
    const auto vectors = [](DType t) { return t == DType::f32 || t == DType::f16 || t == DType::bf16; };
    return vectors(from) && vectors(to) ? cpu::convert_isa() : "scalar";
  }

  const DType to_;
  const bool saturate_;
  const std::string_view isa_;
};

Result<std::unique_ptr<Kernel>> make_cast(const OpContext& c) {
  const int64_t number = c.node().get_int("to", 0);
  if (number <= 0 || number >= kTypes)
    return c.fail(Code::invalid_model, "attribute to is %lld, expected the number of an element type", static_cast<long long>(number));
  const DType to = static_cast<DType>(number);
  if (!convertible(to)) return c.fail(Code::unsupported, "cast to element type %lld (%s)", static_cast<long long>(to), dtype_name(to));
  if (to == DType::f8e8m0 && c.node().get_string("round_mode", "up") != "up")
    return c.fail(Code::unsupported, "round_mode '%s', supported: up", c.node().get_string("round_mode", "up").c_str());
  return make_kernel<Cast>(c, to, c.node().get_int("saturate", 1) != 0);
}

Result<std::unique_ptr<Kernel>> make_cast_like(const OpContext& c) {
  if (c.n_inputs() != 2) return c.fail(Code::invalid_model, "%d inputs, expected 2", c.n_inputs());
  return make_kernel<Cast>(c, DType::undefined, c.node().get_int("saturate", 1) != 0);
}

}  // namespace

HOTSET_OPS(cast, {"", "Cast", 6, kLatest, make_cast, {1, 1}}, {"", "CastLike", 15, kLatest, make_cast_like, {2, 2}});

}  // namespace hotset::ops

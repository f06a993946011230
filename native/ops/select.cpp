// SPDX-License-Identifier: Apache-2.0
// hotset::Select: one result of an If, a view of the branch that ran. Made by the session, not found in files.
#include "ops/op.h"

namespace hotset::ops {
namespace {

// condition (bool, one element), result of the then branch, result of the else branch
class Select final : public Kernel {
 public:
  Status infer(InferContext& c) const override {
    HOTSET_FAIL_IF(c.dtype(0) != DType::boolean || c.shape(0).size() != 1, invalid_argument,
                   "the condition of If is %s of shape %s, expected one bool", dtype_name(c.dtype(0)), to_text(c.shape(0)).c_str());
    const Tensor* condition = c.known(0);
    if (!condition) return c.defer(0);
    const int chosen = *condition->as<const uint8_t>() ? 1 : 2;
    c.set_output(0, c.dtype(chosen), c.shape(chosen));
    c.alias(0, chosen);
    return {};
  }
  Status run(const RunContext&) const override { return {}; }
  uint32_t shape_inputs() const override { return 1; }
};

Result<std::unique_ptr<Kernel>> make_select(const OpContext& c) {
  for (const auto& [input, branch] : {std::pair{1, "then_branch"}, {2, "else_branch"}})
    if (!c.has_input(input)) return c.fail(Code::invalid_model, "%s has fewer results than the If has outputs", branch);
  return std::unique_ptr<Kernel>(new Select);
}

}  // namespace

HOTSET_OPS(select, {"hotset", "Select", 1, kLatest, make_select, {1, 3}});

}  // namespace hotset::ops

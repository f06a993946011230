// SPDX-License-Identifier: Apache-2.0
// Short integer lists (axes, sizes, pads) from an attribute or from an input whose content is known.
#pragma once
#include "ops/elements.h"

namespace hotset::ops {

// Of fixed capacity: inference runs again for every token and does not allocate.
struct IntList {
  static constexpr int kCapacity = 64;
  int64_t value[kCapacity];
  int n = 0;
  bool given = false;  // by attribute or input
  int64_t operator[](int i) const { return value[i]; }
};

// The content of an int32 or int64 tensor.
inline Status read_list(const Tensor& t, const char* what, IntList* out) {
  HOTSET_FAIL_IF(t.dtype != DType::i64 && t.dtype != DType::i32, invalid_model, "%s of type %s, expected int64", what, dtype_name(t.dtype));
  HOTSET_FAIL_IF(t.shape.rank > 1 || t.size() > IntList::kCapacity, unsupported, "%s of shape %s, expected at most %d numbers", what,
                 to_text(t.shape).c_str(), IntList::kCapacity);
  out->n = static_cast<int>(t.size());
  for (int i = 0; i < out->n; ++i) out->value[i] = int_at(t, i);
  out->given = true;
  return {};
}

// Axes of an operator that took them as an attribute in old opsets and as input `index` now.
class AxesArgument {
 public:
  AxesArgument(const OpContext& c, int index) : index_(index), attribute_(c.node().get_ints("axes")) {}
  uint32_t shape_inputs() const { return attribute_ ? 0 : 1u << index_; }
  // *deferred: the content is not known yet.
  Status read(InferContext& c, IntList* out, bool* deferred) const {
    *deferred = false;
    if (attribute_) return copy(out);
    if (!c.has_input(index_)) return {};
    const Tensor* t = c.known(index_);
    if (!t) {
      *deferred = true;
      return c.defer(index_);
    }
    return read_list(*t, "axes", out);
  }
  Status read(const RunContext& c, IntList* out) const {
    if (attribute_) return copy(out);
    const Tensor* t = c.input(index_);
    return t ? read_list(*t, "axes", out) : Status();
  }

 private:
  Status copy(IntList* out) const {
    HOTSET_FAIL_IF(attribute_->size() > IntList::kCapacity, invalid_model, "%zu axes", attribute_->size());
    out->n = static_cast<int>(attribute_->size());
    std::copy(attribute_->begin(), attribute_->end(), out->value);
    out->given = true;
    return {};
  }
  const int index_;
  const std::vector<int64_t>* attribute_;  // owned by the node, which outlives the kernel
};

// Bit set of the axes; fails on one out of range or given twice.
inline Status axis_set(const IntList& axes, int rank, uint32_t* out) {
  *out = 0;
  for (int i = 0; i < axes.n; ++i) {
    int axis = 0;
    HOTSET_FAIL_IF(!normalize_axis(axes[i], rank, &axis), invalid_argument, "axis %lld is out of range for rank %d", static_cast<long long>(axes[i]), rank);
    HOTSET_FAIL_IF(*out >> axis & 1, invalid_argument, "axis %d is given twice", axis);
    *out |= 1u << axis;
  }
  return {};
}

}  // namespace hotset::ops

// SPDX-License-Identifier: Apache-2.0
// Text and overflow checks of shapes.
#include "base/tensor.h"

namespace hotset {

std::string to_text(const Shape& shape) {
  std::string text = "[";
  for (int i = 0; i < shape.rank; ++i) text += (i ? "," : "") + std::to_string(shape.dim[i]);
  return text + "]";
}

bool checked_size(std::span<const int64_t> dims, int64_t* out) {
  constexpr int64_t kLimit = int64_t{1} << 55;
  bool empty = false;
  int64_t n = 1;
  for (int64_t d : dims) {
    if (d < 0) return false;
    if (d == 0)
      empty = true;
    else if (n > kLimit / d)
      return false;
    else
      n *= d;
  }
  *out = empty ? 0 : n;
  return true;
}

}  // namespace hotset

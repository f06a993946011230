// SPDX-License-Identifier: Apache-2.0
// Rules of GroupQueryAttention that other operators and the generator share.
#pragma once
#include <cstdint>

namespace hotset::ops {

// Rows that a windowed cache (sliding_window_cache = 1) holds once `total` tokens were seen: always the last ones, from row 0
// on. A full cache drops capacity - window + 1 rows at once, so that layout depends on `total` only.
inline int64_t resident_rows(int64_t total, int64_t capacity, int64_t window) {
  if (total <= capacity) return total;
  const int64_t gap = capacity - window + 1;
  return total - gap * ((total - capacity + gap - 1) / gap);
}

}  // namespace hotset::ops

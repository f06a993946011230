// SPDX-License-Identifier: Apache-2.0
// NumPy broadcasting: shapes, and a walk over runs of elements in which every operand has stride 0 or 1.
#pragma once
#include "base/status.h"
#include "base/tensor.h"

namespace hotset::ops {

// *out = broadcast of *out and other.
inline Status broadcast_shape(const Shape& other, Shape* out) {
  Shape r;
  r.rank = std::max(out->rank, other.rank);
  for (int i = 1; i <= r.rank; ++i) {
    const int64_t a = i <= out->rank ? (*out)[-i] : 1, b = i <= other.rank ? other[-i] : 1;
    HOTSET_FAIL_IF(a != b && a != 1 && b != 1, invalid_argument, "shapes %s and %s do not broadcast", to_text(*out).c_str(), to_text(other).c_str());
    r[-i] = a == 1 ? b : a;
  }
  int64_t n = 0;
  HOTSET_FAIL_IF(!checked_size(r.dims(), &n), invalid_argument, "shapes %s and %s broadcast to too many elements", to_text(*out).c_str(),
                 to_text(other).c_str());
  *out = r;
  return {};
}

// N operands broadcast to one shape, with neighbouring dimensions merged where all operands allow it. The last dimension
// is the run: operand strides there are 0 or 1.
template <int N>
struct Broadcast {
  int rank = 0;
  int64_t dim[kMaxRank];
  int64_t stride[kMaxRank][N];

  Broadcast(const Shape& out, const Shape* const (&operands)[N]) {
    int64_t dense[N];
    for (int n = 0; n < N; ++n) dense[n] = 1;
    // From the innermost dimension outwards, merging into the last one kept; reversed at the end.
    for (int i = 1; i <= out.rank; ++i) {
      const int64_t size = out[-i];
      int64_t s[N];
      for (int n = 0; n < N; ++n) {
        const int64_t d = i <= operands[n]->rank ? (*operands[n])[-i] : 1;
        s[n] = d == 1 ? 0 : dense[n];
        dense[n] *= d;
      }
      if (size == 1) continue;
      bool merge = rank > 0;
      for (int n = 0; merge && n < N; ++n) merge = s[n] == stride[rank - 1][n] * dim[rank - 1];
      if (merge) {
        dim[rank - 1] *= size;
        continue;
      }
      dim[rank] = size;
      for (int n = 0; n < N; ++n) stride[rank][n] = s[n];
      ++rank;
    }
    if (rank == 0) {  // a single element
      dim[0] = 1;
      for (int n = 0; n < N; ++n) stride[0][n] = 0;
      rank = 1;
    }
    for (int i = 0; i < rank / 2; ++i) {
      std::swap(dim[i], dim[rank - 1 - i]);
      for (int n = 0; n < N; ++n) std::swap(stride[i][n], stride[rank - 1 - i][n]);
    }
  }

  int64_t run() const { return dim[rank - 1]; }
  int64_t n_runs() const {
    int64_t n = 1;
    for (int i = 0; i + 1 < rank; ++i) n *= dim[i];
    return n;
  }
  // f(offsets of the operands, run index) for runs [r0, r1).
  template <class F>
  void walk(int64_t r0, int64_t r1, F&& f) const {
    int64_t index[kMaxRank], offset[N] = {}, rest = r0;
    for (int i = rank - 2; i >= 0; --i) {
      index[i] = rest % dim[i];
      rest /= dim[i];
      for (int n = 0; n < N; ++n) offset[n] += index[i] * stride[i][n];
    }
    for (int64_t r = r0; r < r1; ++r) {
      f(static_cast<const int64_t*>(offset), r);
      for (int i = rank - 2; i >= 0; --i) {
        for (int n = 0; n < N; ++n) offset[n] += stride[i][n];
        if (++index[i] < dim[i]) break;
        index[i] = 0;
        for (int n = 0; n < N; ++n) offset[n] -= dim[i] * stride[i][n];
      }
    }
  }
};

}  // namespace hotset::ops

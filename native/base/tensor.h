// SPDX-License-Identifier: Apache-2.0
// Shapes and dense tensor views. A view owns nothing.
#pragma once
#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "base/dtype.h"

namespace hotset {

inline constexpr int kMaxRank = 8;

struct Shape {
  int64_t dim[kMaxRank] = {};
  int rank = 0;

  Shape() = default;
  Shape(std::initializer_list<int64_t> d) : Shape(std::span(d.begin(), d.size())) {}
  explicit Shape(std::span<const int64_t> d) : rank(static_cast<int>(d.size())) {
    assert(d.size() <= static_cast<size_t>(kMaxRank));
    std::copy(d.begin(), d.end(), dim);
  }
  int64_t operator[](int i) const { return dim[i < 0 ? i + rank : i]; }  // negative counts from the end
  int64_t& operator[](int i) { return dim[i < 0 ? i + rank : i]; }
  int64_t size() const { return product(0, rank); }  // elements; 1 for a scalar
  int64_t product(int from, int to) const {          // of dims [from, to)
    int64_t n = 1;
    for (int i = from; i < to; ++i) n *= dim[i];
    return n;
  }
  bool operator==(const Shape& o) const { return rank == o.rank && std::equal(dim, dim + rank, o.dim); }
  std::span<const int64_t> dims() const { return {dim, static_cast<size_t>(rank)}; }
};

std::string to_text(const Shape& shape);  // "[2,3]"

// Elements of a shape; false on a negative dimension or when the product exceeds 2^55.
bool checked_size(std::span<const int64_t> dims, int64_t* out);

struct Tensor {
  void* data = nullptr;
  DType dtype = DType::undefined;
  Shape shape;

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  int64_t size() const { return shape.size(); }
  size_t bytes() const {
    size_t n = 0;
    return dense_bytes(dtype, shape.size(), &n) ? n : 0;
  }
};

}  // namespace hotset

// SPDX-License-Identifier: Apache-2.0
// Elements at any address (constants lie unaligned in mapped files), 16-bit floats as numbers, and code by element type.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "base/tensor.h"
#include "cpu_avx/convert.h"
#include "ops/op.h"

namespace hotset::ops {

template <class T>
inline T load_at(const void* base, int64_t i) {
  if constexpr (std::is_same_v<T, bool>) return static_cast<const uint8_t*>(base)[i] != 0;  // a caller's true may be any byte
  T v;
  std::memcpy(&v, static_cast<const char*>(base) + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return v;
}

template <class T>
inline void store_at(void* base, int64_t i, T v) {
  std::memcpy(static_cast<char*>(base) + i * static_cast<int64_t>(sizeof(T)), &v, sizeof(T));
}

// Element types whose arithmetic is float32.
struct F16 {
  uint16_t bits;
  static constexpr DType kType = DType::f16;
  operator float() const { return f16_to_f32(bits); }
  F16() = default;
  F16(float f) : bits(f32_to_f16(f)) {}
};
struct Bf16 {
  uint16_t bits;
  static constexpr DType kType = DType::bf16;
  operator float() const { return bf16_to_f32(bits); }
  Bf16() = default;
  Bf16(float f) : bits(f32_to_bf16(f)) {}
};
template <class T>
inline constexpr bool kIs16 = std::is_same_v<T, F16> || std::is_same_v<T, Bf16>;
// What an element of type T is computed in.
template <class T>
using Wide = std::conditional_t<kIs16<T>, float, T>;

// A double as a number of type T: integers at the nearest end of their range where it does not fit, NaN as 0.
template <class T>
T from_double(double v) {
  if constexpr (!std::is_integral_v<T>) {
    return static_cast<T>(v);
  } else {
    constexpr double low = static_cast<double>(std::numeric_limits<T>::min()), high = static_cast<double>(std::numeric_limits<T>::max());
    return v >= high ? std::numeric_limits<T>::max() : v <= low ? std::numeric_limits<T>::min() : v == v ? static_cast<T>(v) : T(0);
  }
}

// f(T{}) for the element type of `type`; false when f is not called. f may be called with fewer types by `if constexpr`.
template <class F>
bool visit_float(DType type, F&& f) {
  switch (type) {
    case DType::f32: f(float{}); return true;
    case DType::f16: f(F16{}); return true;
    case DType::bf16: f(Bf16{}); return true;
    case DType::f64: f(double{}); return true;
    default: return false;
  }
}

template <class F>
bool visit_integer(DType type, F&& f) {
  switch (type) {
    case DType::i8: f(int8_t{}); return true;
    case DType::u8: f(uint8_t{}); return true;
    case DType::i16: f(int16_t{}); return true;
    case DType::u16: f(uint16_t{}); return true;
    case DType::i32: f(int32_t{}); return true;
    case DType::u32: f(uint32_t{}); return true;
    case DType::i64: f(int64_t{}); return true;
    case DType::u64: f(uint64_t{}); return true;
    default: return false;
  }
}

template <class F>
bool visit_number(DType type, F&& f) {
  return visit_float(type, f) || visit_integer(type, f);
}

inline constexpr int kTypes = 25;               // element types, for tables indexed by DType
inline constexpr int kChunk = 256;              // elements of a 16-bit type that are widened at a time
inline constexpr int64_t kParallel = 1 << 16;   // elements from which elementwise work is shared among threads

// Bytes of one element of a type that has whole bytes, 0 otherwise.
inline int64_t element_bytes(DType type) { return dtype_bits(type) / 8; }

// f(begin, end) over [0, n), on several threads when n is large.
template <class F>
void over_range(ThreadPool* pool, int64_t n, int64_t grain, F&& f) {
  if (n <= grain || !pool || pool->size() == 1) {
    if (n > 0) f(int64_t{0}, n);
    return;
  }
  const int64_t tasks = std::min<int64_t>((n + grain - 1) / grain, pool->size() * 4);
  const int64_t step = (n + tasks - 1) / tasks;
  pool->parallel_for(tasks, [&](int64_t task, int) {
    const int64_t begin = task * step, end = std::min(n, begin + step);
    if (begin < end) f(begin, end);
  });
}

// Element i of an int32 or int64 tensor.
inline int64_t int_at(const Tensor& t, int64_t i) {
  return t.dtype == DType::i32 ? load_at<int32_t>(t.data, i) : load_at<int64_t>(t.data, i);
}

// For implementation() of a kernel whose loops of instruction set `isa` serve 32-bit and 16-bit floats, and scalar ones the other
// types; `type` is undefined where the file does not say it.
inline std::string_view isa_of_float_loops(std::string_view isa, DType type) {
  if (type == DType::undefined && isa != "scalar") return "by type";
  return type == DType::f32 || type == DType::f16 || type == DType::bf16 ? isa : "scalar";
}

// A factory's result.
template <class K, class... Args>
Result<std::unique_ptr<Kernel>> make_kernel(Args&&... args) {
  return std::unique_ptr<Kernel>(std::make_unique<K>(std::forward<Args>(args)...));
}

// "-3" of rank 4 is 1. False when out of range.
inline bool normalize_axis(int64_t axis, int rank, int* out) {
  if (axis < 0) axis += rank;
  if (axis < 0 || axis >= rank) return false;
  *out = static_cast<int>(axis);
  return true;
}

}  // namespace hotset::ops

// SPDX-License-Identifier: Apache-2.0
// Conversion through one of four wide types (float, double, int64, uint64), a chunk at a time.
#include "ops/convert_elements.h"

#include <cmath>
#include <limits>

#include "cpu_avx/convert.h"
#include "ops/elements.h"

namespace hotset::ops {
namespace {

// Small float formats as IEEE-like fields.
struct SmallFloat {
  int exponent_bits, mantissa_bits, bias;
  bool infinity;      // the top exponent is reserved (e5m2); otherwise only all ones is NaN (e4m3fn)
  bool unsigned_zero; // fnuz: 0x80 is NaN, no negative zero, no infinity
};

const SmallFloat* small_float(DType t) {
  static constexpr SmallFloat e4m3fn{4, 3, 7, false, false}, e4m3fnuz{4, 3, 8, false, true}, e5m2{5, 2, 15, true, false}, e5m2fnuz{5, 2, 16, false, true},
      e2m1{2, 1, 1, false, false};
  switch (t) {
    case DType::f8e4m3fn: return &e4m3fn;
    case DType::f8e4m3fnuz: return &e4m3fnuz;
    case DType::f8e5m2: return &e5m2;
    case DType::f8e5m2fnuz: return &e5m2fnuz;
    case DType::f4e2m1: return &e2m1;
    default: return nullptr;
  }
}

float decode(const SmallFloat& f, uint8_t b) {
  const int width = 1 + f.exponent_bits + f.mantissa_bits;
  const int sign = b >> (width - 1) & 1, exponent = b >> f.mantissa_bits & ((1 << f.exponent_bits) - 1), mantissa = b & ((1 << f.mantissa_bits) - 1);
  const int top = (1 << f.exponent_bits) - 1, full = (1 << f.mantissa_bits) - 1;
  if (f.unsigned_zero && b == 0x80) return std::numeric_limits<float>::quiet_NaN();
  if (width == 8 && !f.unsigned_zero && exponent == top) {
    if (f.infinity && mantissa == 0) return sign ? -INFINITY : INFINITY;
    if (f.infinity || mantissa == full) return std::numeric_limits<float>::quiet_NaN();
  }
  const float v = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), 1 - f.bias - f.mantissa_bits)
                                : std::ldexp(static_cast<float>((1 << f.mantissa_bits) + mantissa), exponent - f.bias - f.mantissa_bits);
  return sign ? -v : v;
}

uint8_t encode(const SmallFloat& f, float v, bool saturate) {
  const int width = 1 + f.exponent_bits + f.mantissa_bits, top = (1 << f.exponent_bits) - 1;
  const uint8_t sign = std::signbit(v) ? static_cast<uint8_t>(1 << (width - 1)) : 0;
  const uint8_t nan = f.unsigned_zero ? 0x80 : static_cast<uint8_t>(sign | 0x7f);
  // Codes without sign: the largest finite one, and what overflow gives.
  const int largest = width == 4 ? 7 : f.unsigned_zero ? 0x7f : f.infinity ? (top << f.mantissa_bits) - 1 : 0x7e;
  if (std::isnan(v)) return width == 4 ? static_cast<uint8_t>(sign | largest) : nan;
  const float a = std::fabs(v);
  int code = a == 0 ? 0 : largest + 1;
  if (a > 0 && a < 0x1p30f) {
    int exponent = 0;
    std::frexp(a, &exponent);  // a in [2^(exponent-1), 2^exponent)
    const int unit = std::max(exponent - 1, 1 - f.bias) - f.mantissa_bits;
    // Consecutive codes are consecutive values: a rounded count of units, plus the binades below.
    const int count = static_cast<int>(std::nearbyint(std::ldexp(a, -unit)));
    code = count + ((unit + f.mantissa_bits + f.bias - 1) << f.mantissa_bits);
  }
  if (code > largest) {
    if (saturate || width == 4) code = largest;
    else if (f.infinity) code = top << f.mantissa_bits;
    else return nan;
  }
  if (code == 0 && f.unsigned_zero) return 0;
  return static_cast<uint8_t>(sign | code);
}

// A power of two at least as large as v; zero and negative values give the smallest one.
uint8_t encode_e8m0(float v, bool saturate) {
  if (std::isnan(v)) return 255;
  if (v <= 0) return 0;
  if (std::isinf(v)) return saturate ? 254 : 255;
  int exponent = 0;
  const float fraction = std::frexp(v, &exponent);  // in [0.5, 1)
  const int code = exponent - (fraction == 0.5f ? 1 : 0) + 127;
  return code > 254 ? (saturate ? 254 : 255) : static_cast<uint8_t>(std::max(code, 0));
}

uint8_t nibble(const void* base, int64_t i) {
  const uint8_t b = static_cast<const uint8_t*>(base)[i / 2];
  return i & 1 ? b >> 4 : b & 15;
}

// In order: an even element clears the half byte behind it, which a last one leaves 0.
void set_nibble(void* base, int64_t i, uint8_t v) {
  uint8_t& b = static_cast<uint8_t*>(base)[i / 2];
  b = static_cast<uint8_t>(i & 1 ? (b & 0x0f) | v << 4 : v & 15);
}

template <class T, class W>
T to_integer(W v) {
  if constexpr (std::is_same_v<T, bool>) {
    return v != 0;
  } else if constexpr (std::is_floating_point_v<W>) {
    if constexpr (sizeof(T) < 4) {
      return static_cast<T>(to_integer<int64_t>(v));
    } else {
      constexpr W low = static_cast<W>(std::numeric_limits<T>::min()), high = static_cast<W>(std::numeric_limits<T>::max());
      return v >= high ? std::numeric_limits<T>::max() : v <= low ? std::numeric_limits<T>::min() : v == v ? static_cast<T>(v) : T(0);
    }
  } else {
    return static_cast<T>(v);
  }
}

enum class Kind { f32, f64, i64, u64 };
Kind kind_of(DType t) {
  switch (t) {
    case DType::f64: return Kind::f64;
    case DType::u64: return Kind::u64;
    case DType::i8: case DType::u8: case DType::i16: case DType::u16: case DType::i32: case DType::u32: case DType::i64:
    case DType::boolean: case DType::i4: case DType::u4: return Kind::i64;
    default: return Kind::f32;
  }
}

template <class W>
void read(DType t, const void* src, int64_t begin, int n, W* out) {
  if constexpr (std::is_same_v<W, float>) {
    if (t == DType::f16 || t == DType::bf16 || t == DType::f32) return cpu::to_f32(t, static_cast<const char*>(src) + begin * element_bytes(t), out, n);
    for (int i = 0; i < n; ++i) {
      if (t == DType::f8e8m0) out[i] = f8e8m0_to_f32(static_cast<const uint8_t*>(src)[begin + i]);
      else out[i] = decode(*small_float(t), t == DType::f4e2m1 ? nibble(src, begin + i) : static_cast<const uint8_t*>(src)[begin + i]);
    }
  } else if constexpr (std::is_same_v<W, double>) {
    std::memcpy(out, static_cast<const char*>(src) + begin * 8, static_cast<size_t>(n) * 8);
  } else if (t == DType::boolean) {
    for (int i = 0; i < n; ++i) out[i] = load_at<uint8_t>(src, begin + i) != 0;
  } else if (t == DType::u4 || t == DType::i4) {
    for (int i = 0; i < n; ++i) {
      const int v = nibble(src, begin + i);
      out[i] = static_cast<W>(t == DType::i4 && v > 7 ? v - 16 : v);
    }
  } else {
    visit_integer(t, [&](auto tag) {
      for (int i = 0; i < n; ++i) out[i] = static_cast<W>(load_at<decltype(tag)>(src, begin + i));
    });
  }
}

template <class W>
void write(DType t, void* dst, int64_t begin, int n, const W* v, bool saturate) {
  if (t == DType::f16 || t == DType::bf16 || t == DType::f32 || small_float(t) || t == DType::f8e8m0) {
    float narrow[kChunk];
    for (int i = 0; i < n; ++i) narrow[i] = static_cast<float>(v[i]);
    if (const SmallFloat* f = small_float(t)) {
      for (int i = 0; i < n; ++i) {
        const uint8_t code = encode(*f, narrow[i], saturate);
        if (t == DType::f4e2m1) set_nibble(dst, begin + i, code);
        else static_cast<uint8_t*>(dst)[begin + i] = code;
      }
    } else if (t == DType::f8e8m0) {
      for (int i = 0; i < n; ++i) static_cast<uint8_t*>(dst)[begin + i] = encode_e8m0(narrow[i], saturate);
    } else {
      cpu::from_f32(t, narrow, static_cast<char*>(dst) + begin * element_bytes(t), n);
    }
  } else if (t == DType::f64) {
    for (int i = 0; i < n; ++i) store_at<double>(dst, begin + i, static_cast<double>(v[i]));
  } else if (t == DType::boolean) {
    for (int i = 0; i < n; ++i) store_at<bool>(dst, begin + i, to_integer<bool>(v[i]));
  } else if (t == DType::u4 || t == DType::i4) {
    for (int i = 0; i < n; ++i) set_nibble(dst, begin + i, static_cast<uint8_t>(to_integer<int64_t>(v[i]) & 15));
  } else {
    visit_integer(t, [&](auto tag) {
      using T = decltype(tag);
      for (int i = 0; i < n; ++i) store_at<T>(dst, begin + i, to_integer<T>(v[i]));
    });
  }
}

template <class W>
void convert(DType from, const void* src, DType to, void* dst, int64_t begin, int64_t n, bool saturate) {
  W chunk[kChunk];
  for (int64_t i = 0; i < n; i += kChunk) {
    const int m = static_cast<int>(std::min<int64_t>(kChunk, n - i));
    read<W>(from, src, begin + i, m, chunk);
    write<W>(to, dst, begin + i, m, chunk, saturate);
  }
}

bool wide_float(DType t) { return t == DType::f32 || t == DType::f16 || t == DType::bf16; }

}  // namespace

bool convertible(DType type) { return dtype_bits(type) > 0 && type != DType::complex64 && type != DType::complex128; }

void convert_elements(DType from, const void* src, DType to, void* dst, int64_t begin, int64_t n, bool saturate) {
  if (from == DType::f32 && wide_float(to)) {
    cpu::from_f32(to, static_cast<const float*>(src) + begin, static_cast<char*>(dst) + begin * element_bytes(to), n);
  } else if (to == DType::f32 && wide_float(from)) {
    cpu::to_f32(from, static_cast<const char*>(src) + begin * element_bytes(from), static_cast<float*>(dst) + begin, n);
  } else {
    switch (kind_of(from)) {
      case Kind::f32: return convert<float>(from, src, to, dst, begin, n, saturate);
      case Kind::f64: return convert<double>(from, src, to, dst, begin, n, saturate);
      case Kind::i64: return convert<int64_t>(from, src, to, dst, begin, n, saturate);
      case Kind::u64: return convert<uint64_t>(from, src, to, dst, begin, n, saturate);
    }
  }
}

}  // namespace hotset::ops

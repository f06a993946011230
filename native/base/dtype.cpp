// SPDX-License-Identifier: Apache-2.0
// Element type table and scalar conversions; formats after IEEE 754 binary16 and the OCP FP8 and MX specifications.
#include "base/dtype.h"

#include <cmath>
#include <limits>

namespace hotset {

int dtype_bits(DType type) {
  switch (type) {
    case DType::u4:
    case DType::i4:
    case DType::f4e2m1:
      return 4;
    case DType::u8:
    case DType::i8:
    case DType::boolean:
    case DType::f8e4m3fn:
    case DType::f8e4m3fnuz:
    case DType::f8e5m2:
    case DType::f8e5m2fnuz:
    case DType::f8e8m0:
      return 8;
    case DType::u16:
    case DType::i16:
    case DType::f16:
    case DType::bf16:
      return 16;
    case DType::f32:
    case DType::i32:
    case DType::u32:
      return 32;
    case DType::f64:
    case DType::i64:
    case DType::u64:
    case DType::complex64:
      return 64;
    case DType::complex128:
      return 128;
    default:
      return 0;
  }
}

const char* dtype_name(DType type) {
  switch (type) {
    case DType::f32:
      return "float";
    case DType::u8:
      return "uint8";
    case DType::i8:
      return "int8";
    case DType::u16:
      return "uint16";
    case DType::i16:
      return "int16";
    case DType::i32:
      return "int32";
    case DType::i64:
      return "int64";
    case DType::string:
      return "string";
    case DType::boolean:
      return "bool";
    case DType::f16:
      return "float16";
    case DType::f64:
      return "double";
    case DType::u32:
      return "uint32";
    case DType::u64:
      return "uint64";
    case DType::complex64:
      return "complex64";
    case DType::complex128:
      return "complex128";
    case DType::bf16:
      return "bfloat16";
    case DType::f8e4m3fn:
      return "float8e4m3fn";
    case DType::f8e4m3fnuz:
      return "float8e4m3fnuz";
    case DType::f8e5m2:
      return "float8e5m2";
    case DType::f8e5m2fnuz:
      return "float8e5m2fnuz";
    case DType::u4:
      return "uint4";
    case DType::i4:
      return "int4";
    case DType::f4e2m1:
      return "float4e2m1";
    case DType::f8e8m0:
      return "float8e8m0";
    default:
      return "undefined";
  }
}

bool dense_bytes(DType type, int64_t elements, size_t* out) {
  const int bits = dtype_bits(type);
  if (bits == 0 || elements < 0) return false;
  const uint64_t n = static_cast<uint64_t>(elements);
  if (n > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) / 128) return false;
  const uint64_t bytes = (n * static_cast<uint64_t>(bits) + 7) / 8;
  if (bytes > std::numeric_limits<size_t>::max() / 2) return false;
  *out = static_cast<size_t>(bytes);
  return true;
}

float f16_to_f32(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
  const uint32_t exponent = (h >> 10) & 0x1f, mantissa = h & 0x3ff;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13) | (mantissa ? 0x400000u : 0u));
  if (exponent == 0) {
    const float v = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(v) | sign);
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

uint16_t f32_to_f16(float f) {
  const uint32_t u = std::bit_cast<uint32_t>(f), sign = (u >> 16) & 0x8000, a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00 | ((a >> 13) & 0x3ff));
  if (a >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00);  // 65520 and above round to infinity
  if (a < 0x38800000u) {                                              // below 2^-14: subnormal, unit 2^-24
    const float scaled = std::bit_cast<float>(a) + 0.5f;              // adding 0.5 rounds to a multiple of 2^-24
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(scaled) - 0x3f000000u));
  }
  return static_cast<uint16_t>(sign | ((a - 0x38000000u + 0xfff + ((a >> 13) & 1)) >> 13));
}

float f8e4m3fn_to_f32(uint8_t b) {
  const int e = (b >> 3) & 15, m = b & 7;
  float v = e == 15 && m == 7 ? std::numeric_limits<float>::quiet_NaN()
            : e == 0          ? std::ldexp(static_cast<float>(m), -9)
                              : std::ldexp(static_cast<float>(8 + m), e - 10);
  return b & 0x80 ? -v : v;
}

float f8e5m2_to_f32(uint8_t b) { return f16_to_f32(static_cast<uint16_t>(b << 8)); }

float f8e8m0_to_f32(uint8_t b) { return b == 255 ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, static_cast<int>(b) - 127); }

}  // namespace hotset

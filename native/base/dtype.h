// SPDX-License-Identifier: Apache-2.0
// Element types (ONNX TensorProto.DataType numbers) and conversions of the 16-bit floats.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>

namespace hotset {

enum class DType : int32_t {
  undefined = 0,
  f32 = 1,
  u8 = 2,
  i8 = 3,
  u16 = 4,
  i16 = 5,
  i32 = 6,
  i64 = 7,
  string = 8,
  boolean = 9,
  f16 = 10,
  f64 = 11,
  u32 = 12,
  u64 = 13,
  complex64 = 14,
  complex128 = 15,
  bf16 = 16,
  f8e4m3fn = 17,
  f8e4m3fnuz = 18,
  f8e5m2 = 19,
  f8e5m2fnuz = 20,
  u4 = 21,
  i4 = 22,
  f4e2m1 = 23,
  f8e8m0 = 24,
};

// Bits of one element, 0 for types without a fixed size or unknown ones. 4-bit types are packed two a byte, low first.
int dtype_bits(DType type);
// As onnxruntime writes it: "float", "int64", "bfloat16"...; "undefined" if unknown.
const char* dtype_name(DType type);
inline bool is_float(DType t) { return t == DType::f32 || t == DType::f16 || t == DType::bf16 || t == DType::f64; }

// Bytes of `elements` dense elements; false on overflow, a negative count or a type without size.
bool dense_bytes(DType type, int64_t elements, size_t* out);

inline float bf16_to_f32(uint16_t b) { return std::bit_cast<float>(static_cast<uint32_t>(b) << 16); }
inline uint16_t f32_to_bf16(float f) {  // to nearest, ties to even; NaN stays NaN
  const uint32_t u = std::bit_cast<uint32_t>(f);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x40);
  return static_cast<uint16_t>((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
float f16_to_f32(uint16_t h);
uint16_t f32_to_f16(float f);  // to nearest, ties to even; overflow gives infinity
float f8e4m3fn_to_f32(uint8_t b);
float f8e5m2_to_f32(uint8_t b);
float f8e8m0_to_f32(uint8_t b);

}  // namespace hotset

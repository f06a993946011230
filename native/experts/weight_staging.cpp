// SPDX-License-Identifier: Apache-2.0
// Conversions of weight forms, a few rows at a time.
#include "experts/weight_staging.h"

#include <algorithm>
#include <array>
#include <bit>

#include "cpu_avx/convert.h"

namespace hotset::experts {
namespace {

// Twice the value of an E2M1 code, plus 128.
constexpr uint8_t kFp4Codes[16] = {128, 129, 130, 131, 132, 134, 136, 140, 128, 127, 126, 125, 124, 122, 120, 116};

constexpr float e4m3(int byte) {
  const int e = byte >> 3 & 15, m = byte & 7;
  const uint32_t sign = (byte & 128) ? 0x80000000u : 0;
  if (e == 15 && m == 7) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (e == 0) return (sign ? -1.0f : 1.0f) * static_cast<float>(m) / 512.0f;
  return std::bit_cast<float>(sign | static_cast<uint32_t>(e + 120) << 23 | static_cast<uint32_t>(m) << 20);
}

constexpr std::array<float, 256> kE4m3 = [] {
  std::array<float, 256> t{};
  for (int i = 0; i < 256; ++i) t[static_cast<size_t>(i)] = e4m3(i);
  return t;
}();

// Code i of a stream whose codes may cross byte borders.
int code_at(const uint8_t* stream, int bits, int64_t i) {
  const int64_t bit = i * bits;
  const int shift = static_cast<int>(bit & 7);
  unsigned v = static_cast<unsigned>(stream[bit >> 3]) >> shift;
  if (shift + bits > 8) v |= static_cast<unsigned>(stream[(bit >> 3) + 1]) << (8 - shift);
  return static_cast<int>(v & ((1u << bits) - 1));
}

}  // namespace

void widen_3_to_4(const uint8_t* src, int64_t count, uint8_t* dst) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8, src += 3, dst += 4) {  // 8 codes are 3 bytes
    const uint32_t v = src[0] | static_cast<uint32_t>(src[1]) << 8 | static_cast<uint32_t>(src[2]) << 16;
    for (int b = 0; b < 4; ++b) {
      const uint32_t pair = v >> (6 * b);
      dst[b] = static_cast<uint8_t>(((pair & 7) | (pair & 0x38) << 1) + 0x44);
    }
  }
  for (int64_t left = count - i, j = 0; j < left; j += 2) {
    const int low = code_at(src, 3, j) + 4, high = j + 1 < left ? code_at(src, 3, j + 1) + 4 : 0;
    dst[j / 2] = static_cast<uint8_t>(low | high << 4);
  }
}

void copy_codes(const uint8_t* src, int bits, int64_t first, int64_t count, uint8_t* dst) {
  const int width = bits == 3 ? 4 : bits, shift = bits == 3 ? 4 : 0;
  std::fill_n(dst, stream_bytes(count, width), uint8_t{0});
  for (int64_t i = 0; i < count; ++i)
    dst[i * width / 8] |= static_cast<uint8_t>((code_at(src, bits, first + i) + shift) << (i * width % 8));
}

void pack_bytes_to_4(const uint8_t* src, int64_t count, uint8_t* dst) {
  for (int64_t i = 0; i < count; i += 2) dst[i / 2] = static_cast<uint8_t>((src[i] & 15) | (i + 1 < count ? src[i + 1] << 4 : 0));
}

void fp4_to_codes(const MatrixForm& form, const MatrixBytes& bytes, int64_t n0, int64_t n1, uint8_t* codes, float* scales) {
  const int64_t k = form.k, blocks = form.blocks();
  if (form.storage == Storage::fp4_by_k) {
    const uint8_t* const src = bytes.weights + n0 * (k / 2);
    for (int64_t i = 0; i < (n1 - n0) * (k / 2); ++i) {
      codes[2 * i] = kFp4Codes[src[i] & 15];
      codes[2 * i + 1] = kFp4Codes[src[i] >> 4];
    }
  } else {
    for (int64_t p = 0; p < k; ++p) {
      const uint8_t* const src = bytes.weights + p * (form.n / 2) + n0 / 2;
      for (int64_t i = 0; i < n1 - n0; i += 2) {
        codes[i * k + p] = kFp4Codes[src[i / 2] & 15];
        codes[(i + 1) * k + p] = kFp4Codes[src[i / 2] >> 4];
      }
    }
  }
  const uint8_t* const src = bytes.scales + n0 * blocks;
  const bool is_e8m0 = form.dtype == DType::f8e8m0;
  for (int64_t i = 0; i < (n1 - n0) * blocks; ++i)
    scales[i] = (is_e8m0 ? f8e8m0_to_f32(src[i]) : kE4m3[src[i]]) * bytes.global_scale * 0.5f;
}

void fp8_to_floats(const MatrixForm& form, const MatrixBytes& bytes, int64_t n0, int64_t n1, float* out) {
  const int64_t k = form.k;
  const uint8_t* src = bytes.weights + n0 * k;
  for (int64_t n = n0; n < n1; ++n, src += k, out += k) {
    if (form.dtype == DType::undefined) {
      for (int64_t p = 0; p < k; ++p) out[p] = kE4m3[src[p]] * bytes.global_scale;
      continue;
    }
    const int64_t blocks = form.blocks(), size = dtype_bits(form.dtype) / 8;
    for (int64_t b = 0; b < blocks; ++b) {
      float scale;
      cpu::to_f32(form.dtype, bytes.scales + (n / form.block * blocks + b) * size, &scale, 1);
      for (int64_t p = b * form.block; p < std::min(k, (b + 1) * form.block); ++p) out[p] = kE4m3[src[p]] * scale;
    }
  }
}

}  // namespace hotset::experts

// SPDX-License-Identifier: Apache-2.0
// Conversions of weight forms, a few rows at a time.
#include "experts/weight_staging.h"

#include <algorithm>

namespace hotset::experts {
namespace {

// Code i of a stream whose codes may cross byte borders.
int code_at(const uint8_t* stream, int bits, int64_t i) {
  const int64_t bit = i * bits;
  const int shift = static_cast<int>(bit & 7);
  unsigned v = static_cast<unsigned>(stream[bit >> 3]) >> shift;
  if (shift + bits > 8) v |= static_cast<unsigned>(stream[(bit >> 3) + 1]) << (8 - shift);
  return static_cast<int>(v & ((1u << bits) - 1));
}

}  // namespace

void copy_codes(const uint8_t* src, int bits, int64_t first, int64_t count, uint8_t* dst) {
  const int width = bits == 3 ? 4 : bits, shift = bits == 3 ? 4 : 0;
  std::fill_n(dst, stream_bytes(count, width), uint8_t{0});
  for (int64_t i = 0; i < count; ++i)
    dst[i * width / 8] |= static_cast<uint8_t>((code_at(src, bits, first + i) + shift) << (i * width % 8));
}

void pack_bytes_to_4(const uint8_t* src, int64_t count, uint8_t* dst) {
  for (int64_t i = 0; i < count; i += 2) dst[i / 2] = static_cast<uint8_t>((src[i] & 15) | (i + 1 < count ? src[i + 1] << 4 : 0));
}

cpu::MinifloatMatrix minifloats(const MatrixForm& form, const MatrixBytes& bytes) {
  cpu::MinifloatMatrix w;
  w.bits = form.is_fp4() ? 4 : 8;
  w.codes = bytes.weights;
  w.row_bytes = stream_bytes(form.k, w.bits);
  w.scales = bytes.scales;
  w.scale_stride = form.blocks();
  w.scale_rows = form.scale_rows;
  w.scale_type = static_cast<int>(form.dtype);
  w.factor = bytes.global_scale;
  w.block = form.dtype == DType::undefined ? form.k : form.block;
  w.n = form.n;
  w.k = form.k;
  return w;
}

}  // namespace hotset::experts

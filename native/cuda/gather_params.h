// SPDX-License-Identifier: Apache-2.0
// Parameters of the kernels that gather slices by index, for host and device code.
#pragma once
#include <cstdint>

namespace hotset::cuda {

// y[o][i] = data[o][index[i]], slices of slice_bytes. An index below zero counts from the end; one that is out of range gives a
// slice of zero bytes: a kernel cannot fail a run.
struct GatherParams {
  const void* data;
  const void* indices;  // [n]
  void* y;
  std::int64_t outer, size, n, slice_bytes;
  std::int32_t index_bytes;  // 4 or 8
};

// The same with codes of a quantised tensor as data: y = (code - zero) * scale, of the scales' type. The quantised axis has
// `length` elements, neighbours `stride` elements apart, a scale for each `block` of them; in units of elements
//   element e of the data: line e / stride / length, place (e / stride) % length, rest e % stride
struct GatherQuantizedParams {
  const std::uint8_t* data;  // low bits first
  const void* indices;
  const void* scales;
  const std::uint8_t* zeros;  // or null
  void* y;
  std::int64_t outer, size, n, inner;  // y[outer][n][inner]; size: slices of the gather axis
  std::int64_t length, stride, block, blocks;
  std::int64_t scale_line, scale_block, scale_rest;  // strides of the scale in lines, blocks, rest
  std::int32_t index_bytes, scale_type;
  std::int32_t bits;
  std::int32_t kind;  // 0 unsigned, 1 signed codes of 4 bits; else the ONNX type of small floats
  std::int32_t default_zero;
  std::int32_t zero_row_bytes;  // > 0: zero points of a line begin at a whole byte; 0: they lie as the scales do
};

}  // namespace hotset::cuda

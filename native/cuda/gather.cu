// SPDX-License-Identifier: Apache-2.0
// Slices by index: embeddings, plain and quantised.
#include "cuda/float_types.cuh"
#include "cuda/gather_params.h"

namespace hotset::cuda::gather {
namespace {

// The slice of the data that position i asks for, or -1.
template <class P>
__device__ std::int64_t slice_of(const P& p, std::int64_t i) {
  std::int64_t index = p.index_bytes == 4 ? static_cast<const std::int32_t*>(p.indices)[i] : static_cast<const std::int64_t*>(p.indices)[i];
  if (index < 0) index += p.size;
  return index < 0 || index >= p.size ? -1 : index;
}

// Blocks along x share a slice, along y the slices; U: the unit that divides slices and addresses.
template <class U>
__device__ void slices(const GatherParams& p) {
  release_successor();
  wait_for_predecessor();
  const std::int64_t units = p.slice_bytes / static_cast<std::int64_t>(sizeof(U));
  for (std::int64_t s = blockIdx.y; s < p.outer * p.n; s += gridDim.y) {
    const std::int64_t slice = slice_of(p, s % p.n);
    const U* const from = static_cast<const U*>(p.data) + (s / p.n * p.size + slice) * units;
    U* const to = static_cast<U*>(p.y) + s * units;
    for (std::int64_t u = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; u < units;
         u += static_cast<std::int64_t>(gridDim.x) * blockDim.x)
      to[u] = slice < 0 ? U{} : from[u];
  }
}

// The value of a small float: sign, exponent, mantissa; fnuz: a bias of one more and NaN in the place of the negative zero.
__device__ float small_float(int code, int bits, int exponent_bits, bool fnuz) {
  const int mantissa = bits - 1 - exponent_bits, bias = (1 << (exponent_bits - 1)) - (fnuz ? 0 : 1), sign = 1 << (bits - 1);
  if (fnuz && code == sign) return NAN;
  const int e = (code & (sign - 1)) >> mantissa, m = code & ((1 << mantissa) - 1);
  const float size = ldexpf(static_cast<float>(e == 0 ? m : m + (1 << mantissa)), max(e, 1) - bias - mantissa);
  return code & sign ? -size : size;
}

__device__ float value_of(int code, int kind) {
  switch (kind) {
    case 0:
      return static_cast<float>(code);
    case 1:
      return static_cast<float>((code ^ 8) - 8);
    case 17:  // float8e4m3fn: no infinities, all ones is NaN
      return (code & 127) == 127 ? NAN : small_float(code, 8, 4, false);
    case 18:
      return small_float(code, 8, 4, true);
    case 19:  // float8e5m2: as float16
      return (code & 127) > 124 ? NAN : (code & 127) == 124 ? (code & 128 ? -INFINITY : INFINITY) : small_float(code, 8, 5, false);
    case 20:
      return small_float(code, 8, 5, true);
    default:  // float4e2m1
      return small_float(code, 4, 2, false);
  }
}

__device__ int code_at(const std::uint8_t* codes, int bits, std::int64_t i) {
  return codes[i * bits >> 3] >> (i * bits & 7) & ((1 << bits) - 1);
}

// A thread owns one element.
template <class T>
__device__ void quantised(const GatherQuantizedParams& p) {
  release_successor();
  wait_for_predecessor();
  const std::int64_t total = p.outer * p.n * p.inner;
  for (std::int64_t e = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; e < total;
       e += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    const std::int64_t s = e / p.inner, slice = slice_of(p, s % p.n);
    float y = 0;
    if (slice >= 0) {
      const std::int64_t at = (s / p.n * p.size + slice) * p.inner + e % p.inner;
      const std::int64_t rest = at % p.stride, place = at / p.stride % p.length, line = at / p.stride / p.length, block = place / p.block;
      float zero = static_cast<float>(p.default_zero);
      if (p.zeros) {
        const int code = p.zero_row_bytes > 0 ? code_at(p.zeros + line * p.zero_row_bytes, p.bits, block)
                                              : code_at(p.zeros, p.bits, (line * p.blocks + block) * p.stride + rest);
        zero = value_of(code, p.kind);
      }
      const T scale = static_cast<const T*>(p.scales)[line * p.scale_line + block * p.scale_block + rest * p.scale_rest];
      y = (value_of(code_at(p.data, p.bits, at), p.kind) - zero) * to_float(scale);
    }
    static_cast<T*>(p.y)[e] = from_float<T>(y);
  }
}

}  // namespace
}  // namespace hotset::cuda::gather

#define HOTSET_GATHER(U, bytes)                                                                                 \
  extern "C" __global__ void __launch_bounds__(256) hotset_gather_##bytes(const hotset::cuda::GatherParams p) { \
    hotset::cuda::gather::slices<U>(p);                                                                         \
  }
HOTSET_GATHER(std::uint8_t, 1)
HOTSET_GATHER(std::uint16_t, 2)
HOTSET_GATHER(std::uint32_t, 4)
HOTSET_GATHER(uint4, 16)

#define HOTSET_GATHER_QUANTIZED(T, suffix)                                                                                          \
  extern "C" __global__ void __launch_bounds__(256) hotset_gather_quantized_##suffix(const hotset::cuda::GatherQuantizedParams p) { \
    hotset::cuda::gather::quantised<T>(p);                                                                                          \
  }
HOTSET_GATHER_QUANTIZED(hotset::cuda::Half, f16)
HOTSET_GATHER_QUANTIZED(hotset::cuda::Bfloat, bf16)
HOTSET_GATHER_QUANTIZED(float, f32)

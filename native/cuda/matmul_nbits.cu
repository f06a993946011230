// SPDX-License-Identifier: Apache-2.0
// MatMulNBits in every form that the operator has: the kernel that says what is computed, and the decoding of rows for products of
// many rows of activations. The fast forms are in matmul_nbits_gemv.cuh.
#include "cuda/float_types.cuh"
#include "cuda/matmul_nbits_params.h"

namespace hotset::cuda::nbits {
namespace {

// Word of the SM80 stream (32 bits each) that holds k0 ... k0 + 7 of column n in four words, and the slot of the first code.
struct Place {
  std::int64_t word;
  int slot;
};
__device__ Place sm80_place(const NBitsParams& p, std::int64_t n, int k0) {
  const int e = 32 / p.bits, c = 16 / p.bits, v = 64 / e, period = 4 * e, r = k0 % 64;
  return {n / c * c * (p.k / e) + static_cast<std::int64_t>(k0 / 64) * c * v + n % c * v + 4 * (r / period), r % period / 8};
}

// Codes k0 ... k0 + 7 of row n; k0 is a multiple of 8. Rows of raw codes are padded to whole blocks of 16 or more.
__device__ void codes_at(const NBitsParams& p, std::int64_t n, int k0, int (&q)[8]) {
  const int mask = (1 << p.bits) - 1;
  if (p.prepacked) {
    const Place place = sm80_place(p, n, k0);
    const std::uint32_t* const words = reinterpret_cast<const std::uint32_t*>(p.codes) + place.word;
#pragma unroll
    for (int i = 0; i < 8; ++i) q[i] = words[i / 2] >> ((place.slot + i % 2 * (16 / p.bits)) * p.bits) & mask;
    return;
  }
  const std::uint8_t* const bytes = p.codes + n * p.row_bytes + static_cast<std::int64_t>(k0) * p.bits / 8;
#pragma unroll
  for (int i = 0; i < 8; ++i) q[i] = bytes[i * p.bits >> 3] >> (i * p.bits & 7) & mask;
}

__device__ float zero_of(const NBitsParams& p, std::int64_t n, int block) {
  if (!p.zeros) return static_cast<float>(1 << (p.bits - 1));
  if (p.zero_type != 2) return load_typed(p.zeros, p.zero_type, n * p.blocks + block);
  const std::uint8_t byte = static_cast<const std::uint8_t*>(p.zeros)[n * p.zero_row_bytes + (block * p.bits >> 3)];
  return static_cast<float>(byte >> (block * p.bits & 7) & ((1 << p.bits) - 1));
}

// A warp owns one n of up to kRows rows of A; lane l takes every 32nd group of 8 k.
constexpr int kRows = 4;
template <class T>
__device__ void multiply_any(const NBitsParams& p) {
  release_successor();
  wait_for_predecessor();
  const int n = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (n >= p.n) return;
  float sum[kRows] = {};
  const int m0 = blockIdx.y * kRows;
  const T* const a = static_cast<const T*>(p.a);
  for (int k0 = lane * 8; k0 < p.k; k0 += 256) {
    const int block = k0 >> p.block_shift;
    const float scale = load_typed(p.scales, p.scale_type, static_cast<std::int64_t>(n) * p.blocks + block), zero = zero_of(p, n, block);
    int q[8];
    codes_at(p, n, k0, q);
    for (int r = 0; r < kRows && m0 + r < p.m; ++r) {
      float part = 0;
      for (int i = 0; i < 8 && k0 + i < p.k; ++i)
        part = fmaf(to_float(a[static_cast<std::int64_t>(m0 + r) * p.k + k0 + i]), static_cast<float>(q[i]) - zero, part);
      sum[r] = fmaf(part, scale, sum[r]);
    }
  }
  for (int r = 0; r < kRows && m0 + r < p.m; ++r) {
    float y = warp_sum(sum[r]);
    if (p.bias) y += load_typed(p.bias, p.bias_type, n);
    if (lane == 0) static_cast<T*>(p.y)[static_cast<std::int64_t>(m0 + r) * p.n + n] = from_float<T>(y);
  }
}

// A thread decodes 8 k of one row; a block is one row. y: [n_rows, k] of T, (code - zero) * scale rounded once.
template <class T>
__device__ void dequantise(const NBitsParams& p) {
  release_successor();
  wait_for_predecessor();  // y may be read by a kernel that still runs
  const std::int64_t n = p.n0 + blockIdx.x;
  T* const y = static_cast<T*>(p.y) + static_cast<std::int64_t>(blockIdx.x) * p.k;
  const bool vectors = p.k % 8 == 0 && is_aligned_16(p.y);
  for (int k0 = threadIdx.x * 8; k0 < p.k; k0 += blockDim.x * 8) {
    const int block = k0 >> p.block_shift;
    const float scale = load_typed(p.scales, p.scale_type, n * p.blocks + block), zero = zero_of(p, n, block);
    int q[8];
    codes_at(p, n, k0, q);
    if (vectors) {
      constexpr int kSize = Vector<T>::kSize;
#pragma unroll
      for (int i = 0; i < 8; i += kSize) {
        Vector<T> v;
#pragma unroll
        for (int j = 0; j < kSize; ++j) v.at[j] = from_float<T>((static_cast<float>(q[i + j]) - zero) * scale);
        store_vector(y + k0 + i, v);
      }
    } else {
      for (int i = 0; i < 8 && k0 + i < p.k; ++i) y[k0 + i] = from_float<T>((static_cast<float>(q[i]) - zero) * scale);
    }
  }
}

// y (m, n) += bias, rounded again; a block is a row, n a multiple of 8.
template <class T>
__device__ void add_bias(const NBitsParams& p) {
  release_successor();
  wait_for_predecessor();
  T* const y = static_cast<T*>(p.y) + static_cast<std::int64_t>(blockIdx.x) * p.n;
  for (int i = threadIdx.x * 8; i < p.n; i += blockDim.x * 8) {
    Vector<T> v = load_vector(y + i);
    const Vector<T> bias = load_vector(static_cast<const T*>(p.bias) + i);
#pragma unroll
    for (int j = 0; j < 8; ++j) v.at[j] = from_float<T>(to_float(v.at[j]) + to_float(bias.at[j]));
    store_vector(y + i, v);
  }
}

}  // namespace
}  // namespace hotset::cuda::nbits

extern "C" __global__ void __launch_bounds__(256) hotset_nbits_bias_f16(const hotset::cuda::NBitsParams p) {
  hotset::cuda::nbits::add_bias<hotset::cuda::Half>(p);
}
extern "C" __global__ void __launch_bounds__(256) hotset_nbits_bias_bf16(const hotset::cuda::NBitsParams p) {
  hotset::cuda::nbits::add_bias<hotset::cuda::Bfloat>(p);
}

#define HOTSET_NBITS(T, suffix)                                                                                     \
  extern "C" __global__ void __launch_bounds__(256) hotset_nbits_any_##suffix(const hotset::cuda::NBitsParams p) {  \
    hotset::cuda::nbits::multiply_any<T>(p);                                                                        \
  }                                                                                                                 \
  extern "C" __global__ void __launch_bounds__(256) hotset_nbits_rows_##suffix(const hotset::cuda::NBitsParams p) { \
    hotset::cuda::nbits::dequantise<T>(p);                                                                          \
  }
HOTSET_NBITS(hotset::cuda::Half, f16)
HOTSET_NBITS(hotset::cuda::Bfloat, bf16)
HOTSET_NBITS(float, f32)

extern "C" __global__ void __launch_bounds__(256) hotset_nbits_group(const hotset::cuda::NBitsGroupParams p) {
  hotset::cuda::release_successor();
  hotset::cuda::wait_for_predecessor();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < p.m) p.rows[i] = i;
  if (i != 0) return;
  p.addresses[0] = p.codes;
  p.addresses[1] = p.scales;
  p.addresses[2] = p.zeros;
  p.offsets[0] = 0;
  p.offsets[1] = p.m;
}

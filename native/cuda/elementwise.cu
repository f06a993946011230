// SPDX-License-Identifier: Apache-2.0
// Elementwise operators of two operands that broadcast. 16-bit floats are computed in float32 and rounded once.
//
// A block owns kThreads * kPerThread elements of the output that follow each other, a thread every kThreads-th of them, so that a
// warp reads and writes whole lines. Memory bound: one kernel serves all operations, which branch alike in all threads.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/elementwise_params.h"

namespace {

using hotset::cuda::Binary;
using hotset::cuda::BinaryParams;

constexpr int kPerThread = 4;

__device__ float wide(float x) { return x; }
__device__ float wide(__half x) { return __half2float(x); }
__device__ float wide(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ void narrow(float x, float* out) { *out = x; }
__device__ void narrow(float x, __half* out) { *out = __float2half_rn(x); }
__device__ void narrow(float x, __nv_bfloat16* out) { *out = __float2bfloat16_rn(x); }

__device__ float apply(Binary op, float x, float y) {
  switch (op) {
    case Binary::add:
      return x + y;
    case Binary::sub:
      return x - y;
    case Binary::mul:
      return x * y;
    case Binary::div:
      return x / y;
  }
  return 0;
}

template <class T>
__device__ void binary(const BinaryParams& p) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");  // the operands may be results of the kernel before this one
#endif
  const T* const a = reinterpret_cast<const T*>(p.a);
  const T* const b = reinterpret_cast<const T*>(p.b);
  T* const out = reinterpret_cast<T*>(p.out);
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * blockDim.x * kPerThread + threadIdx.x;
#pragma unroll
  for (int k = 0; k < kPerThread; ++k) {
    const std::int64_t i = first + static_cast<std::int64_t>(k) * blockDim.x;
    if (i >= p.n) return;
    std::int64_t at_a = 0, at_b = 0, rest = i;
    for (int d = p.rank - 1; d > 0; --d) {
      const std::int64_t index = rest % p.dim[d];
      rest /= p.dim[d];
      at_a += index * p.stride_a[d];
      at_b += index * p.stride_b[d];
    }
    at_a += rest * p.stride_a[0];
    at_b += rest * p.stride_b[0];
    narrow(apply(p.op, wide(a[at_a]), wide(b[at_b])), out + i);
  }
}

}  // namespace

extern "C" __global__ void hotset_binary_f32(const BinaryParams p) { binary<float>(p); }
extern "C" __global__ void hotset_binary_f16(const BinaryParams p) { binary<__half>(p); }
extern "C" __global__ void hotset_binary_bf16(const BinaryParams p) { binary<__nv_bfloat16>(p); }

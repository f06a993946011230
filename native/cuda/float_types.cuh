// SPDX-License-Identifier: Apache-2.0
// Device helpers: the three float types as float32, programmatic dependent launch, sums over a warp and a block.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace hotset::cuda {

using Half = __half;
using Bfloat = __nv_bfloat16;

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(Half x) { return __half2float(x); }
__device__ inline float to_float(Bfloat x) { return __bfloat162float(x); }
template <class T>
__device__ inline T from_float(float x);
template <>
__device__ inline float from_float<float>(float x) {
  return x;
}
template <>
__device__ inline Half from_float<Half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ inline Bfloat from_float<Bfloat>(float x) {
  return __float2bfloat16_rn(x);
}

// Element i of an array whose ONNX type (1 float32, 10 float16, 16 bfloat16) is known at run time.
__device__ inline float load_typed(const void* base, int type, std::int64_t i) {
  if (type == 1) return static_cast<const float*>(base)[i];
  if (type == 10) return to_float(static_cast<const Half*>(base)[i]);
  return to_float(static_cast<const Bfloat*>(base)[i]);
}

// 16 bytes of elements.
template <class T>
struct alignas(16) Vector {
  static constexpr int kSize = 16 / sizeof(T);
  T at[kSize];
};
template <class T>
__device__ inline Vector<T> load_vector(const T* p) {
  return *reinterpret_cast<const Vector<T>*>(p);
}
template <class T>
__device__ inline void store_vector(T* p, const Vector<T>& v) {
  *reinterpret_cast<Vector<T>*>(p) = v;
}
// The same as a load in whole words that stay packed until they are used.
template <class T>
__device__ inline uint4 load_packed(const T* p) {
  return *reinterpret_cast<const uint4*>(p);
}
__device__ inline void unpack(unsigned word, const float*, float* out) { out[0] = __uint_as_float(word); }
__device__ inline void unpack(unsigned word, const Half*, float* out) {
  const float2 v = __half22float2(*reinterpret_cast<const __half2*>(&word));
  out[0] = v.x;
  out[1] = v.y;
}
__device__ inline void unpack(unsigned word, const Bfloat*, float* out) {
  out[0] = __uint_as_float(word << 16);
  out[1] = __uint_as_float(word & 0xffff0000u);
}
template <class T>
__device__ inline void unpack(const uint4& v, float (&out)[Vector<T>::kSize]) {
  constexpr int kEach = 4 / sizeof(T);
  unpack(v.x, static_cast<const T*>(nullptr), out);
  unpack(v.y, static_cast<const T*>(nullptr), out + kEach);
  unpack(v.z, static_cast<const T*>(nullptr), out + 2 * kEach);
  unpack(v.w, static_cast<const T*>(nullptr), out + 3 * kEach);
}
__device__ inline bool is_aligned_16(const void* p) { return (reinterpret_cast<std::uintptr_t>(p) & 15) == 0; }

// Programmatic dependent launch (PTX ISA, griddepcontrol): results of the kernel before this one are visible behind the wait, and
// the kernel after this one may begin once every block has released it. Constants may be read before the wait.
__device__ inline void wait_for_predecessor() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ inline void release_successor() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// The sum in every lane, always in the same order.
__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}
__device__ inline float warp_max(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
  return x;
}
// The sum over all threads of a block of whole warps in every thread; `shared`: 32 floats nobody else uses until the next barrier.
__device__ inline float block_sum(float x, float* shared) {
  x = warp_sum(x);
  if ((threadIdx.x & 31) == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  x = threadIdx.x % 32 < blockDim.x / 32 ? shared[threadIdx.x % 32] : 0.0f;
  x = warp_sum(x);
  __syncthreads();
  return x;
}
__device__ inline float block_max(float x, float* shared) {
  x = warp_max(x);
  if ((threadIdx.x & 31) == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  x = threadIdx.x % 32 < blockDim.x / 32 ? shared[threadIdx.x % 32] : -INFINITY;
  x = warp_max(x);
  __syncthreads();
  return x;
}

}  // namespace hotset::cuda

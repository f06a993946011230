// SPDX-License-Identifier: Apache-2.0
// The best logits of each row, so that a decode step returns a few bytes instead of a row of the vocabulary.
//
//   1. A block takes kSamplePart logits of a row: their largest key, or all keys sorted in shared memory and the first k kept.
//   2. A block a row joins the lists of the parts, by pairs: the place of a key in the joint list is its place in its own list and
//      the number of larger keys in the other one. Keys differ, so there are no ties and the result is the same in every run.
#include "cuda/float_types.cuh"
#include "cuda/sample_params.h"

namespace hotset::cuda::sample {
namespace {

using Key = std::uint64_t;

__device__ Key key_of(float x, int place) {
  if (x != x) return 0;
  const unsigned bits = __float_as_uint(x + 0.0f);
  const unsigned ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return static_cast<Key>(ordered) << 32 | static_cast<unsigned>(~place);
}
__device__ float value_of(Key key) {
  if (key == 0) return -INFINITY;
  const unsigned ordered = static_cast<unsigned>(key >> 32);
  return __uint_as_float(ordered & 0x80000000u ? ordered & 0x7fffffffu : ~ordered);
}
__device__ int place_of(Key key) { return key == 0 ? -1 : static_cast<int>(~static_cast<unsigned>(key)); }

__device__ Key block_max(Key key) {
  __shared__ Key shared[32];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) key = max(key, __shfl_xor_sync(~0u, key, step));
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = key;
  __syncthreads();
  key = threadIdx.x < blockDim.x / 32 ? shared[threadIdx.x] : 0;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) key = max(key, __shfl_xor_sync(~0u, key, step));
  return key;  // of the block in thread 0
}

template <class T>
__device__ void best_of_part(const SampleParams& p) {
  release_successor();
  wait_for_predecessor();
  const T* const row = static_cast<const T*>(p.logits) + blockIdx.y * p.row_stride;
  const int first = blockIdx.x * kSamplePart, last = min(first + kSamplePart, p.n);
  Key best = 0;
  for (int i = first + static_cast<int>(threadIdx.x); i < last; i += blockDim.x) best = max(best, key_of(to_float(row[i]), i));
  best = block_max(best);
  if (threadIdx.x == 0) p.candidates[blockIdx.y * p.parts + blockIdx.x] = best;
}

template <class T>
__device__ void largest_of_part(const SampleParams& p) {
  extern __shared__ Key keys[];  // kSamplePart
  release_successor();
  wait_for_predecessor();
  const T* const row = static_cast<const T*>(p.logits) + blockIdx.y * p.row_stride;
  const int first = blockIdx.x * kSamplePart;
  for (int i = threadIdx.x; i < kSamplePart; i += blockDim.x) keys[i] = first + i < p.n ? key_of(to_float(row[first + i]), first + i) : 0;
  __syncthreads();
  // Bitonic, largest first.
  for (int width = 2; width <= kSamplePart; width *= 2) {
    for (int step = width / 2; step > 0; step /= 2) {
      for (int i = threadIdx.x; i < kSamplePart / 2; i += blockDim.x) {
        const int a = i / step * step * 2 + i % step, b = a + step;
        const bool descending = (a & width) == 0;
        const Key x = keys[a], y = keys[b];
        if ((x < y) == descending) keys[a] = y, keys[b] = x;
      }
      __syncthreads();
    }
  }
  Key* const out = p.candidates + (static_cast<std::int64_t>(blockIdx.y) * p.parts + blockIdx.x) * p.k;
  for (int i = threadIdx.x; i < p.k; i += blockDim.x) out[i] = keys[i];
}

// Number of keys of a list, largest first, that are larger than `key`; absent ones (0) are larger than nothing.
__device__ int larger_than(const Key* list, int n, Key key) {
  int low = 0, high = n;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (list[middle] > key)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

}  // namespace
}  // namespace hotset::cuda::sample

using hotset::cuda::SampleParams;

// The largest key of the parts of a row.
extern "C" __global__ void __launch_bounds__(256) hotset_sample_best(const SampleParams p) {
  using namespace hotset::cuda;
  release_successor();
  wait_for_predecessor();
  sample::Key best = 0;
  for (int i = threadIdx.x; i < p.parts; i += blockDim.x)
    best = max(best, p.candidates[static_cast<std::int64_t>(blockIdx.x) * p.parts + i]);
  best = sample::block_max(best);
  if (threadIdx.x != 0) return;
  p.ids[blockIdx.x] = sample::place_of(best);
  if (p.values) p.values[blockIdx.x] = sample::value_of(best);
}

// shared: two times [parts][k] keys
extern "C" __global__ void __launch_bounds__(1024) hotset_sample_join(const SampleParams p) {
  using namespace hotset::cuda;
  extern __shared__ sample::Key lists[];
  release_successor();
  wait_for_predecessor();
  sample::Key *from = lists, *to = lists + p.parts * p.k;
  const sample::Key* const candidates = p.candidates + static_cast<std::int64_t>(blockIdx.x) * p.parts * p.k;
  for (int i = threadIdx.x; i < p.parts * p.k; i += blockDim.x) from[i] = candidates[i];
  __syncthreads();
  for (int n = p.parts; n > 1; n = (n + 1) / 2) {
    const int out = (n + 1) / 2 * p.k;
    for (int i = threadIdx.x; i < out; i += blockDim.x) to[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < n * p.k; i += blockDim.x) {
      const int list = i / p.k, other = list ^ 1;
      const sample::Key key = from[i];
      if (key == 0) continue;
      const int place = i % p.k + (other < n ? sample::larger_than(from + other * p.k, p.k, key) : 0);
      if (place < p.k) to[list / 2 * p.k + place] = key;
    }
    __syncthreads();
    sample::Key* const swap = from;
    from = to;
    to = swap;
  }
  for (int i = threadIdx.x; i < p.k; i += blockDim.x) {
    p.ids[static_cast<std::int64_t>(blockIdx.x) * p.k + i] = sample::place_of(from[i]);
    if (p.values) p.values[static_cast<std::int64_t>(blockIdx.x) * p.k + i] = sample::value_of(from[i]);
  }
}

#define HOTSET_SAMPLE(T, suffix)                                                                                    \
  extern "C" __global__ void __launch_bounds__(512) hotset_sample_best_of_part_##suffix(const SampleParams p) {     \
    hotset::cuda::sample::best_of_part<T>(p);                                                                       \
  }                                                                                                                 \
  extern "C" __global__ void __launch_bounds__(1024) hotset_sample_largest_of_part_##suffix(const SampleParams p) { \
    hotset::cuda::sample::largest_of_part<T>(p);                                                                    \
  }
HOTSET_SAMPLE(hotset::cuda::Half, f16)
HOTSET_SAMPLE(hotset::cuda::Bfloat, bf16)
HOTSET_SAMPLE(float, f32)

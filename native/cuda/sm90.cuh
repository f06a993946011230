// SPDX-License-Identifier: Apache-2.0
// Barriers in shared memory, the copy engine and turned stores of sm_90a, as PTX has them.
#pragma once
#include <cstdint>

#include "cuda/moe_wgmma_params.h"

namespace hotset::cuda {

__device__ __forceinline__ std::uint32_t shared_address(const void* p) { return static_cast<std::uint32_t>(__cvta_generic_to_shared(p)); }

__device__ __forceinline__ void barrier_init(std::uint64_t* barrier, int count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count));
}
__device__ __forceinline__ void barrier_arrive(std::uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
__device__ __forceinline__ void barrier_expect(std::uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_wait(std::uint64_t* barrier, int parity) {
  asm volatile("{\n.reg .pred p;\nAGAIN:\nmbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@p bra DONE;\nbra AGAIN;\nDONE:\n}" ::"r"(
                   shared_address(barrier)),
               "r"(parity)
               : "memory");
}
// 32 rows of 64 elements from (column, row) of the map on.
__device__ __forceinline__ void copy_box(void* to, const TensorMap* map, std::uint64_t* barrier, int column, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(to)),
      "l"(map), "r"(column), "r"(row), "r"(shared_address(barrier))
      : "memory");
}
// Rows of x for wgmma: K-major, rows of 128 bytes, 128-byte swizzle, 1024 bytes from one group of eight rows to the next.
__device__ __forceinline__ std::uint64_t operand(const void* p) {
  return (std::uint64_t{1} << 62) | (std::uint64_t{64} << 32) | (std::uint64_t{1} << 16) | ((shared_address(p) & 0x3ffff) >> 4);
}

// Eight rows of 16-bit results times eight tokens, four times, turned around: token rows of 16 bytes at the lanes' addresses.
__device__ __forceinline__ void store_turned(std::uint32_t address, const std::uint32_t* r) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r[0]), "r"(r[1]), "r"(r[2]),
               "r"(r[3])
               : "memory");
}

}  // namespace hotset::cuda

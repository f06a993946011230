// SPDX-License-Identifier: Apache-2.0
// Warpgroup matrix products of sm_90a, A in registers and B in shared memory (PTX ISA, "wgmma.mma_async"):
//
//     D (64, N) float32  +=  A (64, 16)  x  B (16, N)          A, B both float16 or both bfloat16
//
// D   N/2 registers a thread: d[4j], d[4j+1] = row r, columns 8j+2c, 8j+2c+1; d[4j+2], d[4j+3] the same of row r+8,
//     where r = 16 * (warp of the warpgroup) + lane / 4 and c = lane % 4
// A   4 registers of two elements: row r, k = 2c, 2c+1; row r+8, the same k; row r, k = 2c+8, 2c+9; row r+8
// B   columns as rows of 16 elements inside rows of 128 bytes, 128-byte swizzle; `descriptor` says where
#pragma once
#include <cstdint>

namespace hotset::cuda {

// kByColumns: rows of 128 bytes are k of B with its columns along them. kAdds: false sets D instead.
template <int N, bool kBf16, bool kByColumns = false, bool kAdds = true>
struct Wgmma;

#define HOTSET_WGMMA(TYPE)                                                                                                      \
  asm volatile(                                                                                                                 \
      "{.reg .pred p; setp.ne.b32 p, %22, 0; "                                                                                  \
      "wgmma.mma_async.sync.aligned.m64n32k16.f32." TYPE "." TYPE                                                               \
      " "                                                                                                                       \
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "                                                \
      "{%16, %17, %18, %19}, %20, p, 1, 1, %21;}"                                                                               \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), \
        "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])                                            \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor), "n"(static_cast<int>(kByColumns)), "n"(static_cast<int>(kAdds)))
template <bool kBf16, bool kByColumns, bool kAdds>
struct Wgmma<32, kBf16, kByColumns, kAdds> {
  static __device__ __forceinline__ void run(float* d, const std::uint32_t* a, std::uint64_t descriptor) {
    if constexpr (kBf16)
      HOTSET_WGMMA("bf16");
    else
      HOTSET_WGMMA("f16");
  }
};
#undef HOTSET_WGMMA

#define HOTSET_WGMMA(TYPE)                                                                                                                \
  asm volatile(                                                                                                                           \
      "{.reg .pred p; setp.ne.b32 p, %38, 0; "                                                                                            \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE                                                                         \
      " "                                                                                                                                 \
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "                        \
      "%23, %24, %25, %26, %27, %28, %29, %30, %31}, "                                                                                    \
      "{%32, %33, %34, %35}, %36, p, 1, 1, %37;}"                                                                                         \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]),           \
        "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), \
        "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), \
        "+f"(d[30]), "+f"(d[31])                                                                                                          \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor), "n"(static_cast<int>(kByColumns)), "n"(static_cast<int>(kAdds)))
template <bool kBf16, bool kByColumns, bool kAdds>
struct Wgmma<64, kBf16, kByColumns, kAdds> {
  static __device__ __forceinline__ void run(float* d, const std::uint32_t* a, std::uint64_t descriptor) {
    if constexpr (kBf16)
      HOTSET_WGMMA("bf16");
    else
      HOTSET_WGMMA("f16");
  }
};
#undef HOTSET_WGMMA

#define HOTSET_WGMMA(TYPE)                                                                                                                \
  asm volatile(                                                                                                                           \
      "{.reg .pred p; setp.ne.b32 p, %54, 0; "                                                                                            \
      "wgmma.mma_async.sync.aligned.m64n96k16.f32." TYPE "." TYPE                                                                         \
      " "                                                                                                                                 \
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "                        \
      "%23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "                         \
      "%44, %45, %46, %47}, "                                                                                                             \
      "{%48, %49, %50, %51}, %52, p, 1, 1, %53;}"                                                                                         \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]),           \
        "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), \
        "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), \
        "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), \
        "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])                            \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor), "n"(static_cast<int>(kByColumns)), "n"(static_cast<int>(kAdds)))
template <bool kBf16, bool kByColumns, bool kAdds>
struct Wgmma<96, kBf16, kByColumns, kAdds> {
  static __device__ __forceinline__ void run(float* d, const std::uint32_t* a, std::uint64_t descriptor) {
    if constexpr (kBf16)
      HOTSET_WGMMA("bf16");
    else
      HOTSET_WGMMA("f16");
  }
};
#undef HOTSET_WGMMA

#define HOTSET_WGMMA(TYPE)                                                                                                                \
  asm volatile(                                                                                                                           \
      "{.reg .pred p; setp.ne.b32 p, %70, 0; "                                                                                            \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE                                                                        \
      " "                                                                                                                                 \
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "                        \
      "%23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "                         \
      "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "                             \
      "{%64, %65, %66, %67}, %68, p, 1, 1, %69;}"                                                                                         \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]),           \
        "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), \
        "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), \
        "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), \
        "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]), \
        "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), \
        "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])                                                                                \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor), "n"(static_cast<int>(kByColumns)), "n"(static_cast<int>(kAdds)))
template <bool kBf16, bool kByColumns, bool kAdds>
struct Wgmma<128, kBf16, kByColumns, kAdds> {
  static __device__ __forceinline__ void run(float* d, const std::uint32_t* a, std::uint64_t descriptor) {
    if constexpr (kBf16)
      HOTSET_WGMMA("bf16");
    else
      HOTSET_WGMMA("f16");
  }
};
#undef HOTSET_WGMMA

#define HOTSET_WGMMA(TYPE)                                                                                                                \
  asm volatile(                                                                                                                           \
      "{.reg .pred p; setp.ne.b32 p, %86, 0; "                                                                                            \
      "wgmma.mma_async.sync.aligned.m64n160k16.f32." TYPE "." TYPE                                                                        \
      " "                                                                                                                                 \
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "                        \
      "%23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "                         \
      "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, "                         \
      "%65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79}, "                                                      \
      "{%80, %81, %82, %83}, %84, p, 1, 1, %85;}"                                                                                         \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]),           \
        "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), \
        "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), \
        "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), \
        "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]), \
        "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), \
        "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]), "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), \
        "+f"(d[70]), "+f"(d[71]), "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79])  \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor), "n"(static_cast<int>(kByColumns)), "n"(static_cast<int>(kAdds)))
template <bool kBf16, bool kByColumns, bool kAdds>
struct Wgmma<160, kBf16, kByColumns, kAdds> {
  static __device__ __forceinline__ void run(float* d, const std::uint32_t* a, std::uint64_t descriptor) {
    if constexpr (kBf16)
      HOTSET_WGMMA("bf16");
    else
      HOTSET_WGMMA("f16");
  }
};
#undef HOTSET_WGMMA

#define HOTSET_WGMMA(TYPE)                                                                                                                \
  asm volatile(                                                                                                                           \
      "{.reg .pred p; setp.ne.b32 p, %102, 0; "                                                                                           \
      "wgmma.mma_async.sync.aligned.m64n192k16.f32." TYPE "." TYPE                                                                        \
      " "                                                                                                                                 \
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "                        \
      "%23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "                         \
      "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, "                         \
      "%65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, "                         \
      "%86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "                                                                               \
      "{%96, %97, %98, %99}, %100, p, 1, 1, %101;}"                                                                                       \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]),           \
        "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), \
        "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), \
        "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), \
        "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]), \
        "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), \
        "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]), "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), \
        "+f"(d[70]), "+f"(d[71]), "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]), \
        "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), "+f"(d[88]), "+f"(d[89]), \
        "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])                                                      \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor), "n"(static_cast<int>(kByColumns)), "n"(static_cast<int>(kAdds)))
template <bool kBf16, bool kByColumns, bool kAdds>
struct Wgmma<192, kBf16, kByColumns, kAdds> {
  static __device__ __forceinline__ void run(float* d, const std::uint32_t* a, std::uint64_t descriptor) {
    if constexpr (kBf16)
      HOTSET_WGMMA("bf16");
    else
      HOTSET_WGMMA("f16");
  }
};
#undef HOTSET_WGMMA

}  // namespace hotset::cuda

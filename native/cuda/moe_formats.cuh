// SPDX-License-Identifier: Apache-2.0
// Codes of expert weights as factors of tensor-core products: exact 16-bit floats, scales apart.
//
// A product takes steps of 32 codes of a row. In the layout of mma.m16n8k16 lane 4 g + t holds codes of rows g and g + 8, four of
// each row for 16 codes; so of a step it takes 8 codes a row: pairs 0, 1 for the first mma, 2, 3 for the second. Which 8 of the 32
// is free as long as the other operand agrees: MoeOrder of a format says it, chosen so that the 8 codes lie in one word.
//
// A format has
//   Order                   the MoeOrder of the rows that meet it
//   kStepBytes              of one row
//   kColumns                rows of the matrix that a line interleaves; a line of a unit holds steps of as many rows
//   kCodes                  integers, which have zero points
//   kFolds                  scales go into the factors (exactly), one for 16 codes
//   load<Half>(...)         pairs of 8 codes, as f16 (Half = __half) or bf16
//   kRunWords               words of a run, the 32 codes of a row in one step
//   load_run(p, column, b)  run b of the row (or column of a line) at p
//   pairs<Half>(...)        of 8 codes of a run, in the same order
// `zero` is the pair of 16-bit floats to subtract, as zero_pair() makes it from a zero point; of a format that folds, the two scales
// of the step as bytes.
#pragma once
#include "cuda/moe_common.cuh"

namespace hotset::cuda::moe {

template <class Half>
struct Is16;  // which 16-bit float
template <>
struct Is16<__half> {
  static constexpr bool kBf16 = false;
};
template <>
struct Is16<__nv_bfloat16> {
  static constexpr bool kBf16 = true;
};

template <class Half>
__device__ __forceinline__ uint32_t sub_pair(uint32_t a, uint32_t b) {
  uint32_t d;
  if constexpr (Is16<Half>::kBf16) {
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(0x3f803f80u), "r"(b ^ 0x80008000u));  // sm_80 has no subtraction
  } else {
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  }
  return d;
}
template <class Half>
__device__ __forceinline__ uint32_t mul_pair(uint32_t a, uint32_t b) {
  uint32_t d;
  if constexpr (Is16<Half>::kBf16) {
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(0x80008000u));  // plus -0
  } else {
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  }
  return d;
}

// 16-bit floats whose low bits count in ones: 1024 + q as f16, 128 + q as bf16 (q < 128).
template <class Half>
constexpr uint32_t kMagic = Is16<Half>::kBf16 ? 0x43004300u : 0x64006400u;

// Codes of up to 4 bits: the magic number plus the zero point. 8-bit codes have had 128 taken off (bf16) or not (f16).
template <class Half, int bits>
__device__ __forceinline__ uint32_t zero_pair(uint32_t zero) {
  if constexpr (bits == 8 && Is16<Half>::kBf16) {
    const uint32_t b = bits_of(__float2bfloat16_rn(static_cast<float>(static_cast<int>(zero) - 128)));
    return b | b << 16;
  }
  return kMagic<Half> + (zero | zero << 16);
}

// u & mask | magic in one instruction: the compiler makes two of it.
template <uint32_t mask, uint32_t magic>
__device__ __forceinline__ uint32_t masked(uint32_t u) {
  uint32_t d;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(u), "n"(mask), "n"(magic));
  return d;
}

// Weights are read once: not to be kept near.
__device__ __forceinline__ uint4 read16(const uint8_t* p) {
  uint4 v;
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}
__device__ __forceinline__ uint2 read8(const uint8_t* p) {
  uint2 v;
  asm("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
  return v;
}
__device__ __forceinline__ uint32_t read4(const uint8_t* p) {
  uint32_t v;
  asm("ld.global.nc.u32 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}
template <int words>
__device__ __forceinline__ void read_words(const uint8_t* p, uint32_t (&out)[words]) {
  if constexpr (words % 4 == 0) {
#pragma unroll
    for (int i = 0; i < words; i += 4) {
      const uint4 v = read16(p + 4 * i);
      out[i] = v.x;
      out[i + 1] = v.y;
      out[i + 2] = v.z;
      out[i + 3] = v.w;
    }
  } else if constexpr (words == 2) {
    const uint2 v = read8(p);
    out[0] = v.x;
    out[1] = v.y;
  } else {
#pragma unroll
    for (int i = 0; i < words; ++i) out[i] = read4(p + 4 * i);
  }
}

__device__ __forceinline__ uint32_t word_at(const uint8_t* p) { return *reinterpret_cast<const uint32_t*>(p); }

// Pairs (i, i + 4) of the 8 codes of `bits` bits that stand in u: codes 0 ... 3 in the low half, 4 ... 7 in the high half.
template <class Half, int bits>
__device__ __forceinline__ void code_pairs(uint32_t u, uint32_t zero, uint32_t (&out)[4]) {
  constexpr uint32_t mask = ((1u << bits) - 1) * 0x00010001u;
#pragma unroll
  for (int i = 0; i < 4; ++i) out[i] = sub_pair<Half>(masked<mask, kMagic<Half>>(u >> bits * i), zero);
}
// The 8-bit codes at bits 0 ... 7 and 16 ... 23 of u.
template <class Half>
__device__ __forceinline__ uint32_t byte_pair(uint32_t u, uint32_t zero) {
  if constexpr (Is16<Half>::kBf16) {
    // Seven bits fit beside the magic number; the eighth tells whether 128 or 256 comes off.
    const uint32_t low = masked<0x007f007fu, 0x43004300u>(u), off = masked<0x00800080u, 0x43004300u>(~u);
    return sub_pair<Half>(sub_pair<Half>(low, off), zero);
  }
  return sub_pair<Half>(masked<0x00ff00ffu, 0x64006400u>(u), zero);
}

// Raw streams.
template <int bits>
struct RawCodes {
  static constexpr MoeOrder kOrder = bits == 8 ? MoeOrder::natural : MoeOrder::nibble;
  static constexpr int kBits = bits, kStepBytes = 4 * bits, kColumns = 1;
  static constexpr bool kCodes = true, kFolds = false;
  static constexpr int kRunWords = bits;
  __device__ static __forceinline__ void load_run(const uint8_t* row, uint32_t, uint32_t b, uint32_t (&words)[kRunWords]) {
    read_words(row + b * kStepBytes, words);
  }
  template <class Half>
  __device__ static __forceinline__ void pairs(const uint32_t (&words)[kRunWords], int w, uint32_t, uint32_t zero, uint32_t (&out)[4]) {
    if constexpr (bits == 4) {
      code_pairs<Half, 4>(words[w], zero, out);
    } else if constexpr (bits == 2) {
      code_pairs<Half, 2>(__byte_perm(words[w / 2], 0, w % 2 ? 0x4342 : 0x4140), zero, out);
    } else if constexpr (bits == 3) {
      const int bit = 24 * w, word = bit / 32;
      const uint32_t v = __funnelshift_r(words[word], words[word == 2 ? 2 : word + 1], bit & 31);
      code_pairs<Half, 3>((v & 0xfff) | (v & 0xfff000) << 4, zero, out);
    } else {
      out[0] = byte_pair<Half>(__byte_perm(words[2 * w], 0, 0x4140), zero);
      out[1] = byte_pair<Half>(__byte_perm(words[2 * w], 0, 0x4342), zero);
      out[2] = byte_pair<Half>(__byte_perm(words[2 * w + 1], 0, 0x4140), zero);
      out[3] = byte_pair<Half>(__byte_perm(words[2 * w + 1], 0, 0x4342), zero);
    }
  }
  // line: the row of a unit.
  template <class Half>
  __device__ static __forceinline__ void load(const uint8_t* line, int, int step, int t, uint32_t zero, uint32_t (&out)[4]) {
    const uint8_t* const p = line + step * kStepBytes;
    if constexpr (bits == 4) {
      code_pairs<Half, 4>(word_at(p + 4 * t), zero, out);
    } else if constexpr (bits == 2) {
      const uint32_t u = *reinterpret_cast<const uint16_t*>(p + 2 * t);
      code_pairs<Half, 2>((u & 0xff) | (u & 0xff00) << 8, zero, out);
    } else if constexpr (bits == 3) {
      const int bit = 24 * t, word = bit / 32;
      const uint32_t v = __funnelshift_r(word_at(p + 4 * word), word_at(p + 4 * min(word + 1, 2)), bit & 31);
      code_pairs<Half, 3>((v & 0xfff) | (v & 0xfff000) << 4, zero, out);
    } else {
      const uint2 w = *reinterpret_cast<const uint2*>(p + 8 * t);
      out[0] = byte_pair<Half>(__byte_perm(w.x, 0, 0x4140), zero);
      out[1] = byte_pair<Half>(__byte_perm(w.x, 0, 0x4342), zero);
      out[2] = byte_pair<Half>(__byte_perm(w.y, 0, 0x4140), zero);
      out[3] = byte_pair<Half>(__byte_perm(w.y, 0, 0x4342), zero);
    }
  }
};

// SM80 tiles (formats/sm80.h): a line holds tiles of 64 codes (two steps) of c rows, 128 bytes each.
template <int bits>
struct Sm80Codes {
  static constexpr MoeOrder kOrder = MoeOrder::tiles;
  static constexpr int kBits = bits, kColumns = 16 / bits, kStepBytes = 4 * bits;
  static constexpr bool kCodes = true, kFolds = false;
  static constexpr int kRunWords = bits == 8 ? 8 : 4;
  __device__ static __forceinline__ void load_run(const uint8_t* line, uint32_t column, uint32_t b, uint32_t (&words)[kRunWords]) {
    read_words(line + b / 2 * 128 + column * (8 * bits) + (bits == 2 ? 0 : b % 2 * (4 * bits)), words);
  }
  template <class Half>
  __device__ static __forceinline__ void pairs(const uint32_t (&words)[kRunWords], int w, uint32_t b, uint32_t zero, uint32_t (&out)[4]) {
    if constexpr (bits == 4) {
      code_pairs<Half, 4>(words[w], zero, out);
    } else if constexpr (bits == 2) {
      code_pairs<Half, 2>(words[w] >> 8 * (b & 1), zero, out);
    } else {
      out[0] = byte_pair<Half>(words[w] & 0x00ff00ffu, zero);
      out[1] = byte_pair<Half>(words[w] >> 8 & 0x00ff00ffu, zero);
      out[2] = byte_pair<Half>(words[w + 4] & 0x00ff00ffu, zero);
      out[3] = byte_pair<Half>(words[w + 4] >> 8 & 0x00ff00ffu, zero);
    }
  }
  template <class Half>
  __device__ static __forceinline__ void load(const uint8_t* line, int column, int step, int t, uint32_t zero, uint32_t (&out)[4]) {
    const uint8_t* const p = line + step / 2 * 128 + column * (8 * bits);
    const int half = step & 1;
    if constexpr (bits == 4) {
      code_pairs<Half, 4>(word_at(p + 16 * half + 4 * t), zero, out);
    } else if constexpr (bits == 2) {
      code_pairs<Half, 2>(word_at(p + 4 * t) >> 8 * half, zero, out);
    } else {
      const uint32_t a = word_at(p + 32 * half + 4 * t), b = word_at(p + 32 * half + 16 + 4 * t);
      out[0] = byte_pair<Half>(a & 0x00ff00ffu, zero);
      out[1] = byte_pair<Half>(a >> 8 & 0x00ff00ffu, zero);
      out[2] = byte_pair<Half>(b & 0x00ff00ffu, zero);
      out[3] = byte_pair<Half>(b >> 8 & 0x00ff00ffu, zero);
    }
  }
};

// E4M3.
struct Fp8Codes {
  static constexpr MoeOrder kOrder = MoeOrder::natural;
  static constexpr int kBits = 8, kStepBytes = 32, kColumns = 1;
  static constexpr bool kCodes = false, kFolds = false;
  static constexpr int kRunWords = 8;
  __device__ static __forceinline__ void load_run(const uint8_t* row, uint32_t, uint32_t b, uint32_t (&words)[kRunWords]) {
    read_words(row + b * kStepBytes, words);
  }
  template <class Half>
  __device__ static __forceinline__ void pairs(const uint32_t (&words)[kRunWords], int w, uint32_t, uint32_t, uint32_t (&out)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = pair<Half>(words[2 * w + i / 2] >> 16 * (i % 2) & 0xffff);
  }
  template <class Half>
  __device__ static __forceinline__ uint32_t pair(uint32_t b) {  // of the two low bytes
    if constexpr (!Is16<Half>::kBf16) {
#if __CUDA_ARCH__ >= 890
      uint32_t d;
      asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(d) : "h"(static_cast<uint16_t>(b)));
      return d;
#endif
    }
    const uint32_t u = __byte_perm(b, 0, 0x1404);  // each byte in the high half of its 16 bits
    constexpr int shift = Is16<Half>::kBf16 ? 4 : 1;
    constexpr uint32_t bias = Is16<Half>::kBf16 ? 0x7b807b80u : 0x5c005c00u;  // 2^120, 2^8
    uint32_t d = mul_pair<Half>((u & 0x80008000u) | (u >> shift & (0x7f007f00u >> shift)), bias);
    if ((b & 0x7f) == 0x7f) d |= 0x00007fffu;
    if ((b & 0x7f00) == 0x7f00) d |= 0x7fff0000u;
    return d;
  }
  template <class Half>
  __device__ static __forceinline__ void load(const uint8_t* line, int, int step, int t, uint32_t, uint32_t (&out)[4]) {
    const uint2 w = *reinterpret_cast<const uint2*>(line + step * kStepBytes + 8 * t);
    out[0] = pair<Half>(w.x & 0xffff);
    out[1] = pair<Half>(w.x >> 16);
    out[2] = pair<Half>(w.y & 0xffff);
    out[3] = pair<Half>(w.y >> 16);
  }
};

// E2M1, neighbours along k in one byte. With scales of E4M3 for 16 codes each (nvfp4) these are multiplied in: such a product has a 16-bit
// float of its own.
template <bool folds>
struct Fp4Codes {
  static constexpr MoeOrder kOrder = MoeOrder::nibble;
  static constexpr int kBits = 4, kStepBytes = 16, kColumns = 1;
  static constexpr bool kCodes = false, kFolds = folds;
  static constexpr int kRunWords = 4;
  __device__ static __forceinline__ void load_run(const uint8_t* row, uint32_t, uint32_t b, uint32_t (&words)[kRunWords]) {
    read_words(row + b * kStepBytes, words);
  }
  // `scales`: bytes of the first and the second half of the run.
  template <class Half>
  __device__ static __forceinline__ void pairs(const uint32_t (&words)[kRunWords], int w, uint32_t, uint32_t scales, uint32_t (&out)[4]) {
    decode<Half>(words[w], w < 2 ? scales & 0xff : scales >> 8, out);
  }
  template <class Half>
  __device__ static __forceinline__ void decode(uint32_t w, uint32_t scale_byte, uint32_t (&out)[4]) {
    // Exponent and fraction of E2M1 fall onto the low exponent bits and the top fraction bit; a power of two makes up for the bias.
    constexpr int shift = Is16<Half>::kBf16 ? 6 : 3;
    constexpr uint32_t bias = Is16<Half>::kBf16 ? 0x7e807e80u : 0x74007400u;  // 2^126, 2^14
    const uint32_t scale = folds ? Fp8Codes::pair<Half>(scale_byte * 0x101u) : 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t u = w << (12 - 4 * i);
      out[i] = mul_pair<Half>((u & 0x80008000u) | (u >> shift & (0x70007000u >> shift)), bias);
      if (folds) out[i] = mul_pair<Half>(out[i], scale);
    }
  }
  // Lanes 0 and 1 have codes of the first 16 columns, 2 and 3 of the others.
  template <class Half>
  __device__ static __forceinline__ void load(const uint8_t* line, int, int step, int t, uint32_t scales, uint32_t (&out)[4]) {
    decode<Half>(word_at(line + step * kStepBytes + 4 * t), t < 2 ? scales & 0xff : scales >> 8, out);
  }
};

// 16-bit floats of the type of the product.
struct Dense16 {
  static constexpr MoeOrder kOrder = MoeOrder::natural;
  static constexpr int kBits = 16, kStepBytes = 64, kColumns = 1;
  static constexpr bool kCodes = false, kFolds = false;
  static constexpr int kRunWords = 16;
  __device__ static __forceinline__ void load_run(const uint8_t* row, uint32_t, uint32_t b, uint32_t (&words)[kRunWords]) {
    read_words(row + b * kStepBytes, words);
  }
  template <class Half>
  __device__ static __forceinline__ void pairs(const uint32_t (&words)[kRunWords], int w, uint32_t, uint32_t, uint32_t (&out)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = words[4 * w + i];
  }
  template <class Half>
  __device__ static __forceinline__ void load(const uint8_t* line, int, int step, int t, uint32_t, uint32_t (&out)[4]) {
    const uint4 w = *reinterpret_cast<const uint4*>(line + step * kStepBytes + 16 * t);
    out[0] = w.x;
    out[1] = w.y;
    out[2] = w.z;
    out[3] = w.w;
  }
};

// d += a b for 16 rows of codes and 8 columns; b of one mma is two registers.
template <class Half>
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  if constexpr (Is16<Half>::kBf16)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// 16 bytes (or fewer) from global to shared memory while the thread goes on.
__device__ __forceinline__ void copy_async(uint8_t* to, const uint8_t* from, uint32_t bytes) {
  const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  if (bytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
  else if (bytes == 8)
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(at), "l"(from) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(from) : "memory");
}
__device__ __forceinline__ void copy_async16(uint8_t* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))), "l"(from)
               : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int pending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

// Where the 16 rows of a panel come from: rows 0 ... 7 of it are rows [base[0], base[0] + 8) of `place[0]`, the others [base[1], ...)
// of place[1]. Lines beyond the last row are copies of it. Bases are multiples of 8.
struct Panel {
  const MoePlace* place[2];
  uint32_t base[2];
};

// Begins to copy steps [step0, step0 + steps) of a panel into `to`, laid out as `unit` says: 16 / kColumns lines of weights, then 16
// rows of scales, whose first byte stands at its address modulo 4. One warp.
template <class F>
__device__ __forceinline__ void copy_unit(const MoeForm& f, const MoeUnit& unit, const Panel& panel, uint32_t step0, uint32_t steps,
                                          uint8_t* to, uint32_t lane) {
  constexpr uint32_t lines = 16 / F::kColumns, lines_of_base = 8 / F::kColumns;
  const uint32_t bytes = steps * F::kStepBytes * F::kColumns, last = f.n / F::kColumns - 1, granule = unit.granule;
  const uint64_t offset = static_cast<uint64_t>(step0) * F::kStepBytes * F::kColumns;
#pragma unroll
  for (uint32_t i = 0; i < lines; i += 4) {
    const uint32_t line = i + lane / 8;
    if (lines < 4 && line >= lines) break;
    const uint32_t half = line >= lines_of_base, row = min(panel.base[half] / F::kColumns + line - half * lines_of_base, last);
    const uint8_t* const from = panel.place[half]->weights + static_cast<uint64_t>(row) * (f.row_bytes * F::kColumns) + offset;
    for (uint32_t at = lane % 8 * granule; at < bytes; at += 8 * granule) copy_async(to + line * unit.line_pitch + at, from + at, granule);
  }
  if (f.type == MoeType::none || F::kBits == 16) return;
  const uint32_t size = f.type == MoeType::f32 ? 4 : f.type == MoeType::f16 || f.type == MoeType::bf16 ? 2 : 1;
  const uint32_t b0 = step0 * 32 >> f.block_shift, b1 = (((step0 + steps) * 32 - 1) >> f.block_shift) + 1;
  const uint32_t r = lane / 2, half = r >= 8, row = min(panel.base[half] + r - half * 8, f.n - 1) >> f.scale_row_shift;
  const uint8_t* const from = panel.place[half]->scales + (static_cast<uint64_t>(row) * f.blocks + b0) * size;
  const uint32_t phase = static_cast<uint32_t>(reinterpret_cast<uint64_t>(from) & 3);
  for (uint32_t at = lane % 2 * 4; at < phase + (b1 - b0) * size; at += 8)
    copy_async(to + unit.scale_at + r * unit.scale_pitch + at, from - phase + at, 4);
}

}  // namespace hotset::cuda::moe

// SPDX-License-Identifier: Apache-2.0
// Scaled dot-product attention of a tile of query rows over a range of key and value rows, with online softmax.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace hotset::cpu {

// How a row of keys or values is stored. Integer codes are read as they are: their scales belong into q and the result.
enum class KvFormat : int { f32, f16, bf16, i8, i4, f8 };  // i4: two codes + 8 in a byte, low first; f8: e4m3fn

enum class BiasFormat : int { none, f32, f16, bf16, boolean };  // boolean: false hides the key

inline constexpr int kAttentionTileRows = 96;  // most query rows of a tile
inline constexpr int kAttentionKeyBlock = 64;  // keys between two updates of the softmax state
static inline int attention_ld(int64_t d) { return static_cast<int>((d + 15) & ~int64_t{15}); }  // floats from row to row of q, acc

// Rows share one K/V head. State (m, l, acc) goes in and out, so that a range of keys may come in pieces:
//   m = largest logit, l = sum of exp(logit - m), acc = sum of exp(logit - m) * v;  empty: m = -inf, l = 0, acc = 0.
// Logit of row r and key j in [lo[r], hi[r]):  cap(q_r . k_j) + bias[r][j] + key_bias[j],  cap(x) = softcap * tanh(x / softcap).
struct AttentionTile {
  int rows, d, dv;
  const float* q;  // rows x attention_ld(d), scaled; zeros from column d on
  KvFormat k_format, v_format;
  const void* k;  // row of key `first`; unaligned is fine
  const void* v;
  ptrdiff_t k_stride, v_stride;  // bytes from row to row
  int64_t first;                 // key index of the row that k and v point at
  int64_t begin, end;            // keys to add, first <= begin
  const int64_t* lo;             // non-decreasing, as is hi: rows are sorted by position
  const int64_t* hi;
  float softcap;  // 0: off
  BiasFormat bias_format;
  const void* const* bias;  // of each row: its element for key 0
  const float* key_bias;    // of key 0, or null
  float* m;                 // rows
  float* l;                 // rows
  float* acc;               // rows x attention_ld(dv)
  float* logits;            // null, or rows x logits_ld: receives the logits of visible keys
  int64_t logits_ld;
  float* scratch;  // attention_scratch_floats(rows, d, dv), 64-byte aligned
};

static inline size_t attention_scratch_floats(int rows, int d, int dv) {
  const size_t block = kAttentionKeyBlock;
  return block * (static_cast<size_t>(rows) + 2 * static_cast<size_t>(attention_ld(d)) + static_cast<size_t>(attention_ld(dv)));
}

struct AttentionKernels {
  void (*attend)(const AttentionTile& tile);
  // x[0, 2 * half) in place; pairs (i, half + i), or (2i, 2i + 1) when interleaved. Two products, then one sum: the same
  // bits on every CPU.
  void (*rotate)(float* x, const float* cos, const float* sin, int64_t half, bool interleaved);
  // y = x * a, times s[i * step] if s is not null
  void (*scale)(const float* x, float a, const float* s, int64_t step, float* y, int64_t n);
  // Codes of x / s[i * step], to nearest even, saturating. i8, i4 or f8.
  void (*quantize)(KvFormat format, const float* x, const float* s, int64_t step, void* codes, int64_t n);
};

void attention_kernels_scalar(AttentionKernels* k);
void attention_kernels_avx2(AttentionKernels* k);
void attention_kernels_avx512(AttentionKernels* k);
void attention_kernels_neon(AttentionKernels* k);
const AttentionKernels& attention_kernels();  // the best ones of this CPU
const char* attention_isa();

}  // namespace hotset::cpu

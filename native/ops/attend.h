// SPDX-License-Identifier: Apache-2.0
// Attention of whole tensors, shared by the operators: cuts the work into tiles and key ranges, merges, writes the output.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/tensor.h"
#include "base/thread_pool.h"
#include "cpu_avx/attention.h"

namespace hotset::ops {

inline size_t dtype_bytes(DType type) { return static_cast<size_t>(dtype_bits(type)) / 8; }

// Consecutive keys of one batch entry: head g's row i is at k + g * k_head + i * k_row (bytes).
struct KvRows {
  const uint8_t* k = nullptr;
  const uint8_t* v = nullptr;
  ptrdiff_t k_head = 0, k_row = 0, v_head = 0, v_row = 0;
  int64_t first = 0, count = 0;  // key index of row 0
};

// One batch entry: query row s < n_rows has position `position + s` and sees keys j < min(limit, causal bound), above the window.
struct AttendEntry {
  int64_t n_rows = 0, position = 0, limit = 0;
  KvRows pieces[2];               // in key order
  const KvRows* pages = nullptr;  // not null: these instead of the pieces, also in key order; keys on none of them do not exist
  int64_t n_pages = 0;
};

enum class QkOutput { none, logits, weights };

struct AttendParams {
  int64_t batch = 0, heads = 0, kv_heads = 0, rows = 0, keys = 0;  // keys: columns of bias and qk, at least every limit
  int64_t d = 0, dv = 0;
  const AttendEntry* entries = nullptr;
  bool causal = false;
  int64_t window = 0;  // 0: off
  float scale = 1, softcap = 0;
  // Writes the query vector of head h, row s, d floats, not scaled.
  void (*load_query)(const void* context, int64_t b, int64_t h, int64_t s, float* q) = nullptr;
  const void* context = nullptr;
  cpu::KvFormat k_format = cpu::KvFormat::f32, v_format = cpu::KvFormat::f32;
  const float* k_scale = nullptr;  // of kv head 0; of head g at + g * scale_head, channel c at + c * scale_step
  const float* v_scale = nullptr;
  int64_t k_scale_head = 0, k_scale_step = 0, v_scale_head = 0, v_scale_step = 0;
  const Tensor* bias = nullptr;                // f32, f16, bf16 or bool
  int64_t bias_b = 0, bias_h = 0, bias_s = 0;  // elements; columns are dense
  const float* key_bias = nullptr;             // batch x keys
  const Tensor* sink = nullptr;                // one extra logit a head
  bool zero_sink = false;                      // it is 0 for all heads
  Tensor* output = nullptr;
  int64_t out_b = 0, out_h = 0, out_s = 0;  // elements
  Tensor* qk = nullptr;                     // [batch, heads, rows, keys]
  QkOutput qk_output = QkOutput::none;
  float qk_hidden = 0;  // what invisible keys get
};

// Of these params only sizes, qk_output, causal and window are read; entries may be null: `keys` is the bound then.
size_t attend_workspace(const AttendParams& p, int n_threads);
void attend(const AttendParams& p, void* workspace, ThreadPool* pool);

// Heads of a tensor: row s of head h of entry b starts at element b * .b + h * .h + s * .s of data.
struct HeadRows {
  uint8_t* data = nullptr;
  DType dtype = DType::undefined;
  int64_t heads = 0, rows = 0, width = 0;
  int64_t b = 0, h = 0, s = 0;
  uint8_t* at(int64_t batch, int64_t head, int64_t row) const {
    return data + dtype_bytes(dtype) * static_cast<size_t>(batch * b + head * h + row * s);
  }
  // As keys or values from key `first` on.
  void set_piece(KvRows* piece, int64_t batch, int64_t first, bool values) const;
};
// Of a tensor [B, heads, rows, width] (then `heads` is not read), [B, rows, heads * width], or [B, rows, heads, parts, width], part `part`.
HeadRows head_rows(const Tensor& t, int64_t heads, int part = 0);
// present = past (may be null), then rows; all [B, heads, ., width] in effect.
void write_present(const Tensor* past, const HeadRows& rows, Tensor* present, ThreadPool* pool);
// Strides of a bias that broadcasts to [batch, heads, rows, keys]; false when it does not, or its last dimension is not keys.
bool bias_strides(const Shape& bias, int64_t batch, int64_t heads, int64_t rows, int64_t keys, AttendParams* p);

cpu::KvFormat kv_format(DType type, int bits);  // f32, f16, bf16, i8, f8e4m3fn; u8 with 4 bits
inline size_t round_up_64(size_t n) { return (n + 63) & ~size_t{63}; }
// Multiply-adds below which waking other threads costs more than it brings.
inline constexpr int64_t kParallelWork = 400'000;

// Calls f(task, thread) for all tasks, on other threads too if the work is worth it.
template <class F>
void for_tasks(ThreadPool* pool, int64_t n_tasks, bool parallel, F&& f) {
  if (parallel) return pool->parallel_for(n_tasks, f);
  for (int64_t i = 0; i < n_tasks; ++i) f(i, 0);
}

}  // namespace hotset::ops

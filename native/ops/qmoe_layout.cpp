// SPDX-License-Identifier: Apache-2.0
// Raw or prepacked, block-wise or row-wise: the rules by which a QMoE node tells how its weights are stored.
#include "ops/qmoe_layout.h"

namespace hotset::ops {
namespace {

using experts::MatrixForm;
using experts::Storage;
using experts::ZeroPoints;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

Shape raw_shape(const DeclaredMatrix& m, int64_t n_experts) { return {n_experts, m.n, ceil_div(m.k * m.bits, 8)}; }
Shape prepacked_shape(const DeclaredMatrix& m, int64_t n_experts) { return {n_experts, m.k, ceil_div(m.n * m.bits, 8)}; }

bool can_be_prepacked(const DeclaredMatrix& m) { return m.bits != 3 && m.k % 64 == 0 && m.n % (16 / m.bits) == 0; }

long long ll(int64_t v) { return static_cast<long long>(v); }

Status refuse_size(const DeclaredMatrix& m) {
  if (m.bits == 3) return fail(Code::invalid_model, "%s_experts_weights holds 3-bit codes, which cannot be prepacked", m.name);
  return fail(Code::invalid_model, "%s_experts_weights with N %lld and K %lld cannot be prepacked: K must be a multiple of 64 and N of %d",
              m.name, ll(m.n), ll(m.k), 16 / m.bits);
}

}  // namespace

Status decide_layout(const DeclaredMatrix* matrices, int count, int64_t n_experts, int64_t weights_prepacked, bool has_fc3,
                     bool* prepacked, bool* is_guess) {
  const DeclaredMatrix *says_raw = nullptr, *says_prepacked = nullptr, *impossible = nullptr;
  for (int i = 0; i < count; ++i) {
    const DeclaredMatrix& m = matrices[i];
    const Shape raw = raw_shape(m, n_experts), packed = prepacked_shape(m, n_experts);
    const bool as_raw = *m.weights == raw, as_packed = m.bits != 3 && *m.weights == packed;
    HOTSET_FAIL_IF(!as_raw && !as_packed, invalid_model,
                   "%s_experts_weights has shape %s, expected %s (raw) or %s (prepacked) for N %lld, K %lld and %d bits", m.name,
                   to_text(*m.weights).c_str(), to_text(raw).c_str(), to_text(packed).c_str(), ll(m.n), ll(m.k), m.bits);
    HOTSET_FAIL_IF(weights_prepacked == 0 && !as_raw, invalid_model, "%s_experts_weights has shape %s, but weights_prepacked 0 needs %s",
                   m.name, to_text(*m.weights).c_str(), to_text(raw).c_str());
    if (as_raw && !as_packed) says_raw = &m;
    if (as_packed && !as_raw) says_prepacked = &m;
    if (!can_be_prepacked(m)) impossible = &m;
  }
  if (weights_prepacked >= 0) {
    *prepacked = weights_prepacked == 1;
  } else if (says_raw || says_prepacked) {
    HOTSET_FAIL_IF(says_raw && says_prepacked, invalid_model, "%s_experts_weights is declared raw, but %s_experts_weights prepacked",
                   says_raw->name, says_prepacked->name);
    *prepacked = says_prepacked != nullptr;
  } else {
    // All square. With FC3 no exporter and no kernel has them prepacked; without, the CUDA provider takes them as prepacked.
    *prepacked = !has_fc3 && !impossible;
    *is_guess = *prepacked;
  }
  return *prepacked && impossible ? refuse_size(*impossible) : Status();
}

Status describe_matrix(const DeclaredMatrix& m, int64_t n_experts, int64_t block_size, MatrixForm* form) {
  const bool block_wise = block_size > 0 && m.scales->rank == 3;
  const int64_t blocks = block_wise ? ceil_div(m.k, block_size) : 1;
  const Shape by_row{n_experts, m.n}, by_block{n_experts, m.n, blocks};
  HOTSET_FAIL_IF(!(*m.scales == by_row) && !(*m.scales == by_block), invalid_model,
                 "%s_scales has shape %s, expected %s for one scale a row or %s for block_size %lld, as N is %lld and K %lld", m.name,
                 to_text(*m.scales).c_str(), to_text(by_row).c_str(),
                 to_text(Shape{n_experts, m.n, block_size > 0 ? ceil_div(m.k, block_size) : 1}).c_str(), ll(block_size), ll(m.n), ll(m.k));

  form->storage = Storage::raw;
  form->bits = m.bits;
  form->dtype = m.scale_dtype;
  form->n = m.n;
  form->k = m.k;
  form->block = block_wise ? block_size : m.k;
  form->row_bytes = ceil_div(m.k * m.bits, 8);
  if (!m.zero_points) return {};

  if (!block_wise) {
    const Shape expected{n_experts, ceil_div(m.n * m.bits, 8)};
    HOTSET_FAIL_IF(!(*m.zero_points == expected), invalid_model, "%s_zero_points has shape %s, expected %s for one scale a row", m.name,
                   to_text(*m.zero_points).c_str(), to_text(expected).c_str());
    form->zero_points = ZeroPoints::along_n;
    return {};
  }
  const Shape packed{n_experts, m.n, ceil_div(blocks * m.bits, 8)};
  if (*m.zero_points == packed) {
    form->zero_points = ZeroPoints::packed;
  } else if (m.bits == 4 && *m.zero_points == by_block) {
    form->zero_points = ZeroPoints::bytes;
  } else {
    return fail(Code::invalid_model, "%s_zero_points has shape %s, expected %s for %lld blocks of %d-bit codes", m.name,
                to_text(*m.zero_points).c_str(), to_text(packed).c_str(), ll(blocks), m.bits);
  }
  return {};
}

Status describe_fp4(const DeclaredMatrix& m, int64_t n_experts, int64_t block, bool by_k, MatrixForm* form) {
  HOTSET_FAIL_IF(m.n % 2 != 0 || m.k % block != 0, invalid_model,
                 "%s_experts_weights with N %lld and K %lld: K must be a multiple of %lld and N even", m.name, ll(m.n), ll(m.k), ll(block));
  // Bytes along K may be declared as bytes along N are: the shape does not tell them apart.
  const Shape by_n_shape{n_experts, m.k, m.n / 2}, by_k_shape{n_experts, m.n, m.k / 2}, scales{n_experts, m.n, m.k / block};
  HOTSET_FAIL_IF(!(*m.weights == by_n_shape) && !(by_k && *m.weights == by_k_shape), invalid_model,
                 "%s_experts_weights has shape %s, expected %s for N %lld and K %lld", m.name, to_text(*m.weights).c_str(),
                 to_text(by_n_shape).c_str(), ll(m.n), ll(m.k));
  HOTSET_FAIL_IF(!(*m.scales == scales), invalid_model, "%s_scales has shape %s, expected %s for blocks of %lld", m.name,
                 to_text(*m.scales).c_str(), to_text(scales).c_str(), ll(block));
  form->storage = by_k ? Storage::fp4_by_k : Storage::fp4_by_n;
  form->dtype = m.scale_dtype;
  form->n = m.n;
  form->k = m.k;
  form->block = block;
  return {};
}

Status describe_fp8(const DeclaredMatrix& m, int64_t n_experts, int64_t block_size, MatrixForm* form) {
  const Shape weights{n_experts, m.n, m.k};
  HOTSET_FAIL_IF(!(*m.weights == weights), invalid_model, "%s_experts_weights has shape %s, expected %s", m.name,
                 to_text(*m.weights).c_str(), to_text(weights).c_str());
  form->storage = Storage::fp8;
  form->n = m.n;
  form->k = m.k;
  form->block = m.k;
  if (block_size <= 0) return {};
  const Shape scales{n_experts, ceil_div(m.n, block_size), ceil_div(m.k, block_size)};
  HOTSET_FAIL_IF(!(*m.scales == scales), invalid_model, "%s_scales has shape %s, expected %s for squares of block_size %lld", m.name,
                 to_text(*m.scales).c_str(), to_text(scales).c_str(), ll(block_size));
  form->dtype = m.scale_dtype;
  form->block = form->scale_rows = block_size;
  return {};
}

}  // namespace hotset::ops

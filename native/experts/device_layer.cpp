// SPDX-License-Identifier: Apache-2.0
// Fields of an expert layer, one by one.
#include "experts/device_layer.h"

#include <bit>

#include "experts/weight_staging.h"

namespace hotset::experts {
namespace {

template <class Device, class Host>
constexpr Device as(Host value) {  // enumerators stand in the same order on both sides
  return static_cast<Device>(static_cast<uint32_t>(value));
}
static_assert(as<cuda::MoeStorage>(Storage::fp8) == cuda::MoeStorage::fp8 && as<cuda::MoeStorage>(Storage::sm80) == cuda::MoeStorage::sm80);
static_assert(as<cuda::MoeZeros>(ZeroPoints::along_n) == cuda::MoeZeros::along_n);
static_assert(as<cuda::MoePairing>(Pairing::separate) == cuda::MoePairing::separate);
static_assert(as<cuda::MoeAct>(ActivationKind::geglu) == cuda::MoeAct::geglu &&
              as<cuda::MoeAct>(ActivationKind::silu) == cuda::MoeAct::silu);

uint32_t log2_of(int64_t power) { return static_cast<uint32_t>(std::countr_zero(static_cast<uint64_t>(power))); }

}  // namespace

cuda::MoeType device_type(DType type) {
  switch (type) {
    case DType::f32:
      return cuda::MoeType::f32;
    case DType::f16:
      return cuda::MoeType::f16;
    case DType::bf16:
      return cuda::MoeType::bf16;
    case DType::f8e4m3fn:
      return cuda::MoeType::e4m3;
    case DType::f8e8m0:
      return cuda::MoeType::e8m0;
    default:
      return cuda::MoeType::none;
  }
}

cuda::MoeForm device_form(const MatrixForm& form) {
  cuda::MoeForm f = {};
  f.storage = as<cuda::MoeStorage>(form.storage);
  f.zeros = as<cuda::MoeZeros>(form.zero_points);
  f.type = device_type(form.dtype);
  f.bias_type = device_type(form.bias_dtype);
  f.bits = form.storage == Storage::dense ? static_cast<uint32_t>(dtype_bits(form.dtype))
           : form.is_integer()            ? static_cast<uint32_t>(form.bits)
           : form.is_fp4()                ? 4
                                          : 8;
  f.n = static_cast<uint32_t>(form.n);
  f.k = static_cast<uint32_t>(form.k);
  f.blocks = static_cast<uint32_t>(form.blocks());
  f.block_shift = form.blocks() == 1 ? 31 : log2_of(form.block);
  f.scale_row_shift = log2_of(form.scale_rows);
  f.row_bytes = static_cast<uint32_t>(form.storage == Storage::raw ? form.row_bytes : stream_bytes(form.k, static_cast<int>(f.bits)));
  f.zero_row_bytes = static_cast<uint32_t>(form.zero_points == ZeroPoints::packed ? stream_bytes(form.blocks(), form.bits) : form.blocks());
  return f;
}

cuda::MoeLayer device_layer(const ExpertLayer& layer, const Router& router) {
  cuda::MoeLayer d;
  d.type = device_type(layer.dtype);
  d.hidden = static_cast<uint32_t>(layer.hidden);
  d.inter = static_cast<uint32_t>(layer.inter);
  d.n_experts = static_cast<uint32_t>(layer.n_experts);
  d.k = static_cast<uint32_t>(layer.k);
  d.normalize = router.normalize;
  d.sparse_mixer = router.sparse_mixer;
  d.pairing = as<cuda::MoePairing>(layer.pairing);
  const Activation& a = layer.activation;
  d.activation = {as<cuda::MoeAct>(a.kind), a.alpha, a.beta, a.limit, a.limit_after};
  d.form[0] = device_form(layer.fc1.form());
  d.form[1] = device_form(layer.fc2.form());
  d.form[1].bias_type = device_type(layer.fc2_bias);
  if (layer.pairing == Pairing::separate) d.form[2] = device_form(layer.fc3.form());
  if (a.kind == ActivationKind::silu && layer.pairing != Pairing::none)
    d.activation = {cuda::MoeAct::swiglu, 1, 0, std::numeric_limits<float>::infinity(), 0};
  return d;
}

cuda::MoePlace device_place(const MatrixBytes& bytes) {
  return {bytes.weights, bytes.scales, bytes.zero_points, bytes.bias, bytes.global_scale, 0};
}

}  // namespace hotset::experts

// SPDX-License-Identifier: Apache-2.0
// Random expert layers with their bytes on the host and on the device.
#pragma once
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "base/thread_pool.h"
#include "cuda/moe.h"
#include "experts/device_layer.h"
#include "experts/expert_layer.h"
#include "experts/router.h"
#include "experts/weight_staging.h"

namespace moe_cases {

using namespace hotset;
using namespace hotset::experts;

inline std::mt19937_64 rng;
inline float uniform(float low, float high) { return std::uniform_real_distribution<float>(low, high)(rng); }
inline void must(const Status& status) {
  if (status.ok()) return;
  std::printf("%s\n", status.text().c_str());
  std::exit(1);
}
template <class T>
T must(Result<T> result) {
  if (!result.ok()) must(result.take_status());
  return std::move(result.value());
}

struct Case {
  const char* name;
  Storage storage;
  int bits;
  int64_t block;  // 0: one scale a row
  ZeroPoints zeros;
  DType scale;  // of dense: of the elements
  int64_t hidden, inter;
  Pairing pairing;
  DType type;
  int64_t n_experts = 6, k = 2;
  bool bias = true;
  int bits2 = 0;  // of FC2; 0: the same
  ActivationKind activation = ActivationKind::swiglu;
  int64_t base = 256;  // the address of weights is this modulo 256
};

inline MatrixForm make_form(const Case& c, int bits, int64_t n, int64_t k) {
  MatrixForm f;
  f.storage = c.storage;
  f.bits = bits;
  f.n = n;
  f.k = k;
  f.block = c.block ? c.block : k;
  if (c.storage == Storage::fp8 && c.block) f.scale_rows = c.block;
  f.row_bytes = stream_bytes(k, bits);
  f.zero_points = c.zeros;
  f.dtype = c.scale;
  if (c.bias) f.bias_dtype = c.type;
  return f;
}

inline void put_float(DType type, uint8_t* at, size_t i, float x) {
  const uint16_t half = type == DType::f16 ? f32_to_f16(x) : f32_to_bf16(x);
  if (type == DType::f32)
    std::memcpy(at + 4 * i, &x, 4);
  else
    std::memcpy(at + 2 * i, &half, 2);
}
inline float get_float(DType type, const uint8_t* at, size_t i) {
  float x;
  uint16_t half;
  if (type == DType::f32) {
    std::memcpy(&x, at + 4 * i, 4);
    return x;
  }
  std::memcpy(&half, at + 2 * i, 2);
  return type == DType::f16 ? f16_to_f32(half) : bf16_to_f32(half);
}
inline size_t size_of(DType type) { return static_cast<size_t>(dtype_bits(type)) / 8; }

// One block of bytes with the tensors of all experts of a matrix, and the place of each.
class Bytes {
 public:
  size_t place(size_t n, size_t base) {
    while (data_.size() % 256 != base % 256) data_.push_back(0xff);
    const size_t at = data_.size();
    data_.resize(at + n);
    return at;
  }
  void pad() { data_.resize((data_.size() + 255) / 256 * 256 + 256, 0xff); }
  uint8_t* at(size_t offset) { return data_.data() + offset; }
  size_t size() const { return data_.size(); }

 private:
  std::vector<uint8_t> data_;
};

struct Places {
  size_t weights, scales, zeros, bias;
  float global = 1;
};

inline void fill_floats(DType type, uint8_t* at, size_t bytes, float size) {
  for (size_t i = 0; i < bytes / size_of(type); ++i) put_float(type, at, i, uniform(-size, size));
}

inline std::vector<Places> random_matrices(const Case& c, const MatrixForm& f, Bytes* bytes) {
  std::vector<Places> all;
  const float size = 1 / std::sqrt(static_cast<float>(f.k));
  const size_t base = static_cast<size_t>(c.base), n_experts = static_cast<size_t>(c.n_experts);
  Places first{bytes->place(f.weight_bytes() * n_experts, base), bytes->place(f.scale_bytes() * n_experts, 0),
               bytes->place(f.zero_point_bytes() * n_experts, 0), bytes->place(f.bias_bytes() * n_experts, 0)};
  for (size_t e = 0; e < n_experts; ++e) {
    Places p{first.weights + e * f.weight_bytes(), first.scales + e * f.scale_bytes(), first.zeros + e * f.zero_point_bytes(),
             first.bias + e * f.bias_bytes()};
    uint8_t* const w = bytes->at(p.weights);
    if (f.storage == Storage::dense)
      fill_floats(f.dtype, w, f.weight_bytes(), size);
    else
      for (size_t i = 0; i < f.weight_bytes(); ++i) w[i] = static_cast<uint8_t>(rng());
    if (f.storage == Storage::fp8)
      for (size_t i = 0; i < f.weight_bytes(); ++i)
        if ((w[i] & 0x7f) == 0x7f) w[i] ^= 1;  // no NaN
    uint8_t* const s = bytes->at(p.scales);
    if (f.storage != Storage::dense && is_float(f.dtype))
      fill_floats(f.dtype, s, f.scale_bytes(), size / static_cast<float>(f.storage == Storage::fp8 ? 100 : 1 << (f.bits - 2)));
    if (f.dtype == DType::f8e4m3fn)
      for (size_t i = 0; i < f.scale_bytes(); ++i) s[i] = static_cast<uint8_t>(0x10 + rng() % 0x38);
    if (f.dtype == DType::f8e8m0)
      for (size_t i = 0; i < f.scale_bytes(); ++i) s[i] = static_cast<uint8_t>(118 + rng() % 6);
    if (f.is_fp4() || f.storage == Storage::fp8)
      p.global = f.storage == Storage::fp8 && f.dtype == DType::undefined ? size / 100
                 : f.storage == Storage::fp8 ? 1.0f
                                             : uniform(0.2f, 0.5f) * size * (f.dtype == DType::f8e8m0 ? 60 : 1);
    for (size_t i = 0; i < f.zero_point_bytes(); ++i) bytes->at(p.zeros)[i] = static_cast<uint8_t>(rng());
    if (f.bias_bytes()) fill_floats(f.bias_dtype, bytes->at(p.bias), f.bias_bytes(), 0.5f);
    all.push_back(p);
  }
  return all;
}

// A layer, its bytes on both sides, and the CPU's idea of it.
struct TestLayer {
  Case c;
  ExpertLayer cpu;
  Router router;
  cuda::MoeLayer gpu;
  Bytes bytes;
  std::vector<Places> fc[3];
  std::vector<ExpertBytes> table;
  cuda::DeviceMemory device, device_table;

  TestLayer(std::shared_ptr<cuda::Gpu> g, cuda::Stream stream, const Case& wanted) : c(wanted) {
    const int64_t rows = c.pairing == Pairing::interleaved || c.pairing == Pairing::halves ? 2 : 1;
    cpu.hidden = c.hidden;
    cpu.inter = c.inter;
    cpu.n_experts = c.n_experts;
    cpu.k = c.k;
    cpu.dtype = c.type;
    cpu.pairing = c.pairing;
    cpu.activation.kind = c.activation;
    if (c.activation == ActivationKind::swiglu) cpu.activation = {ActivationKind::swiglu, 1.702f, 1, 1.5f, false};
    const int bits2 = c.bits2 ? c.bits2 : c.bits;
    MatrixForm form[3] = {make_form(c, c.bits, rows * c.inter, c.hidden), make_form(c, bits2, c.hidden, c.inter),
                          make_form(c, c.bits, c.inter, c.hidden)};
    for (int i = 0; i < (c.pairing == Pairing::separate ? 3 : 2); ++i) fc[i] = random_matrices(c, form[i], &bytes);
    bytes.pad();
    cpu.fc1 = WeightMatrix(form[0], false);
    cpu.fc2_bias = form[1].bias_dtype;
    form[1].bias_dtype = DType::undefined;
    cpu.fc2 = WeightMatrix(form[1], false);
    if (c.pairing == Pairing::separate) cpu.fc3 = WeightMatrix(form[2], false);
    router = {c.n_experts, c.k, true, false};
    gpu = device_layer(cpu, router);
    gpu.logits_type = device_type(c.type);
    gpu.weight_alignment = c.base % 16 == 0 ? 16 : c.base % 8 == 0 ? 8 : c.base % 4 == 0 ? 4 : 1;
    for (int i = 0; i < 2; ++i)
      while (cpu.fc1.form().weight_bytes() % gpu.weight_alignment || cpu.fc2.form().weight_bytes() % gpu.weight_alignment)
        gpu.weight_alignment /= 2;
    gpu.scale_alignment = 16;
    for (const WeightMatrix* w : {&cpu.fc1, &cpu.fc2})
      while (w->form().scale_bytes() % gpu.scale_alignment) gpu.scale_alignment /= 2;
    device = must(cuda::DeviceMemory::take(g, bytes.size(), cuda::Purpose::experts, "experts"));
    table = host_table(bytes.at(0));
    const std::vector<ExpertBytes> there = host_table(static_cast<uint8_t*>(device.data()));
    const uint32_t n = static_cast<uint32_t>(c.n_experts);
    std::vector<uint64_t> entries(cuda::moe_table_bytes(n) / 8);
    auto* const experts = reinterpret_cast<cuda::MoeExpert*>(entries.data());
    for (size_t e = 0; e < there.size(); ++e)
      experts[e] = {{device_place(there[e].fc1), device_place(there[e].fc2), device_place(there[e].fc3)}};
    cuda::complete_moe_table(entries.data(), n);
    device_table = must(cuda::DeviceMemory::take(g, cuda::moe_table_bytes(n), cuda::Purpose::experts, "table"));
    const cuda::Current current(*g);
    must(g->check(cuda::driver().memcpy_htod_async(device.address(), bytes.at(0), bytes.size(), stream), "copy"));
    must(g->check(cuda::driver().memcpy_htod_async(device_table.address(), entries.data(), device_table.bytes(), stream), "copy"));
    must(g->check(cuda::driver().stream_synchronize(stream), "wait"));
  }

  std::vector<ExpertBytes> host_table(uint8_t* base) const {
    std::vector<ExpertBytes> t;
    for (size_t e = 0; e < static_cast<size_t>(c.n_experts); ++e) {
      const auto matrix = [&](int i) {
        MatrixBytes b;
        if (fc[i].empty()) return b;
        const Places& p = fc[i][e];
        b = {base + p.weights, base + p.scales, base + p.zeros, base + p.bias, p.global};
        return b;
      };
      t.push_back({matrix(0), matrix(1), matrix(2)});
    }
    return t;
  }
};

}  // namespace moe_cases

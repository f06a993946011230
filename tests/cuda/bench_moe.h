// SPDX-License-Identifier: Apache-2.0
// Times of whole layers inside a CUDA graph that goes over more layers than the L2 cache holds.
#pragma once
#include <algorithm>
#include <string>

#include "moe_cases.h"

namespace moe_cases {

struct Shape {
  const char* name;
  int64_t hidden, inter, n_experts, k;
};
struct Kind {
  const char* name;
  Storage storage;
  int bits;
  int64_t block;
  DType scale;
};

class BenchLayers {
 public:
  BenchLayers(std::shared_ptr<cuda::Gpu> gpu, cuda::Stream stream, const Shape& s, const Kind& kind, DType type, int64_t n_tokens,
              size_t least_bytes, bool wgmma = true)
      : gpu_(gpu), stream_(stream), n_(n_tokens) {
    Case c{kind.name, kind.storage, kind.bits, kind.block, ZeroPoints::middle, kind.scale, s.hidden, s.inter, Pairing::interleaved, type};
    c.n_experts = s.n_experts;
    c.k = s.k;
    c.bias = false;
    ExpertLayer l;
    l.hidden = s.hidden;
    l.inter = s.inter;
    l.n_experts = s.n_experts;
    l.k = s.k;
    l.dtype = type;
    l.pairing = Pairing::interleaved;
    l.activation.kind = ActivationKind::swiglu;
    l.fc1 = WeightMatrix(make_form(c, kind.bits, 2 * s.inter, s.hidden), false);
    l.fc2 = WeightMatrix(make_form(c, kind.bits, s.hidden, s.inter), false);
    layer_ = device_layer(l, {s.n_experts, s.k, true, false});
    layer_.wgmma = wgmma;
    layer_.logits_type = device_type(type);
    layer_.weight_alignment = layer_.scale_alignment = 16;
    const MatrixForm &f1 = l.fc1.form(), &f2 = l.fc2.form();
    expert_bytes_ = f1.weight_bytes() + f1.scale_bytes() + f2.weight_bytes() + f2.scale_bytes();
    const size_t layer_bytes = expert_bytes_ * static_cast<size_t>(s.n_experts),
                 read = expert_bytes_ * static_cast<size_t>(std::min(s.k * n_tokens, s.n_experts));
    n_layers_ = std::max<size_t>(3, (least_bytes + read - 1) / read);
    const auto take = [&](size_t bytes) { return must(cuda::DeviceMemory::take(gpu, bytes, cuda::Purpose::experts, "layers")); };
    const auto ok = [&](int r) { must(gpu->check(r, "driver")); };
    const cuda::Current current(*gpu);
    const cuda::Driver& d = cuda::driver();
    weights_ = take(layer_bytes * n_layers_ + 256);
    const size_t words = weights_.bytes() / 4;
    const cuda::Function fill = must(gpu->function("fill", "hotset_fill_u32"));
    for (size_t at = 0; at < words; at += 1u << 30) {
      uint64_t out = weights_.address() + at * 4;
      uint32_t n = static_cast<uint32_t>(std::min<size_t>(words - at, 1u << 30)), seed = static_cast<uint32_t>(rng());
      void* parameters[] = {&out, &n, &seed};
      must(cuda::launch(*gpu, stream, {.function = fill, .grid_x = (n + 255) / 256, .block = 256}, parameters));
    }
    const uint32_t n_experts = static_cast<uint32_t>(s.n_experts);
    table_bytes_ = cuda::moe_table_bytes(n_experts);
    std::vector<uint64_t> table(table_bytes_ / 8 * n_layers_);
    const uint64_t base = weights_.address();
    size_t at = 0;
    const auto tensor = [&](size_t bytes) {
      const size_t here = at;
      at += bytes * static_cast<size_t>(s.n_experts);
      return base + here;
    };
    for (size_t i = 0; i < n_layers_; ++i) {
      const uint64_t w1 = tensor(f1.weight_bytes()), s1 = tensor(f1.scale_bytes()), w2 = tensor(f2.weight_bytes()),
                     s2 = tensor(f2.scale_bytes());
      if (f1.scale_bytes()) {
        ok(d.memset_d8_async(s1, 0x1c, f1.scale_bytes() * static_cast<size_t>(s.n_experts), stream));
        ok(d.memset_d8_async(s2, 0x1c, f2.scale_bytes() * static_cast<size_t>(s.n_experts), stream));
      }
      for (uint64_t e = 0; e < static_cast<uint64_t>(s.n_experts); ++e) {
        const auto place = [&](uint64_t w, size_t wb, uint64_t sc, size_t sb) {
          return cuda::MoePlace{reinterpret_cast<uint8_t*>(w + e * wb), reinterpret_cast<uint8_t*>(sc + e * sb), nullptr, nullptr, 1, 0};
        };
        reinterpret_cast<cuda::MoeExpert*>(table.data() + i * table_bytes_ / 8)[e] = {
            {place(w1, f1.weight_bytes(), s1, f1.scale_bytes()), place(w2, f2.weight_bytes(), s2, f2.scale_bytes()), {}}};
      }
      cuda::complete_moe_table(table.data() + i * table_bytes_ / 8, n_experts);
    }
    table_ = take(table_bytes_ * n_layers_);
    std::vector<uint8_t> logits(static_cast<size_t>(n_ * s.n_experts) * n_layers_ * size_of(type)),
        x(static_cast<size_t>(n_ * s.hidden) * size_of(type));
    for (size_t i = 0; i < logits.size() / size_of(type); ++i) put_float(type, logits.data(), i, uniform(-3, 3));
    for (size_t i = 0; i < x.size() / size_of(type); ++i) put_float(type, x.data(), i, uniform(-1, 1));
    logits_ = take(logits.size());
    x_ = take(x.size());
    y_ = take(x.size());
    space_ = take(cuda::moe_workspace(gpu->limits(), layer_, static_cast<uint32_t>(n_)).total);
    ok(d.memcpy_htod_async(table_.address(), table.data(), table_.bytes(), stream));
    ok(d.memcpy_htod_async(logits_.address(), logits.data(), logits_.bytes(), stream));
    ok(d.memcpy_htod_async(x_.address(), x.data(), x_.bytes(), stream));
    ok(d.stream_synchronize(stream));
  }

  // Microseconds of a layer: median over replays of a graph of all layers.
  double time(int replays) {
    const cuda::Current current(*gpu_);
    const cuda::Driver& d = cuda::driver();
    const auto ok = [&](int r) { must(gpu_->check(r, "driver")); };
    enqueue();
    ok(d.stream_synchronize(stream_));
    cuda::Graph graph;
    cuda::GraphExec exec;
    ok(d.stream_begin_capture(stream_, 2));
    enqueue();
    ok(d.stream_end_capture(stream_, &graph));
    ok(d.graph_instantiate(&exec, graph, 0));
    cuda::Event begin, end;
    ok(d.event_create(&begin, 0));
    ok(d.event_create(&end, 0));
    std::vector<double> times;
    for (int i = 0; i < replays + 2; ++i) {
      ok(d.event_record(begin, stream_));
      ok(d.graph_launch(exec, stream_));
      ok(d.event_record(end, stream_));
      ok(d.event_synchronize(end));
      float ms = 0;
      ok(d.event_elapsed_time(&ms, begin, end));
      if (i >= 2) times.push_back(static_cast<double>(ms) * 1000 / static_cast<double>(n_layers_));
    }
    ok(d.event_destroy(begin));
    ok(d.event_destroy(end));
    ok(d.graph_exec_destroy(exec));
    ok(d.graph_destroy(graph));
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

  // Bytes of experts that a call reads when its routes go to this many different ones.
  double bytes(double n_experts) const { return n_experts * static_cast<double>(expert_bytes_); }
  const cuda::MoeLayer& layer() const { return layer_; }
  size_t n_layers() const { return n_layers_; }

 private:
  void enqueue() {
    for (size_t i = 0; i < n_layers_; ++i) {
      cuda::MoeCall call;
      call.x = x_.data();
      call.logits = static_cast<std::byte*>(logits_.data()) + i * (logits_.bytes() / n_layers_);
      call.experts = reinterpret_cast<const cuda::MoeExpert*>(table_.address() + i * table_bytes_);
      call.y = y_.data();
      call.n_tokens = static_cast<uint32_t>(n_);
      call.workspace = space_.data();
      must(cuda::launch_moe(*gpu_, stream_, layer_, call));
    }
  }

  std::shared_ptr<cuda::Gpu> gpu_;
  cuda::Stream stream_;
  int64_t n_;
  cuda::MoeLayer layer_;
  size_t expert_bytes_ = 0, n_layers_ = 0, table_bytes_ = 0;
  cuda::DeviceMemory weights_, table_, logits_, x_, y_, space_;
};

inline void run_bench(std::shared_ptr<cuda::Gpu> gpu, cuda::Stream stream, const std::string& only) {
  const Shape qwen{"qwen3-30b", 2048, 768, 128, 8}, oss{"gpt-oss-120b", 2880, 2880, 128, 4}, wide{"wide", 4096, 4096, 16, 4};
  const Kind kinds[] = {{"int4 b32", Storage::raw, 4, 32, DType::f16},      {"int4 b32 sm80", Storage::sm80, 4, 32, DType::f16},
                        {"int8 b32", Storage::raw, 8, 32, DType::f16},      {"int2 b64", Storage::raw, 2, 64, DType::f16},
                        {"int3 b32", Storage::raw, 3, 32, DType::f16},      {"nvfp4", Storage::fp4_by_k, 4, 16, DType::f8e4m3fn},
                        {"mxfp4", Storage::fp4_by_k, 4, 32, DType::f8e8m0}, {"fp8 b128", Storage::fp8, 8, 128, DType::f32},
                        {"fp8", Storage::fp8, 8, 0, DType::undefined},      {"dense f16", Storage::dense, 16, 0, DType::f16}};
  const auto decode = [&](const Shape& s, const Kind& kind, DType type, int64_t n) {
    const std::string name = std::string(s.name) + " " + kind.name + " " + dtype_name(type);
    if (name.find(only) == std::string::npos) return;
    BenchLayers layers(gpu, stream, s, kind, type, n, size_t{400} << 20);
    const double us = layers.time(15),
                 experts = static_cast<double>(s.n_experts) *
                           (1 - std::pow(1 - static_cast<double>(s.k) / static_cast<double>(s.n_experts), static_cast<double>(n)));
    const double gbs = layers.bytes(experts) / us / 1e3;
    std::printf("%-13s %-14s %-8s T %3lld %-5s %7.2f us %6.1f MB %5.0f GB/s %.2f of 4400\n", s.name, kind.name, dtype_name(type),
                static_cast<long long>(n), cuda::moe_kernels(gpu->limits(), layers.layer(), static_cast<uint32_t>(n)), us,
                layers.bytes(experts) / 1e6, gbs, gbs / 4400);
  };
  const auto prefill = [&](const Shape& s, const Kind& kind, DType type, int64_t n, bool wgmma = true) {
    const std::string name = std::string(s.name) + " " + kind.name + " " + dtype_name(type);
    if (name.find(only) == std::string::npos) return;
    BenchLayers layers(gpu, stream, s, kind, type, n, 0, wgmma);
    const double us = layers.time(3), flops = 6.0 * static_cast<double>(n * s.k * s.hidden * s.inter);
    std::printf("%-13s %-14s %-8s T %4lld %-5s %8.1f us %6.1f TFLOP/s\n", s.name, kind.name, dtype_name(type), static_cast<long long>(n),
                cuda::moe_kernels(gpu->limits(), layers.layer(), static_cast<uint32_t>(n)), us, flops / us / 1e6);
  };
  for (int64_t n : {1, 2, 4, 16, 64}) decode(qwen, kinds[0], DType::f16, n);
  for (const Kind& kind : kinds) decode(wide, kind, DType::bf16, 1);
  for (int64_t n : {1, 4}) decode(oss, kinds[0], DType::bf16, n);
  decode(oss, kinds[1], DType::f16, 1);
  decode(qwen, kinds[0], DType::f32, 1);
  decode(qwen, kinds[1], DType::f16, 1);
  for (int64_t n : {64, 512, 4096})
    for (bool wgmma : {true, false}) prefill(qwen, kinds[0], DType::f16, n, wgmma);
  prefill(oss, kinds[0], DType::f16, 4096);
  for (const auto& [kind, type] :
       {std::pair(0, DType::f32), {1, DType::f16}, {2, DType::f16}, {5, DType::bf16}, {8, DType::bf16}, {9, DType::f16}})
    prefill(qwen, kinds[kind], type, 4096);
}

}  // namespace moe_cases

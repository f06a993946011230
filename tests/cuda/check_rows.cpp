// SPDX-License-Identifier: Apache-2.0
// Norms, rotary embedding, gathers and elementwise operators on the device against float64 or byte for byte. --bench: microseconds.
#include "cuda/gather.h"
#include "cuda/norm.h"
#include "cuda/rotary.h"
#include "cuda/unary.h"
#include "device_arrays.h"

using namespace device_check;

namespace {

constexpr DType kFloats[] = {DType::f32, DType::f16, DType::bf16};

void compare(const std::string& what, DType type, const std::vector<uint8_t>& got, const std::vector<double>& wanted, double slack) {
  for (size_t i = 0; i < wanted.size(); ++i) {
    const double seen = value_at(type, got.data(), i),
                 allowed = 1.01 * rounding(type) * std::fabs(wanted[i]) + slack * (1 + std::fabs(wanted[i]));
    if (std::isnan(wanted[i]) ? std::isnan(seen) : std::fabs(seen - wanted[i]) <= allowed) continue;
    std::printf("%s: element %zu is %g, expected %g +- %g\n", what.c_str(), i, seen, wanted[i], allowed);
    std::exit(1);
  }
}

void check_norm(const Device& device, std::mt19937& rng) {
  const DType type = kFloats[rng() % 3];
  const auto other = [&] { return rng() % 4 ? type : kFloats[rng() % 3]; };
  const size_t rows = 1 + rng() % 5, width = rng() % 2 ? 1 + rng() % 300 : 8 * (1 + rng() % 1200), skip_rows = rng() % 2 ? rows : 1;
  const bool center = rng() % 2, with_skip = rng() % 3 > 0, with_bias = with_skip && rng() % 2, with_beta = center && rng() % 2,
             with_sum = rng() % 2;
  const bool mixed = rng() % 3 == 0;
  const Values x(type, rows * width, rng), skip(mixed ? other() : type, skip_rows * width, rng), bias(mixed ? other() : type, width, rng),
      gamma(mixed ? other() : type, width, rng), beta(mixed ? other() : type, width, rng);
  const Array dx(device, x.bytes), dskip(device, skip.bytes), dbias(device, bias.bytes), dgamma(device, gamma.bytes),
      dbeta(device, beta.bytes);
  const Array y(device, x.bytes.size()), sum(device, x.bytes.size()), mean(device, rows * 4), inverse(device, rows * 4);
  cuda::NormParams p = {};
  p.x = dx.data();
  if (with_skip) p.skip = dskip.data();
  if (with_bias) p.bias = dbias.data();
  p.gamma = dgamma.data();
  if (with_beta) p.beta = dbeta.data();
  p.y = y.data();
  if (with_sum) p.sum = sum.data();
  p.mean = static_cast<float*>(mean.data());
  p.inverse = static_cast<float*>(inverse.data());
  p.rows = static_cast<int64_t>(rows);
  p.width = static_cast<int64_t>(width);
  p.skip_rows = static_cast<int64_t>(skip_rows);
  p.epsilon = 1e-5f;
  p.center = center;
  p.ready = rng() % 2;
  p.type = static_cast<int32_t>(type);
  p.skip_type = static_cast<int32_t>(skip.type);
  p.bias_type = static_cast<int32_t>(bias.type);
  p.gamma_type = static_cast<int32_t>(gamma.type);
  p.beta_type = static_cast<int32_t>(beta.type);
  must(cuda::launch_norm(*device.gpu, device.stream.get(), p));
  device.wait("norm");
  std::vector<double> wy(rows * width), ws(rows * width), wm(rows), wi(rows);
  for (size_t r = 0; r < rows; ++r) {
    double total = 0, squares = 0;
    for (size_t i = 0; i < width; ++i) {
      double s = x.at(r * width + i);
      if (with_skip) s += skip.at(r % skip_rows * width + i);
      if (with_bias) s += bias.at(i);
      ws[r * width + i] = s;
      total += s;
    }
    wm[r] = center ? total / static_cast<double>(width) : 0;
    for (size_t i = 0; i < width; ++i) squares += (ws[r * width + i] - wm[r]) * (ws[r * width + i] - wm[r]);
    wi[r] = 1 / std::sqrt(squares / static_cast<double>(width) + 1e-5);
    for (size_t i = 0; i < width; ++i)
      wy[r * width + i] = (ws[r * width + i] - wm[r]) * wi[r] * gamma.at(i) + (with_beta ? static_cast<double>(beta.at(i)) : 0.0);
  }
  const std::string what =
      format_text("norm %s rows %zu width %zu%s%s", dtype_name(type), rows, width, center ? " centered" : "", mixed ? " mixed" : "");
  // One element a row: the variance is rounding alone, and 1 / sqrt(epsilon) makes it large.
  compare(what + " y", type, y.bytes(), wy, width == 1 && center ? 1e-3 : 4e-6);
  if (with_sum) compare(what + " sum", type, sum.bytes(), ws, 1e-6);
  compare(what + " mean", DType::f32, mean.bytes(), wm, 2e-6);
  compare(what + " inverse", DType::f32, inverse.bytes(), wi, width == 1 && center ? 1e-3 : 4e-6);
}

void check_rotary(const Device& device, std::mt19937& rng) {
  const DType type = kFloats[rng() % 3];
  const int64_t batch = 1 + rng() % 3, length = 1 + rng() % 6, heads = 1 + rng() % 4, half = 1 + rng() % 40,
                behind = rng() % 2 * (rng() % 20);
  const int64_t channels = 2 * half + behind, rows = batch * length;
  const bool four = rng() % 2;
  cuda::RotaryParams p = {};
  p.positions = static_cast<int32_t>(rng() % 4);
  p.interleaved = rng() % 2;
  p.table_rows = std::max<int64_t>(rows, 3 + rng() % 30);
  p.layout = rng() % 2;
  p.section[0] = static_cast<int32_t>(half - half / 3 * 2);
  p.section[1] = p.section[2] = static_cast<int32_t>(half / 3);
  const Values x(type, static_cast<size_t>(rows * heads * channels), rng), cos(type, static_cast<size_t>(p.table_rows * half), rng),
      sin(type, static_cast<size_t>(p.table_rows * half), rng);
  std::vector<int64_t> ids(static_cast<size_t>(3 * rows));
  for (int64_t& id : ids) id = static_cast<int64_t>(rng() % static_cast<unsigned>(p.table_rows + 1)) - (rng() % 20 == 0 ? 5 : 0);
  const Array dx(device, x.bytes), dcos(device, cos.bytes), dsin(device, sin.bytes), dids(device, ids), y(device, x.bytes.size());
  p.x = dx.data();
  p.cos = dcos.data();
  p.sin = dsin.data();
  p.ids = static_cast<const int64_t*>(dids.data());
  p.y = y.data();
  p.batch = batch;
  p.length = length;
  p.heads = heads;
  p.channels = channels;
  p.half = half;
  p.x_batch = length * heads * channels;
  p.x_row = four ? channels : heads * channels;
  p.x_head = four ? length * channels : channels;
  const bool in_place = rng() % 2;
  if (in_place) p.y = dx.data();
  must(cuda::launch_rotary(*device.gpu, device.stream.get(), type, p));
  device.wait("rotary");
  std::vector<double> wanted(static_cast<size_t>(rows * heads * channels));
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t at = r / length * p.x_batch + r % length * p.x_row + h * p.x_head;
      for (int64_t c = 0; c < behind; ++c) wanted[static_cast<size_t>(at + 2 * half + c)] = x.at(static_cast<size_t>(at + 2 * half + c));
      for (int64_t c = 0; c < half; ++c) {
        int stream = c < p.section[0] ? 0 : c < p.section[0] + p.section[1] ? 1 : 2;
        if (p.layout == 1) stream = c % 3 > 0 && c < 3 * p.section[c % 3] ? static_cast<int>(c % 3) : 0;
        const int64_t position = p.positions == 0   ? r
                                 : p.positions == 1 ? ids[0] + r % length
                                 : p.positions == 2 ? ids[static_cast<size_t>(r)]
                                                    : ids[static_cast<size_t>(stream * rows + r)];
        const bool inside = position >= 0 && position < p.table_rows;
        const double a = inside ? static_cast<double>(cos.at(static_cast<size_t>(position * half + c))) : NAN,
                     b = inside ? static_cast<double>(sin.at(static_cast<size_t>(position * half + c))) : NAN;
        const size_t i = static_cast<size_t>(at + (p.interleaved ? 2 * c : c)),
                     j = static_cast<size_t>(at + (p.interleaved ? 2 * c + 1 : c + half));
        wanted[i] = x.at(i) * a - x.at(j) * b;
        wanted[j] = x.at(j) * a + x.at(i) * b;
      }
    }
  compare(format_text("rotary %s form %d", dtype_name(type), p.positions), type, in_place ? dx.bytes() : y.bytes(), wanted, 4e-7);
}

void check_gather(const Device& device, std::mt19937& rng) {
  const size_t element = size_t{1} << rng() % 4, outer = 1 + rng() % 3, size = 1 + rng() % 20, n = 1 + rng() % 9;
  const size_t slice = element * (rng() % 2 ? 1 + rng() % 50 : 16 * (1 + rng() % 300));
  std::vector<uint8_t> data(outer * size * slice), wanted(outer * n * slice);
  for (uint8_t& b : data) b = static_cast<uint8_t>(rng());
  const bool wide = rng() % 2;
  std::vector<int64_t> index(n);
  std::vector<int32_t> narrow(n);
  for (size_t i = 0; i < n; ++i) {
    index[i] = static_cast<int64_t>(rng() % (2 * size + 3)) - static_cast<int64_t>(size) - 1;
    narrow[i] = static_cast<int32_t>(index[i]);
  }
  for (size_t o = 0; o < outer; ++o)
    for (size_t i = 0; i < n; ++i) {
      const int64_t at = index[i] < 0 ? index[i] + static_cast<int64_t>(size) : index[i];
      if (at >= 0 && at < static_cast<int64_t>(size))
        std::memcpy(&wanted[(o * n + i) * slice], &data[(o * size + static_cast<size_t>(at)) * slice], slice);
    }
  const Array d(device, data), y(device, wanted.size()), indices = wide ? Array(device, index) : Array(device, narrow);
  const cuda::GatherParams p = {d.data(),
                                indices.data(),
                                y.data(),
                                static_cast<int64_t>(outer),
                                static_cast<int64_t>(size),
                                static_cast<int64_t>(n),
                                static_cast<int64_t>(slice),
                                wide ? 8 : 4};
  must(cuda::launch_gather(*device.gpu, device.stream.get(), p));
  device.wait("gather");
  if (y.bytes() == wanted) return;
  std::printf("gather: outer %zu size %zu n %zu slice %zu bytes\n", outer, size, n, slice);
  std::exit(1);
}

// Rows of codes quantised along the last axis, gathered along the first.
void check_gather_quantised(const Device& device, std::mt19937& rng) {
  const DType type = kFloats[rng() % 3];
  const int bits = 1 << (1 + rng() % 3);
  const size_t size = 1 + rng() % 20, n = 1 + rng() % 9, block = 16 << rng() % 3, width = 8 * (1 + rng() % 40),
               blocks = (width + block - 1) / block;
  const bool with_zeros = rng() % 2;
  std::vector<uint8_t> data(size * width * static_cast<size_t>(bits) / 8), zeros(size * ((blocks * static_cast<size_t>(bits) + 7) / 8));
  for (uint8_t& b : data) b = static_cast<uint8_t>(rng());
  for (uint8_t& b : zeros) b = static_cast<uint8_t>(rng());
  const Values scales(type, size * blocks, rng);
  std::vector<int64_t> index(n);
  for (int64_t& i : index) i = static_cast<int64_t>(rng() % (2 * size + 3)) - static_cast<int64_t>(size) - 1;
  std::vector<double> wanted(n * width);
  const size_t zero_row = zeros.size() / size;
  for (size_t i = 0; i < n; ++i) {
    const int64_t at = index[i] < 0 ? index[i] + static_cast<int64_t>(size) : index[i];
    if (at < 0 || at >= static_cast<int64_t>(size)) continue;
    for (size_t j = 0; j < width; ++j) {
      const size_t e = (static_cast<size_t>(at) * width + j) * static_cast<size_t>(bits), z = j / block * static_cast<size_t>(bits);
      const int mask = (1 << bits) - 1, code = data[e / 8] >> (e % 8) & mask;
      const int zero = with_zeros ? zeros[static_cast<size_t>(at) * zero_row + z / 8] >> (z % 8) & mask : 1 << (bits - 1);
      wanted[i * width + j] = (code - zero) * scales.at(static_cast<size_t>(at) * blocks + j / block);
    }
  }
  const Array d(device, data), s(device, scales.bytes), z(device, zeros), indices(device, index),
      y(device, n * width * element_bytes(type));
  cuda::GatherQuantizedParams p = {};
  p.data = static_cast<const uint8_t*>(d.data());
  p.indices = indices.data();
  p.scales = s.data();
  if (with_zeros) p.zeros = static_cast<const uint8_t*>(z.data());
  p.y = y.data();
  p.outer = 1;
  p.size = static_cast<int64_t>(size);
  p.n = static_cast<int64_t>(n);
  p.inner = p.length = static_cast<int64_t>(width);
  p.stride = 1;
  p.block = static_cast<int64_t>(block);
  p.blocks = p.scale_line = static_cast<int64_t>(blocks);
  p.scale_block = 1;
  p.scale_rest = 1;
  p.index_bytes = 8;
  p.scale_type = static_cast<int32_t>(type);
  p.bits = bits;
  p.default_zero = 1 << (bits - 1);
  p.zero_row_bytes = static_cast<int32_t>(zero_row);
  must(cuda::launch_gather_quantized(*device.gpu, device.stream.get(), p));
  device.wait("quantised gather");
  compare(format_text("quantised gather %s bits %d", dtype_name(type), bits), type, y.bytes(), wanted, 0);
}

double unary_reference(cuda::Unary op, double x, double alpha) {
  switch (op) {
    case cuda::Unary::copy:
      return x;
    case cuda::Unary::neg:
      return -x;
    case cuda::Unary::abs:
      return std::fabs(x);
    case cuda::Unary::exp:
      return std::exp(x);
    case cuda::Unary::log:
      return std::log(x);
    case cuda::Unary::sqrt:
      return std::sqrt(x);
    case cuda::Unary::reciprocal:
      return 1 / x;
    case cuda::Unary::sin:
      return std::sin(x);
    case cuda::Unary::cos:
      return std::cos(x);
    case cuda::Unary::tanh:
      return std::tanh(x);
    case cuda::Unary::erf:
      return std::erf(x);
    case cuda::Unary::sigmoid:
      return 1 / (1 + std::exp(-x));
    case cuda::Unary::swish:
      return x / (1 + std::exp(-alpha * x));
    case cuda::Unary::softplus:
      return std::log1p(std::exp(x));
    case cuda::Unary::relu:
      return x < 0 ? 0 : x;
    case cuda::Unary::gelu:
      return 0.5 * x * (1 + std::erf(x * std::sqrt(0.5)));
    case cuda::Unary::gelu_tanh:
      return 0.5 * x * (1 + std::tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
  }
  return NAN;
}

void check_unary(const Device& device, std::mt19937& rng) {
  const DType from = kFloats[rng() % 3], to = kFloats[rng() % 3];
  const size_t n = 1 + rng() % 5000;
  const cuda::Unary op = static_cast<cuda::Unary>(rng() % (static_cast<unsigned>(cuda::Unary::gelu_tanh) + 1));
  Values x(from, n, rng, 3);
  const float alpha = static_cast<float>(rng() % 100) / 50;
  std::vector<double> wanted(n);
  for (size_t i = 0; i < n; ++i) wanted[i] = unary_reference(op, static_cast<double>(x.at(i)), static_cast<double>(alpha));
  if (to == DType::f16) {
    for (double& w : wanted) w = std::fabs(w) > 65000 ? NAN : w;
    for (size_t i = 0; i < n; ++i)
      if (std::isnan(wanted[i])) x.set(i, 1), wanted[i] = unary_reference(op, 1, static_cast<double>(alpha));
  }
  const Array dx(device, x.bytes), y(device, n * element_bytes(to));
  must(cuda::launch_unary(*device.gpu, device.stream.get(),
                          {dx.data(), y.data(), static_cast<int64_t>(n), op, static_cast<int32_t>(from), static_cast<int32_t>(to), alpha}));
  device.wait("unary");
  compare(format_text("elementwise operator %d %s to %s", static_cast<int>(op), dtype_name(from), dtype_name(to)), to, y.bytes(), wanted,
          1e-6);
}

void bench_norm(const Device& device, DType type, int64_t rows, int64_t width) {
  std::mt19937 rng(1);
  const size_t n = static_cast<size_t>(rows * width);
  const Values x(type, n, rng), gamma(type, static_cast<size_t>(width), rng);
  const Array dx(device, x.bytes), skip(device, x.bytes), dgamma(device, gamma.bytes), y(device, x.bytes.size()),
      sum(device, x.bytes.size());
  cuda::NormParams p = {};
  p.x = dx.data();
  p.skip = skip.data();
  p.gamma = dgamma.data();
  p.y = y.data();
  p.sum = sum.data();
  p.rows = rows;
  p.width = width;
  p.skip_rows = rows;
  p.epsilon = 1e-5f;
  p.ready = 1;
  p.type = p.skip_type = p.gamma_type = static_cast<int32_t>(type);
  const double us = microseconds(device, 50, [&](int) { must(cuda::launch_norm(*device.gpu, device.stream.get(), p)); });
  std::printf("norm with residual %-8s %5lld x %lld: %.2f us, %.0f GB/s\n", dtype_name(type), static_cast<long long>(rows),
              static_cast<long long>(width), us, static_cast<double>(4 * x.bytes.size()) / us * 1e-3);
}

}  // namespace

int main(int argc, char** argv) {
  const Device device;
  if (argc > 1 && !std::strcmp(argv[1], "--bench")) {
    for (const DType type : kFloats)
      for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{1, 2048}, {1, 2880}, {16, 2880}, {4096, 2880}})
        bench_norm(device, type, rows, width);
    return 0;
  }
  const unsigned seed = choose_seed(argc, argv);
  const int n_cases = argc > 2 ? std::atoi(argv[2]) : 300;
  std::printf("seed %u\n", seed);
  std::mt19937 rng(seed);
  for (int i = 0; i < n_cases; ++i) {
    check_norm(device, rng);
    check_rotary(device, rng);
    check_gather(device, rng);
    check_gather_quantised(device, rng);
    check_unary(device, rng);
  }
  std::printf("norms, rotary, gathers, elementwise: %d cases each right\n", n_cases);
  return 0;
}

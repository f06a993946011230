// SPDX-License-Identifier: Apache-2.0
// Dense products on the device in every form against float64. --bench: microseconds, memory rate and arithmetic rate.
#include "cuda/cublaslt.h"
#include "cuda/matmul.h"

#include "device_arrays.h"

using namespace device_check;

namespace {

constexpr DType kFloats[] = {DType::f32, DType::f16, DType::bf16};
const char* const kNames[] = {"any", "gemv", "gemm"};

std::string text_of(const cuda::MatMulCall& c) {
  return format_text("%s %lld x %lld x %lld batch %lld%s%s%s", dtype_name(c.type), static_cast<long long>(c.m), static_cast<long long>(c.n),
                     static_cast<long long>(c.k), static_cast<long long>(c.batch), c.trans_a ? " A^T" : "", c.trans_b ? " B^T" : "",
                     c.bias ? " + C" : "");
}

void check(const Device& device, std::mt19937& rng, int (&ran)[3]) {
  cuda::MatMulCall c;
  c.type = kFloats[rng() % 3];
  const auto size = [&](unsigned most, unsigned step) {
    return static_cast<int64_t>(rng() % 2 ? 1 + rng() % most : step * (1 + rng() % (most / step)));
  };
  c.m = rng() % 2 ? 1 + rng() % 9 : size(300, 8);
  c.n = size(400, 8);
  c.k = size(700, 8);
  c.trans_a = rng() % 6 == 0;
  c.trans_b = rng() % 2;
  c.b_ready = rng() % 2;
  if (rng() % 4 == 0) {
    c.batch = 1 + rng() % 3;
    if (rng() % 3) c.a_batch = c.m * c.k;
    if (rng() % 3) c.b_batch = c.k * c.n;
  }
  if (rng() % 4 == 0) c.ldc = c.n + rng() % 9;
  if (rng() % 3 == 0) c.alpha = 0.5f;
  const int64_t ldc = c.ldc ? c.ldc : c.n;
  const Values a(c.type, static_cast<size_t>(c.m * c.k * c.batch), rng), b(c.type, static_cast<size_t>(c.k * c.n * c.batch), rng),
      bias(kFloats[rng() % 3], static_cast<size_t>(c.m * c.n), rng);
  const Array da(device, a.bytes), db(device, b.bytes), dbias(device, bias.bytes);
  if (rng() % 2) {
    c.bias = dbias.data();
    c.bias_type = bias.type;
    c.bias_row = rng() % 2 ? c.n : 0;
    c.bias_column = rng() % 4 ? 1 : 0;
    c.beta = rng() % 2 ? 1.0f : -1.5f;
  }
  c.a = da.data();
  c.b = db.data();
  const size_t outputs = static_cast<size_t>(c.batch * c.m * ldc);
  std::vector<double> wanted(outputs, NAN), sizes(outputs);
  for (int64_t z = 0; z < c.batch; ++z)
    for (int64_t i = 0; i < c.m; ++i)
      for (int64_t j = 0; j < c.n; ++j) {
        double sum = 0, absolute = 0;
        for (int64_t k = 0; k < c.k; ++k) {
          const double product = static_cast<double>(a.at(static_cast<size_t>(z * c.a_batch + (c.trans_a ? k * c.m + i : i * c.k + k)))) *
                                 static_cast<double>(b.at(static_cast<size_t>(z * c.b_batch + (c.trans_b ? j * c.k + k : k * c.n + j))));
          sum += product;
          absolute += std::fabs(product);
        }
        const double addend =
            c.bias ? static_cast<double>(c.beta) * static_cast<double>(bias.at(static_cast<size_t>(i * c.bias_row + j * c.bias_column)))
                   : 0.0;
        const size_t at = static_cast<size_t>((z * c.m + i) * ldc + j);
        wanted[at] = sum * static_cast<double>(c.alpha) + addend;
        sizes[at] = absolute * static_cast<double>(c.alpha) + std::fabs(addend);
      }
  for (const cuda::MatMulForm form : {cuda::MatMulForm::any, cuda::MatMulForm::gemv, cuda::MatMulForm::gemm}) {
    const Array y(device, outputs * element_bytes(c.type));
    c.c = y.data();
    const Status status = cuda::launch_matmul_as(form, *device.gpu, device.stream.get(), c);
    if (status.code() == Code::unsupported && form != cuda::MatMulForm::any) continue;
    must(Status(status.ok() ? Status() : Status(status.code(), text_of(c) + ": " + status.text())));
    device.wait(text_of(c) + " " + kNames[static_cast<int>(form)]);
    const std::vector<uint8_t> got = y.bytes();
    for (size_t i = 0; i < outputs; ++i) {
      const double seen = value_at(c.type, got.data(), i),
                   allowed = 1.01 * rounding(c.type) * std::fabs(wanted[i]) + 1e-6 * sizes[i] + 1e-7;
      // Between the rows of C nothing is written.
      if (std::isnan(wanted[i]) ? std::isnan(seen) : std::fabs(seen - wanted[i]) <= allowed) continue;
      std::printf("%s, %s: element %zu is %g, expected %g +- %g\n", text_of(c).c_str(), kNames[static_cast<int>(form)], i, seen, wanted[i],
                  allowed);
      std::exit(1);
    }
    ++ran[static_cast<int>(form)];
  }
}

// cuBLASLt, where it is on the machine, against our own kernels.
void check_library(const Device& device, std::mt19937& rng) {
  if (cuda::cublaslt_version() == 0) {
    std::printf("no cuBLASLt on this machine\n");
    return;
  }
  for (int i = 0; i < 8; ++i) {
    cuda::MatMulCall c;
    c.type = i & 1 ? DType::f16 : DType::bf16;
    c.trans_b = i & 2;
    c.library = true;
    c.m = 512 + rng() % 100;
    c.n = 1024 + 8 * (rng() % 10);
    c.k = 1024 + 8 * (rng() % 10);
    const Values a(c.type, static_cast<size_t>(c.m * c.k), rng), b(c.type, static_cast<size_t>(c.k * c.n), rng),
        bias(c.type, static_cast<size_t>(c.n), rng, 30);
    const Array da(device, a.bytes), db(device, b.bytes), dbias(device, bias.bytes), y(device, static_cast<size_t>(c.m * c.n) * 2),
        own(device, y.size());
    c.a = da.data();
    c.b = db.data();
    if (i & 4) c.bias = dbias.data(), c.bias_type = c.type;
    c.c = y.data();
    bool done = false;
    must(cuda::cublaslt_takes(c) ? cuda::launch_cublaslt(*device.gpu, device.stream.get(), c, &done) : Status());
    if (!done) {
      std::printf("cuBLASLt refuses %s\n", text_of(c).c_str());
      std::exit(1);
    }
    c.c = own.data();
    must(cuda::launch_matmul_as(cuda::MatMulForm::gemm, *device.gpu, device.stream.get(), c));
    device.wait("cuBLASLt");
    const std::vector<uint8_t> got = y.bytes(), wanted = own.bytes();
    for (size_t e = 0; e < static_cast<size_t>(c.m * c.n); ++e) {
      const double x = value_at(c.type, got.data(), e), w = value_at(c.type, wanted.data(), e);
      if (std::fabs(x - w) <= 2.1 * rounding(c.type) * std::fabs(w) + 1e-3) continue;
      std::printf("cuBLASLt %s: element %zu is %g, ours %g\n", text_of(c).c_str(), e, x, w);
      std::exit(1);
    }
  }
  std::printf("cuBLASLt %zu gives what our kernels give\n", cuda::cublaslt_version());
}

const char* only = "";  // what the text of a measured case holds

void bench(const Device& device, DType type, int64_t m, int64_t n, int64_t k, bool trans_b, bool library = false) {
  std::mt19937 rng(1);
  cuda::MatMulCall c;
  c.type = type;
  c.m = m;
  c.n = n;
  c.k = k;
  c.trans_b = trans_b;
  c.b_ready = true;
  c.library = library;
  if (!std::strstr(text_of(c).c_str(), only)) return;
  const size_t bytes = static_cast<size_t>(n * k) * element_bytes(type);
  const int copies = static_cast<int>(std::clamp<size_t>((size_t{200} << 20) / bytes, 2, m > 64 ? 4 : 64));
  const Values some(type, 1 << 16, rng);
  const auto fill = [&](size_t size) {
    std::vector<uint8_t> all(size);
    for (size_t i = 0; i < size; i += some.bytes.size()) std::memcpy(&all[i], some.bytes.data(), std::min(some.bytes.size(), size - i));
    return all;
  };
  const std::vector<uint8_t> weights = fill(bytes);
  std::vector<std::unique_ptr<Array>> b;
  for (int i = 0; i < copies; ++i) b.push_back(std::make_unique<Array>(device, weights));
  const Array a(device, fill(static_cast<size_t>(m * k) * element_bytes(type))),
      y(device, static_cast<size_t>(m * n) * element_bytes(type));
  c.a = a.data();
  c.c = y.data();
  c.b = b[0]->data();
  const cuda::MatMulForm form = cuda::matmul_form(*device.gpu, c);
  const double us = microseconds(device, copies, [&](int i) {
    c.b = b[static_cast<size_t>(i)]->data();
    must(cuda::launch_matmul(*device.gpu, device.stream.get(), c));
  });
  std::printf("%-50s %-5s %9.2f us %6.0f GB/s %7.1f TFLOP/s\n", text_of(c).c_str(), library ? "cublas" : kNames[static_cast<int>(form)], us,
              static_cast<double>(bytes) / us * 1e-3, 2e-6 * static_cast<double>(m * n * k) / us);
}

}  // namespace

int main(int argc, char** argv) {
  const Device device;
  if (argc > 1 && !std::strcmp(argv[1], "--bench")) {
    if (argc > 2) only = argv[2];
    for (const DType type : kFloats)
      for (const bool trans : {false, true}) {
        for (const auto& [n, k] : {std::pair<int64_t, int64_t>{151936, 2048}, {5120, 2048}, {2048, 4096}, {128, 2048}})
          for (const int64_t m : {1, 4, 8})
            if (m == 1 || n == 5120) bench(device, type, m, n, k, trans);
        for (const int64_t m : {32, 128, 1024, 4096}) bench(device, type, m, 5120, 2048, trans);
        bench(device, type, 8192, 8192, 8192, trans);
        if (cuda::cublaslt_version() && type != DType::f32)
          for (const int64_t m : {1024, 4096}) bench(device, type, m, 5120, 2048, trans, true);
      }
    return 0;
  }
  const unsigned seed = choose_seed(argc, argv);
  const int n_cases = argc > 2 ? std::atoi(argv[2]) : 200;
  std::printf("seed %u\n", seed);
  std::mt19937 rng(seed);
  int ran[3] = {};
  for (int i = 0; i < n_cases; ++i) check(device, rng, ran);
  check_library(device, rng);
  std::printf("dense products: any %d, gemv %d, gemm %d calls right\n", ran[0], ran[1], ran[2]);
  return ran[0] && ran[1] && ran[2] ? 0 : 1;
}

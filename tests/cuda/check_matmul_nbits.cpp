// SPDX-License-Identifier: Apache-2.0
// MatMulNBits on the device in every form against float64. --bench: microseconds and share of the memory rate.
#include "cuda/matmul_nbits.h"

#include "device_arrays.h"
#include "formats/sm80.h"

using namespace device_check;

namespace {

constexpr DType kFloats[] = {DType::f32, DType::f16, DType::bf16};
const char* const kNames[] = {"any", "gemv", "gemm", "wgmma"};

struct Case {
  DType type = DType::f16, scale_type = DType::f16, zero_type = DType::undefined, bias_type = DType::undefined;
  int64_t m = 1, n = 1, k = 1, block = 32;
  int bits = 4;
  bool prepacked = false;

  int64_t blocks() const { return (k + block - 1) / block; }
  int64_t row_bytes() const { return prepacked ? k * bits / 8 : blocks() * block * bits / 8; }
  std::string text() const {
    return format_text("%s m %lld n %lld k %lld bits %d block %lld scales %s zeros %s bias %s%s", dtype_name(type),
                       static_cast<long long>(m), static_cast<long long>(n), static_cast<long long>(k), bits, static_cast<long long>(block),
                       dtype_name(scale_type), dtype_name(zero_type), dtype_name(bias_type), prepacked ? " prepacked" : "");
  }
};

Case random_case(std::mt19937& rng) {
  Case c;
  c.type = kFloats[rng() % 3];
  c.scale_type = rng() % 4 ? c.type : kFloats[rng() % 3];
  c.bits = 1 << (1 + rng() % 3);
  c.block = 16 << rng() % 5;
  c.m = 1 + rng() % (rng() % 4 ? 17 : 90);
  c.n = 1 + rng() % (rng() % 3 ? 70 : 400);
  c.k = 1 + rng() % (rng() % 3 ? 200 : 1500);
  c.prepacked = rng() % 3 == 0;
  if (rng() % 3 == 0) {  // rows of whole blocks
    c.k = c.block * (1 + c.k / c.block);
    c.n = (c.n + 7) / 8 * 8;
  }
  if (c.prepacked) c.k = (c.k + 63) / 64 * 64, c.n = (c.n + 7) / 8 * 8;
  const DType zeros[] = {DType::undefined, DType::u8, c.type, kFloats[rng() % 3]};
  c.zero_type = zeros[rng() % 4];
  if (rng() % 2) c.bias_type = kFloats[rng() % 3];
  return c;
}

struct Data {
  Values a, scales, zeros_float, bias;
  std::vector<uint8_t> codes, zeros;
  Data(const Case& c, std::mt19937& rng)
      : a(c.type, static_cast<size_t>(c.m * c.k), rng),
        scales(c.scale_type, static_cast<size_t>(c.n * c.blocks()), rng, 0.1f),
        zeros_float(is_float(c.zero_type) ? c.zero_type : DType::f32, static_cast<size_t>(c.n * c.blocks()), rng,
                    static_cast<float>(1 << (c.bits - 1))),
        bias(is_float(c.bias_type) ? c.bias_type : DType::f32, static_cast<size_t>(c.n), rng),
        codes(static_cast<size_t>(c.n * c.row_bytes())),
        zeros(static_cast<size_t>(c.n * ((c.blocks() * c.bits + 7) / 8))) {
    for (uint8_t& b : codes) b = static_cast<uint8_t>(rng());
    for (uint8_t& b : zeros) b = static_cast<uint8_t>(rng());
  }
};

// y and the sum of the sizes of all products.
void reference(const Case& c, const Data& d, std::vector<double>* y, std::vector<double>* size) {
  const int64_t raw_bytes = c.prepacked ? c.k * c.bits / 8 : c.row_bytes();
  std::vector<uint8_t> raw = d.codes;
  if (c.prepacked) formats::sm80_to_raw(d.codes.data(), c.bits, c.n, c.k, 0, c.n, raw.data(), raw_bytes);
  y->assign(static_cast<size_t>(c.m * c.n), 0);
  size->assign(static_cast<size_t>(c.m * c.n), 0);
  std::vector<double> w(static_cast<size_t>(c.k));
  const int mask = (1 << c.bits) - 1;
  for (int64_t n = 0; n < c.n; ++n) {
    for (int64_t k = 0; k < c.k; ++k) {
      const int64_t block = k / c.block, at = n * c.blocks() + block;
      const int q = raw[static_cast<size_t>(n * raw_bytes + k * c.bits / 8)] >> (k * c.bits % 8) & mask;
      double zero = 1 << (c.bits - 1);
      if (c.zero_type == DType::u8)
        zero = d.zeros[static_cast<size_t>(n * ((c.blocks() * c.bits + 7) / 8) + block * c.bits / 8)] >> (block * c.bits % 8) & mask;
      else if (c.zero_type != DType::undefined)
        zero = d.zeros_float.at(static_cast<size_t>(at));
      w[static_cast<size_t>(k)] = (q - zero) * d.scales.at(static_cast<size_t>(at));
    }
    for (int64_t m = 0; m < c.m; ++m) {
      double sum = c.bias_type == DType::undefined ? 0.0 : d.bias.at(static_cast<size_t>(n)), absolute = std::fabs(sum);
      for (int64_t k = 0; k < c.k; ++k) {
        const double product = static_cast<double>(d.a.at(static_cast<size_t>(m * c.k + k))) * w[static_cast<size_t>(k)];
        sum += product;
        absolute += std::fabs(product);
      }
      (*y)[static_cast<size_t>(m * c.n + n)] = sum;
      (*size)[static_cast<size_t>(m * c.n + n)] = absolute;
    }
  }
}

cuda::NBitsParams parameters(const Case& c) {
  cuda::NBitsParams p = {};
  p.row_bytes = c.row_bytes();
  p.m = static_cast<int32_t>(c.m);
  p.n = static_cast<int32_t>(c.n);
  p.k = static_cast<int32_t>(c.k);
  p.blocks = static_cast<int32_t>(c.blocks());
  while ((int64_t{1} << p.block_shift) < c.block) ++p.block_shift;
  p.zero_row_bytes = static_cast<int32_t>((c.blocks() * c.bits + 7) / 8);
  p.a_type = static_cast<int32_t>(c.type);
  p.scale_type = static_cast<int32_t>(c.scale_type);
  p.zero_type = static_cast<int32_t>(c.zero_type);
  p.bias_type = static_cast<int32_t>(c.bias_type);
  p.bits = c.bits;
  p.prepacked = c.prepacked;
  return p;
}

// Number of forms that ran; ends the program on a wrong result.
int check(const Device& device, const Case& c, std::mt19937& rng, int (&ran)[4]) {
  const Data d(c, rng);
  std::vector<double> wanted, size;
  reference(c, d, &wanted, &size);
  const Array a(device, d.a.bytes), codes(device, d.codes), scales(device, d.scales.bytes), bias(device, d.bias.bytes);
  const Array zeros(device, c.zero_type == DType::u8 ? d.zeros : d.zeros_float.bytes);
  cuda::NBitsParams p = parameters(c);
  p.a = a.data();
  p.codes = static_cast<const uint8_t*>(codes.data());
  p.scales = scales.data();
  if (c.zero_type != DType::undefined) p.zeros = zeros.data();
  if (c.bias_type != DType::undefined) p.bias = bias.data();
  int n_ran = 0;
  const cuda::NBitsForm chosen = cuda::nbits_form(*device.gpu, p);
  for (const cuda::NBitsForm form : {cuda::NBitsForm::any, cuda::NBitsForm::gemv, cuda::NBitsForm::gemm, cuda::NBitsForm::wgmma}) {
    const bool exact = form == cuda::NBitsForm::any || form == cuda::NBitsForm::gemv;
    const Array y(device, static_cast<size_t>(c.m * c.n) * element_bytes(c.type)), workspace(device, cuda::nbits_workspace(form, p));
    p.y = y.data();
    const Status status = cuda::launch_nbits_as(form, *device.gpu, device.stream.get(), p, workspace.data());
    if (form != chosen && status.code() == Code::unsupported) continue;
    must(Status(status.code() == Code::ok ? Status() : Status(status.code(), c.text() + ": " + status.text())));
    device.wait(c.text() + " " + kNames[static_cast<int>(form)]);
    const std::vector<uint8_t> got = y.bytes();
    for (size_t i = 0; i < wanted.size(); ++i) {
      const double seen = value_at(c.type, got.data(), i);
      const double allowed = 1.01 * rounding(c.type) * std::fabs(wanted[i]) + (exact ? 1e-6 : 1e-6 + rounding(c.type)) * size[i] + 1e-7;
      if (std::fabs(seen - wanted[i]) <= allowed) continue;
      std::printf("%s, %s: row %zu column %zu is %g, expected %g +- %g\n", c.text().c_str(), kNames[static_cast<int>(form)],
                  i / static_cast<size_t>(c.n), i % static_cast<size_t>(c.n), seen, wanted[i], allowed);
      std::exit(1);
    }
    ++ran[static_cast<int>(form)];
    ++n_ran;
  }
  return n_ran;
}

const char* only = "";  // what the text of a measured case holds

void bench(const Device& device, Case c) {
  if (!std::strstr(c.text().c_str(), only)) return;
  std::mt19937 rng(1);
  const size_t bytes = static_cast<size_t>(c.n * c.row_bytes() + c.n * c.blocks() * static_cast<int64_t>(element_bytes(c.scale_type)));
  const int copies = static_cast<int>(std::clamp<size_t>((size_t{200} << 20) / bytes, 2, 96));  // more than the L2 holds
  Case small = c;
  small.n = std::min<int64_t>(c.n, 64);
  const Data d(small, rng);
  // Random codes, repeated down the matrix.
  std::vector<uint8_t> all(static_cast<size_t>(c.n * c.row_bytes()));
  for (size_t i = 0; i < all.size(); ++i) all[i] = d.codes[i % d.codes.size()];
  Values s(c.scale_type, static_cast<size_t>(c.n * c.blocks()));
  for (size_t i = 0; i < s.bytes.size(); ++i) s.bytes[i] = d.scales.bytes[i % d.scales.bytes.size()];
  std::vector<std::unique_ptr<Array>> codes, scales;
  for (int i = 0; i < copies; ++i) {
    codes.push_back(std::make_unique<Array>(device, all));
    scales.push_back(std::make_unique<Array>(device, s.bytes));
  }
  const Array a(device, d.a.bytes), y(device, static_cast<size_t>(c.m * c.n) * element_bytes(c.type));
  cuda::NBitsParams p = parameters(c);
  const Array workspace(device, cuda::nbits_workspace(*device.gpu, p));
  p.a = a.data();
  p.y = y.data();
  p.codes = static_cast<const uint8_t*>(codes[0]->data());
  p.scales = scales[0]->data();
  const cuda::NBitsForm form = cuda::nbits_form(*device.gpu, p);
  const double us = microseconds(device, copies, [&](int i) {
    p.codes = static_cast<const uint8_t*>(codes[static_cast<size_t>(i)]->data());
    p.scales = scales[static_cast<size_t>(i)]->data();
    must(cuda::launch_nbits(*device.gpu, device.stream.get(), p, workspace.data()));
  });
  std::printf("%-90s %-5s %8.2f us %6.0f GB/s %7.1f TFLOP/s\n", c.text().c_str(), cuda::nbits_form_name(form), us,
              static_cast<double>(bytes) / us * 1e-3, 2e-6 * static_cast<double>(c.m * c.n * c.k) / us);
}

void bench_all(const Device& device) {
  for (const DType type : kFloats)
    for (const auto& [n, k] :
         {std::pair<int64_t, int64_t>{201088, 2880}, {151936, 2048}, {5120, 2048}, {2048, 4096}, {5120, 2880}, {128, 2048}}) {
      Case c;
      c.type = c.scale_type = type;
      c.n = n;
      c.k = k;
      for (const int64_t m : {1, 4, 16, 32, 64}) {
        c.m = m;
        if (m == 1 || (m <= 16 && type == DType::f16) || n == 5120) bench(device, c);
      }
    }
  for (const int bits : {2, 8})
    for (const DType type : kFloats) {
      Case c;
      c.type = c.scale_type = type;
      c.bits = bits;
      c.n = 151936;
      c.k = 2048;
      c.block = bits == 2 ? 64 : 32;
      bench(device, c);
    }
  Case c;
  c.n = 151936;
  c.k = 2048;
  c.prepacked = true;
  bench(device, c);
  c.prepacked = false;
  c.block = 128;
  c.zero_type = DType::undefined;
  bench(device, c);
  for (const DType type : kFloats) {
    c.type = c.scale_type = type;
    c.block = 32;
    c.n = 5120;
    for (const int64_t m : {128, 1024, 4096}) {
      c.m = m;
      bench(device, c);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const Device device;
  if (argc > 1 && !std::strcmp(argv[1], "--bench")) {
    if (argc > 2) only = argv[2];
    bench_all(device);
    return 0;
  }
  const unsigned seed = choose_seed(argc, argv);
  const int n_cases = argc > 2 ? std::atoi(argv[2]) : 400;
  std::printf("seed %u\n", seed);
  std::mt19937 rng(seed);
  int ran[4] = {};
  for (int i = 0; i < n_cases; ++i) check(device, random_case(rng), rng, ran);
  // Sizes of real projections.
  for (const DType type : kFloats) {
    Case c;
    c.type = c.scale_type = type;
    c.n = 720;
    c.k = 2880;
    for (const int64_t m : {1, 2, 3, 8, 16, 40}) {
      c.m = m;
      check(device, c, rng, ran);
    }
  }
  std::printf("MatMulNBits: any %d, gemv %d, gemm %d, wgmma %d calls right\n", ran[0], ran[1], ran[2], ran[3]);
  const bool has_wgmma = device.gpu->limits().compute_capability == 90;
  return ran[0] && ran[1] && ran[2] && (ran[3] || !has_wgmma) ? 0 : 1;
}

// SPDX-License-Identifier: Apache-2.0
// Conversions of weight rows on every level against a decoder of single codes. --bench: bytes read a nanosecond.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "cpu_avx/weight_rows.h"
#include "guarded_bytes.h"

namespace {

using hotset::cpu::weight_rows_at;
using hotset::cpu::WeightRows;

int failures = 0;

void fail(const char* name, const char* what, int64_t a, int64_t b) {
  std::printf("FAILED %s: %s, sizes %lld and %lld\n", name, what, static_cast<long long>(a), static_cast<long long>(b));
  if (++failures > 20) std::exit(1);
}

// Bit i of a stream, low bits first.
int bit_at(const uint8_t* stream, int64_t i) { return stream[i / 8] >> (i % 8) & 1; }

void check_widen(int64_t count, std::mt19937& random) {
  GuardedBytes src(static_cast<size_t>((3 * count + 7) / 8)), dst(static_cast<size_t>((count + 1) / 2), random() % 5);
  for (size_t i = 0; i < src.size(); ++i) src.data()[i] = static_cast<uint8_t>(random());
  for (int level = 0; const WeightRows* rows = weight_rows_at(level); ++level) {
    std::memset(dst.data(), 0xa5, dst.size());
    rows->widen_3_to_4(src.data(), count, dst.data());
    for (int64_t i = 0; i < 2 * static_cast<int64_t>(dst.size()); ++i) {
      int want = 0;
      if (i < count) want = 4 + bit_at(src.data(), 3 * i) + 2 * bit_at(src.data(), 3 * i + 1) + 4 * bit_at(src.data(), 3 * i + 2);
      if ((dst.data()[i / 2] >> (i % 2 * 4) & 15) != want) return fail(rows->name, "widen_3_to_4", count, i);
    }
  }
}

void check_transpose(int64_t columns, int64_t k, std::mt19937& random) {
  const int64_t src_stride = columns / 2 + static_cast<int64_t>(random() % 3), row = (k + 1) / 2,
                dst_stride = row + static_cast<int64_t>(random() % 3);
  GuardedBytes src(static_cast<size_t>((k - 1) * src_stride + columns / 2)), dst(static_cast<size_t>((columns - 1) * dst_stride + row));
  for (size_t i = 0; i < src.size(); ++i) src.data()[i] = static_cast<uint8_t>(random());
  for (int level = 0; const WeightRows* rows = weight_rows_at(level); ++level) {
    std::memset(dst.data(), 0xa5, dst.size());
    rows->transpose_nibbles(src.data(), src_stride, columns, k, dst.data(), dst_stride);
    for (int64_t c = 0; c < columns; ++c) {
      for (int64_t p = 0; p < 2 * row; ++p) {
        const int want = p < k ? src.data()[p * src_stride + c / 2] >> (c % 2 * 4) & 15 : 0;
        if ((dst.data()[c * dst_stride + p / 2] >> (p % 2 * 4) & 15) != want) return fail(rows->name, "transpose_nibbles", columns, k);
      }
      for (int64_t gap = row; c + 1 < columns && gap < dst_stride; ++gap)
        if (dst.data()[c * dst_stride + gap] != 0xa5) return fail(rows->name, "transpose_nibbles wrote between rows", columns, k);
    }
  }
}

template <typename Work>
void bench(const char* what, const char* name, size_t bytes, const Work& work) {
  double best = 1e30;
  for (int round = 0; round < 20; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 20; ++i) work();
    best = std::min(best, std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / 20);
  }
  std::printf("%-18s %-10s %6.2f bytes/ns\n", what, name, static_cast<double>(bytes) / best);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "--bench") == 0) {
    std::vector<uint8_t> src(size_t{1} << 18, 0x5a), dst(src);
    for (int level = 0; const WeightRows* rows = weight_rows_at(level); ++level) {
      bench("widen_3_to_4", rows->name, 3 << 14, [&] { rows->widen_3_to_4(src.data(), 1 << 17, dst.data()); });
      bench("transpose_nibbles", rows->name, 128 * 1024,
            [&] { rows->transpose_nibbles(src.data(), 64, 128, 2048, dst.data(), 1024 + 64); });
    }
    return 0;
  }
  std::mt19937 random(5);
  for (int64_t count = 0; count < 400; ++count) check_widen(count, random);
  for (int64_t columns : {2, 16, 62, 64, 66, 128, 130, 256, 300})
    for (int64_t k : {1, 2, 31, 32, 33, 64, 96, 127}) check_transpose(columns, k, random);
  std::printf("%d failures\n", failures);
  return failures ? 1 : 0;
}

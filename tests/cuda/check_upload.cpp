// SPDX-License-Identifier: Apache-2.0
// Uploads from a mapped file to a real GPU: contents compared for pieces of all sizes, by both ways.
// --bench [GIB] [FOLDER]: rates from a file in the page cache against the rate of copies from pinned memory.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cuda/fatbins.h"
#include "cuda/upload.h"

using namespace hotset;
using namespace hotset::cuda;

namespace {

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// A file of random 64-bit words, removed at once, mapped as models are; every page is in memory.
class File {
 public:
  File(const std::string& folder, size_t bytes, ThreadPool& pool, uint64_t seed) : bytes_(bytes) {
    std::string name = folder + "/hotset-upload-XXXXXX";
    const int fd = mkstemp(name.data());
    if (fd < 0) return;
    unlink(name.c_str());
    constexpr size_t block = size_t{16} << 20;
    if (ftruncate(fd, static_cast<off_t>(bytes)) == 0) {
      pool.parallel_for(static_cast<int64_t>((bytes + block - 1) / block), [&](int64_t b, int) {
        std::mt19937_64 random(seed + static_cast<uint64_t>(b));
        std::vector<uint64_t> words(block / 8);
        for (uint64_t& w : words) w = random();
        const size_t at = static_cast<size_t>(b) * block;
        if (pwrite(fd, words.data(), std::min(block, bytes - at), static_cast<off_t>(at)) < 0) std::perror("pwrite");
      });
      void* data = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
      data_ = data == MAP_FAILED ? nullptr : static_cast<const std::byte*>(data);
    }
    close(fd);
  }
  ~File() {
    if (data_) munmap(const_cast<std::byte*>(data_), bytes_);
  }
  const std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  const std::byte* data_ = nullptr;
  size_t bytes_;
};

// Brings each piece back and compares it.
Status compare(const std::shared_ptr<Gpu>& gpu, ThreadPool& pool, std::span<const UploadPiece> pieces) {
  constexpr size_t part = size_t{64} << 20;
  HOTSET_ASSIGN(const PinnedMemory back, PinnedMemory::take(gpu, part, "comparison"));
  HOTSET_ASSIGN(const OwnStream stream, OwnStream::make(gpu));
  const Current current(*gpu);
  for (const UploadPiece& p : pieces) {
    for (size_t at = 0; at < p.bytes; at += part) {
      const size_t n = std::min(part, p.bytes - at);
      HOTSET_TRY(gpu->check(driver().memcpy_dtoh_async(back.data(), p.to + at, n, stream.get()), "cuMemcpyDtoHAsync"));
      HOTSET_TRY(stream.synchronize());
      std::atomic<bool> same{true};
      constexpr size_t share = size_t{1} << 20;
      pool.parallel_for(static_cast<int64_t>((n + share - 1) / share), [&](int64_t s, int) {
        const size_t from = static_cast<size_t>(s) * share, size = std::min(share, n - from);
        if (std::memcmp(back.data() + from, static_cast<const std::byte*>(p.from) + at + from, size) != 0) same = false;
      });
      HOTSET_FAIL_IF(!same, internal, "bytes differ in a piece of %zu bytes", p.bytes);
    }
  }
  return {};
}

Status check(const std::shared_ptr<Gpu>& gpu, const std::string& folder, uint64_t seed) {
  ThreadPool pool(4);
  const File file(folder, (size_t{200} << 20) + 12345, pool, seed);
  HOTSET_FAIL_IF(!file.data(), not_found, "no file in %s", folder.c_str());
  HOTSET_ASSIGN(const DeviceMemory memory, DeviceMemory::take(gpu, file.bytes(), Purpose::weights, "weights"));
  for (const Upload::Way way : {Upload::Way::ring, Upload::Way::in_place}) {
    std::mt19937_64 random(seed);
    std::vector<UploadPiece> pieces;
    for (size_t at = random() % 300; at < file.bytes();) {
      const size_t n = std::min<size_t>(random() % 4 == 0 ? random() % (size_t{90} << 20) : random() % 300000, file.bytes() - at);
      pieces.push_back({memory.address() + at, file.data() + at, n});
      at += n + random() % 2000;
    }
    std::shuffle(pieces.begin(), pieces.end(), random);
    const Current current(*gpu);
    HOTSET_TRY(gpu->check(driver().memset_d8_async(memory.address(), 0xa5, file.bytes(), nullptr), "poison"));
    HOTSET_TRY(gpu->check(driver().stream_synchronize(nullptr), "poison"));
    HOTSET_TRY(upload(gpu, pool, pieces, {.way = way}));
    HOTSET_TRY(compare(gpu, pool, pieces));
    HOTSET_FAIL_IF(gpu->pinned_bytes() != 0, internal, "%zu bytes are still pinned", gpu->pinned_bytes());
    std::printf("%s: %zu pieces of %zu bytes are right\n", way == Upload::Way::ring ? "ring" : "in place", pieces.size(), file.bytes());
  }
  return {};
}

// Bytes a second of copies from pinned memory.
hotset::Result<double> pinned_rate(const std::shared_ptr<Gpu>& gpu, DevicePtr to) {
  constexpr size_t bytes = size_t{256} << 20;
  HOTSET_ASSIGN(const PinnedMemory memory, PinnedMemory::take(gpu, bytes, "pinned memory"));
  HOTSET_ASSIGN(const OwnStream stream, OwnStream::make(gpu));
  const Current current(*gpu);
  double best = 0;
  for (int round = 0; round < 4; ++round) {
    const double start = seconds();
    for (int i = 0; i < 8; ++i)
      HOTSET_TRY(gpu->check(driver().memcpy_htod_async(to, memory.data(), bytes, stream.get()), "cuMemcpyHtoDAsync"));
    HOTSET_TRY(stream.synchronize());
    best = std::max(best, 8.0 * bytes / (seconds() - start));
  }
  return best;
}

Status bench(const std::shared_ptr<Gpu>& gpu, const std::string& folder, size_t gib, uint64_t seed) {
  const int n_processors = available_threads();
  ThreadPool writers(n_processors);
  const File file(folder, gib << 30, writers, seed);
  HOTSET_FAIL_IF(!file.data(), not_found, "no file in %s", folder.c_str());
  HOTSET_ASSIGN(const DeviceMemory memory, DeviceMemory::take(gpu, file.bytes(), Purpose::weights, "weights"));
  HOTSET_ASSIGN(const double pinned, pinned_rate(gpu, memory.address()));
  std::printf("%s, %d processors; pinned memory: %.1f GB/s\n", gpu->info().name.c_str(), n_processors, pinned / 1e9);
  // As a model has them: large tensors and, between them, small ones.
  std::vector<UploadPiece> pieces;
  for (size_t at = 0; at < file.bytes();) {
    const size_t n = std::min(pieces.size() % 2 ? size_t{24} << 20 : size_t{70000}, file.bytes() - at);
    pieces.push_back({memory.address() + at, file.data() + at, n});
    at += n;
  }
  for (const Upload::Way way : {Upload::Way::ring, Upload::Way::in_place}) {
    for (const auto& [n_threads, pinned_mib] : {std::pair{1, 4},
                                                {2, 4},
                                                {4, 4},
                                                {4, 8},
                                                {8, 2},
                                                {8, 4},
                                                {8, 8},
                                                {8, 16},
                                                {12, 4},
                                                {12, 8},
                                                {16, 4},
                                                {16, 8},
                                                {16, 16},
                                                {16, 32}}) {
      if (n_threads > n_processors || (way == Upload::Way::in_place && pinned_mib != 4)) continue;
      ThreadPool pool(n_threads);
      double best = 1e9, first = 0;
      for (int round = 0; round < 3; ++round) {
        const double start = seconds();
        HOTSET_TRY(upload(gpu, pool, pieces, {.way = way, .pinned_bytes = static_cast<size_t>(pinned_mib) << 20}));
        best = std::min(best, seconds() - start);
        if (round == 0) first = best;
      }
      const double bytes = static_cast<double>(file.bytes());
      std::printf("upload %-8s %2d threads, %3d MiB: %5.1f GB/s, %.2f of pinned (first time %.1f GB/s)\n",
                  way == Upload::Way::ring ? "ring" : "in place", n_threads, pinned_mib, bytes / best / 1e9, bytes / best / pinned,
                  bytes / first / 1e9);
      std::fflush(stdout);
    }
    HOTSET_TRY(compare(gpu, writers, pieces));
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  auto gpu = Gpu::open(0);
  if (!gpu.ok()) {
    std::printf("%s\n", gpu.take_status().text().c_str());
    return 77;
  }
  const bool wants_bench = argc > 1 && std::string(argv[1]) == "--bench";
  const uint64_t seed = argc > 1 && !wants_bench ? std::strtoull(argv[1], nullptr, 10) : std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  const char* temporary = std::getenv("TMPDIR");
  const std::string folder = wants_bench && argc > 3 ? argv[3] : temporary ? temporary : "/tmp";
  const Status status =
      wants_bench ? bench(gpu.value(), folder, argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 8, seed) : check(gpu.value(), folder, seed);
  if (!status.ok()) std::printf("%s\n", status.text().c_str());
  return status.ok() ? 0 : 1;
}

// SPDX-License-Identifier: Apache-2.0
// Uploads on a stand-in driver whose streams run as late as they may: every byte arrives, by both ways, whatever the pieces and the
// threads; any call of the driver may fail; progress is told and can cancel.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <vector>

#include "cuda/upload.h"
#include "fake_gpu.h"

using namespace hotset;
using namespace hotset::cuda;

namespace {

int failures = 0;

void expect(bool ok, const std::string& what, const std::string& seen = {}) {
  if (ok) return;
  ++failures;
  std::printf("FAIL %s: '%s'\n", what.c_str(), seen.c_str());
}

// A file of random bytes, mapped as models are.
class File {
 public:
  explicit File(size_t bytes) : bytes_(bytes) {
    char name[] = "/tmp/hotset-upload-XXXXXX";
    const int fd = mkstemp(name);
    unlink(name);
    std::vector<uint32_t> block(1 << 16);
    std::mt19937 random(7);
    for (size_t at = 0; at < bytes; at += block.size() * 4) {
      for (uint32_t& x : block) x = random();
      const size_t n = std::min(block.size() * 4, bytes - at);
      if (write(fd, block.data(), n) != static_cast<ssize_t>(n)) std::abort();
    }
    data_ = static_cast<const unsigned char*>(mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0));
    close(fd);
  }
  ~File() { munmap(const_cast<unsigned char*>(data_), bytes_); }
  const unsigned char* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  const unsigned char* data_;
  size_t bytes_;
};

// Pieces of random sizes over the whole file, with gaps in the file and on the device, one twice, in random order.
std::vector<UploadPiece> pieces_of(const File& file, DevicePtr device, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<UploadPiece> pieces;
  for (size_t at = random() % 100; at < file.bytes();) {
    const size_t kind = random() % 8;
    const size_t n = std::min(kind == 0 ? size_t{20} << 20 : kind < 3 ? random() % 3000000 : random() % 3000, file.bytes() - at);
    pieces.push_back({device + at, file.data() + at, n});
    at += n + (random() % 3 ? 0 : random() % (kind == 1 ? 3000000 : 500));
  }
  pieces.push_back({device + file.bytes(), file.data() + 5, std::min(file.bytes() - 5, size_t{6} << 20)});
  std::shuffle(pieces.begin(), pieces.end(), random);
  return pieces;
}

// The host's view of device memory of the stand-in.
const unsigned char* host_view(DevicePtr address) { return reinterpret_cast<const unsigned char*>(address & ~(uint64_t{1} << 62)); }

Status send(const File& file, int n_threads, Upload how, unsigned seed) {
  HOTSET_ASSIGN(const std::shared_ptr<Gpu> gpu, Gpu::open(0));
  HOTSET_ASSIGN(const DeviceMemory memory, DeviceMemory::take(gpu, file.bytes() + (size_t{6} << 20), Purpose::weights, "weights"));
  const std::vector<UploadPiece> pieces = pieces_of(file, memory.address(), seed);
  ThreadPool pool(n_threads);
  Status status = upload(gpu, pool, pieces, how);
  HOTSET_TRY(std::move(status));
  for (const UploadPiece& p : pieces)
    HOTSET_FAIL_IF(std::memcmp(host_view(p.to), p.from, p.bytes) != 0, internal, "a piece of %zu bytes is wrong", p.bytes);
  HOTSET_FAIL_IF(gpu->pinned_bytes() != 0, internal, "%zu bytes are still pinned", gpu->pinned_bytes());
  return {};
}

constexpr Upload::Way kWays[] = {Upload::Way::ring, Upload::Way::in_place};

void test_every_byte_arrives() {
  const File file((size_t{150} << 20) + 777);
  for (const Upload::Way way : kWays) {
    for (int n_threads : {1, 2, 3, 9}) {
      for (size_t pinned : {size_t{1}, size_t{32} << 20}) {
        fake::reset();
        const Status status = send(file, n_threads, {.way = way, .progress = {}, .pinned_bytes = pinned}, static_cast<unsigned>(n_threads));
        expect(status.ok() && fake::misuse().empty() && fake::live() == 0, "arrives", status.text() + fake::misuse());
        expect((fake::calls("cuMemHostRegister") > 2) == (way == Upload::Way::in_place), "by its way");
      }
    }
  }
}

void test_best_way() {
  const File file(size_t{5} << 20);
  for (int n_threads : {1, 2, 3, 8}) {
    fake::reset();
    expect(send(file, n_threads, {.way = Upload::Way::best}, 2).ok(), "the best way");
    expect((fake::calls("cuMemHostRegister") > 0) == (n_threads <= 2), "few threads pin in place");
  }
}

void test_any_call_fails() {
  const File file(size_t{5} << 20);
  for (const Upload::Way way : kWays) {
    for (const char* function : {"cuMemHostAlloc", "cuMemHostRegister", "cuMemcpyHtoDAsync", "cuEventCreate", "cuEventRecord",
                                 "cuEventSynchronize", "cuStreamCreate", "cuStreamSynchronize"}) {
      fake::reset();
      (void)send(file, 2, {.way = way}, 1).ok();
      const int n = static_cast<int>(fake::calls(function));
      for (int nth = 1; nth <= std::min(n, 20); ++nth) {
        fake::reset();
        fake::fail(function, nth, 999);
        const Status status = send(file, 2, {.way = way}, 1);
        const bool is_replaced = std::string_view(function) == "cuMemHostRegister";  // by the ring
        expect(is_replaced ? status.ok() : status.code() == Code::device, std::string(function) + " fails", status.text());
        expect(fake::live() == 0 && fake::misuse().empty(), std::string(function) + " leaves nothing", fake::misuse());
      }
    }
  }
}

void test_progress() {
  const File file(size_t{40} << 20);
  for (const Upload::Way way : kWays) {
    for (int n_threads : {1, 4}) {
      uint64_t last = 0, total = 0;
      int n = 0;
      Upload how{.way = way};
      how.progress = [&](uint64_t done, uint64_t all) {
        expect(done >= last && done <= all, "progress only grows");
        last = done;
        total = all;
        ++n;
        return true;
      };
      expect(send(file, n_threads, how, 3).ok() && last == total && total > 0 && n >= 1, "progress ends at the total");
      how.progress = [](uint64_t, uint64_t) { return false; };
      fake::reset();
      const Status status = send(file, n_threads, how, 3);
      expect(status.code() == Code::cancelled && fake::live() == 0 && fake::misuse().empty(), "cancelled", status.text() + fake::misuse());
    }
  }
}

}  // namespace

int main() {
  fake::library();
  fake::set_lazy(true);
  test_every_byte_arrives();
  test_best_way();
  test_any_call_fails();
  test_progress();
  std::printf("%d failures\n", failures);
  return failures != 0;
}

// SPDX-License-Identifier: Apache-2.0
// Copies of weights to a device: a ring of pinned buffers, or file pages pinned in place.
#include "cuda/upload.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace hotset::cuda {
namespace {

constexpr size_t kMaxBuffer = size_t{4} << 20;  // 4 MiB travel in 75 us, many times what it costs to start a copy
constexpr size_t kMinBuffer = size_t{64} << 10;
constexpr size_t kMaxThreads = 16;            // a thread copies 5 to 9 GB/s, the bus takes 55
constexpr size_t kMaxPinners = 4;             // threads that pin pages in place
constexpr size_t kWindow = size_t{64} << 20;  // pinned in place at a time, two for each of those threads
constexpr size_t kMaxGap = size_t{1} << 20;   // between pieces of a window: is pinned with them
constexpr size_t kPage = 4096;

// A thread's buffer and the event after which it may be filled again.
class Buffer {
 public:
  static hotset::Result<Buffer> make(std::shared_ptr<Gpu> gpu, std::byte* data) {
    Buffer b;
    HOTSET_ASSIGN(b.event_, OwnEvent::make(std::move(gpu)));
    b.data_ = data;
    return b;
  }
  std::byte* data() const { return data_; }
  Status wait() const { return event_.synchronize(); }
  Status mark(Stream stream) const { return event_.record(stream); }

 private:
  OwnEvent event_;
  std::byte* data_ = nullptr;
};

// The bytes of all pieces in a row, cut where a buffer is full: chunk c is the bytes from c * size on.
class Chunks {
 public:
  Chunks(std::span<const UploadPiece> pieces, size_t size) : pieces_(pieces), size_(size) {
    starts_.reserve(pieces.size());
    for (const UploadPiece& p : pieces) {
      starts_.push_back(total_);
      total_ += p.bytes;
    }
  }
  uint64_t total() const { return total_; }
  int64_t count() const { return static_cast<int64_t>((total_ + size_ - 1) / size_); }
  size_t bytes(int64_t chunk) const {
    return static_cast<size_t>(std::min<uint64_t>(size_, total_ - static_cast<uint64_t>(chunk) * size_));
  }

  // Calls f(part, offset in the chunk) -> Status for the parts of pieces that make up a chunk.
  template <class F>
  Status each(int64_t chunk, F&& f) const {
    const uint64_t begin = static_cast<uint64_t>(chunk) * size_, end = begin + bytes(chunk);
    auto i = static_cast<size_t>(std::upper_bound(starts_.begin(), starts_.end(), begin) - starts_.begin() - 1);
    for (uint64_t at = begin; at < end; ++i) {
      const UploadPiece& piece = pieces_[i];
      const uint64_t skip = at - starts_[i], n = std::min<uint64_t>(piece.bytes - skip, end - at);
      if (n) HOTSET_TRY(f(UploadPiece{piece.to + skip, static_cast<const std::byte*>(piece.from) + skip, n}, at - begin));
      at += n;
    }
    return {};
  }

 private:
  std::span<const UploadPiece> pieces_;
  size_t size_;
  std::vector<uint64_t> starts_;
  uint64_t total_ = 0;
};

Status cancelled() { return Status(Code::cancelled, "the progress callback cancelled the load"); }

// Work of several threads that stops at the first failure, which it keeps.
class Outcome {
 public:
  bool stopped() const { return stopped_.load(std::memory_order_relaxed); }
  void keep(Status status) {
    const std::lock_guard lock(mutex_);
    if (!stopped_.exchange(true)) first_ = std::move(status);
  }
  Status take() { return std::move(first_); }

 private:
  std::atomic<bool> stopped_{false};
  std::mutex mutex_;
  Status first_;
};

Status copy_chunk(const Gpu& gpu, Stream stream, const Chunks& chunks, int64_t chunk, const Buffer& buffer) {
  HOTSET_TRY(buffer.wait());
  HOTSET_TRY(chunks.each(chunk, [&](const UploadPiece& part, uint64_t offset) -> Status {
    std::memcpy(buffer.data() + offset, part.from, part.bytes);
    return {};
  }));
  // Neighbours on the device go in one copy.
  DevicePtr to = 0;
  uint64_t first = 0, end = 0;
  const auto send = [&]() -> Status {
    if (first == end) return {};
    return gpu.check(driver().memcpy_htod_async(to, buffer.data() + first, end - first, stream), "cuMemcpyHtoDAsync");
  };
  HOTSET_TRY(chunks.each(chunk, [&](const UploadPiece& part, uint64_t offset) -> Status {
    if (first == end || part.to != to + (end - first)) {
      HOTSET_TRY(send());
      to = part.to;
      first = offset;
    }
    end = offset + part.bytes;
    return {};
  }));
  HOTSET_TRY(send());
  return buffer.mark(stream);
}

// Bytes done by all threads; the calling one tells them.
struct Progress {
  const Upload& how;
  uint64_t total;
  const std::thread::id caller = std::this_thread::get_id();
  std::atomic<uint64_t> done{0};

  // False: cancelled.
  bool add(uint64_t bytes) {
    const uint64_t n = done.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    return !how.progress || std::this_thread::get_id() != caller || n >= total || how.progress(n, total);
  }
  Status finish() const { return how.progress && !how.progress(total, total) ? cancelled() : Status(); }
};

Status upload_by_ring(const std::shared_ptr<Gpu>& gpu, ThreadPool& pool, std::span<const UploadPiece> pieces, const Upload& how) {
  const size_t n_threads = std::min(static_cast<size_t>(pool.size()), kMaxThreads);
  const size_t size = std::clamp(how.pinned_bytes / (2 * n_threads) / kPage * kPage, kMinBuffer, kMaxBuffer);
  const Chunks chunks(pieces, size);
  const size_t n_buffers = std::min(2 * n_threads, static_cast<size_t>(chunks.count()));
  const size_t n_tasks = std::min(n_threads, n_buffers);
  HOTSET_ASSIGN(const PinnedMemory memory, PinnedMemory::take(gpu, n_buffers * size, "staging of weights"));
  std::vector<Buffer> buffers;
  for (size_t b = 0; b < n_buffers; ++b) {
    HOTSET_ASSIGN(Buffer buffer, Buffer::make(gpu, memory.data() + b * size));
    buffers.push_back(std::move(buffer));
  }
  HOTSET_ASSIGN(const OwnStream stream, OwnStream::make(gpu));
  std::atomic<int64_t> next{0};
  Progress progress{how, chunks.total()};
  Outcome outcome;
  pool.parallel_for(static_cast<int64_t>(n_tasks), [&](int64_t task, int) {
    const Current current(*gpu);
    for (size_t b = static_cast<size_t>(task); !outcome.stopped(); b = b + n_tasks < n_buffers ? b + n_tasks : static_cast<size_t>(task)) {
      const int64_t chunk = next.fetch_add(1, std::memory_order_relaxed);
      if (chunk >= chunks.count()) return;
      Status status = copy_chunk(*gpu, stream.get(), chunks, chunk, buffers[b]);
      if (status.ok() && !progress.add(chunks.bytes(chunk))) status = cancelled();
      if (!status.ok()) outcome.keep(std::move(status));
    }
  });
  Status end = stream.synchronize();  // after a failure too: copies may still read the buffers
  if (outcome.stopped()) return outcome.take();
  HOTSET_TRY(std::move(end));
  return progress.finish();
}

// Whole pages that are pinned together, and the parts of pieces in them.
struct Window {
  uintptr_t begin, end;
  std::vector<UploadPiece> parts;
};

uintptr_t address(const void* p) { return reinterpret_cast<uintptr_t>(p); }

// Disjoint windows of at most kWindow around all sources, each with what lies in it.
std::vector<Window> windows_of(std::span<const UploadPiece> pieces) {
  std::vector<std::pair<uintptr_t, uintptr_t>> ranges;  // whole pages
  for (const UploadPiece& p : pieces) {
    if (p.bytes) ranges.emplace_back(address(p.from) / kPage * kPage, (address(p.from) + p.bytes + kPage - 1) / kPage * kPage);
  }
  std::sort(ranges.begin(), ranges.end());
  std::vector<Window> windows;
  for (auto [begin, end] : ranges) {
    if (!windows.empty()) {  // what is pinned already, and small gaps
      const uintptr_t pinned = windows.back().end;
      begin = begin <= pinned + kMaxGap ? pinned : begin;
    }
    for (uintptr_t at = begin; at < end;) {
      if (windows.empty() || at > windows.back().end || windows.back().end == windows.back().begin + kWindow)
        windows.push_back({at, at, {}});
      Window& w = windows.back();
      at = w.end = std::min(end, w.begin + kWindow);
    }
  }
  for (const UploadPiece& p : pieces) {
    const uintptr_t from = address(p.from), to = from + p.bytes;
    auto w = std::upper_bound(windows.begin(), windows.end(), from, [](uintptr_t a, const Window& window) { return a < window.begin; }) - 1;
    for (uintptr_t at = from; at < to; ++w) {
      const uintptr_t until = std::min(to, w->end);
      w->parts.push_back({p.to + (at - from), reinterpret_cast<const void*>(at), until - at});
      at = until;
    }
  }
  return windows;
}

// A window on its way.
struct Travelling {
  RegisteredMemory pages;
  OwnEvent event;

  Status finish() {
    if (!pages) return {};
    HOTSET_TRY(event.synchronize());
    pages.give();
    return {};
  }
};

Status send_window(const std::shared_ptr<Gpu>& gpu, Stream stream, const Window& window, Travelling* out) {
  HOTSET_ASSIGN(out->pages, RegisteredMemory::take(gpu, reinterpret_cast<void*>(window.begin), window.end - window.begin, "weights"));
  for (const UploadPiece& part : window.parts)
    HOTSET_TRY(gpu->check(driver().memcpy_htod_async(part.to, part.from, part.bytes, stream), "cuMemcpyHtoDAsync"));
  return out->event.record(stream);
}

Status upload_in_place(const std::shared_ptr<Gpu>& gpu, ThreadPool& pool, std::span<const UploadPiece> pieces, const Upload& how) {
  const std::vector<Window> windows = windows_of(pieces);
  const size_t n_tasks = std::min({static_cast<size_t>(pool.size()), kMaxPinners, windows.size()});
  std::vector<Travelling> travelling(2 * n_tasks);
  for (Travelling& t : travelling) {
    HOTSET_ASSIGN(t.event, OwnEvent::make(gpu));
  }
  HOTSET_ASSIGN(const OwnStream stream, OwnStream::make(gpu));
  std::atomic<size_t> next{0};
  Progress progress{how, Chunks(pieces, kWindow).total()};
  Outcome outcome;
  pool.parallel_for(static_cast<int64_t>(n_tasks), [&](int64_t task, int) {
    const Current current(*gpu);
    for (size_t turn = 0; !outcome.stopped(); turn = 1 - turn) {
      const size_t w = next.fetch_add(1, std::memory_order_relaxed);
      if (w >= windows.size()) return;
      Travelling& slot = travelling[2 * static_cast<size_t>(task) + turn];
      Status status = slot.finish();
      if (status.ok()) status = send_window(gpu, stream.get(), windows[w], &slot);
      uint64_t bytes = 0;
      for (const UploadPiece& part : windows[w].parts) bytes += part.bytes;
      if (status.ok() && !progress.add(bytes)) status = cancelled();
      if (!status.ok()) outcome.keep(std::move(status));
    }
  });
  Status end = stream.synchronize();  // before the pages are given back
  if (outcome.stopped()) return outcome.take();
  HOTSET_TRY(std::move(end));
  return progress.finish();
}

}  // namespace

Status upload(std::shared_ptr<Gpu> gpu, ThreadPool& pool, std::span<const UploadPiece> pieces, const Upload& how) {
  if (std::all_of(pieces.begin(), pieces.end(), [](const UploadPiece& p) { return p.bytes == 0; })) return {};
  const bool in_place = how.way == Upload::Way::in_place || (how.way == Upload::Way::best && pool.size() <= 2);
  if (in_place && gpu->limits().registers_read_only_host_memory) {
    Status status = upload_in_place(gpu, pool, pieces, how);
    if (status.code() != Code::unsupported) return status;
  }
  return upload_by_ring(gpu, pool, pieces, how);
}

}  // namespace hotset::cuda

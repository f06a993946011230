// SPDX-License-Identifier: Apache-2.0
// Frames, readers and reservations: the right bytes for every thread, the right frame given up, faults as statuses.
#include "experts/expert_cache.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>

#if defined(_WIN32)
int main() {
  std::printf("needs POSIX files\n");
  return 77;
}
#else
#include <fcntl.h>
#include <unistd.h>

using namespace hotset;
using namespace hotset::experts;

namespace {

std::atomic<int> failures{0};
void expect(bool ok, const char* what) {
  if (ok) return;
  if (++failures < 20) std::printf("FAILED: %s\n", what);
}

constexpr int kGroups = 2;
constexpr int64_t kExperts = 40;
constexpr size_t kBytes[] = {9000, 5001}, kStart[] = {100, 400100};  // of an expert; of the tensor in the file

uint8_t byte_at(uint64_t offset) { return static_cast<uint8_t>(offset * 2654435761u >> 13); }

// A file of its own whose bytes tell where they are.
struct File {
  std::string path;
  std::shared_ptr<model::MappedFile> mapped;
  std::unique_ptr<model::FileReader> reader;

  File() {
    std::string name = (std::filesystem::temp_directory_path() / "hotset-cache-XXXXXX").string();
    const int fd = mkstemp(name.data());
    path = name;
    std::vector<uint8_t> bytes(kStart[1] + kBytes[1] * kExperts);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = byte_at(i);
    if (fd < 0 || write(fd, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()) || fsync(fd) != 0) std::abort();
    close(fd);
    mapped = model::MappedFile::open(path).value();
    reader = std::move(model::FileReader::open(mapped).value());
  }
  ~File() { std::filesystem::remove(path); }

  std::vector<PartGroup> groups() const {
    std::vector<PartGroup> groups;
    for (int g = 0; g < kGroups; ++g) {
      // Two tensors of a group: all its bytes but the last 1000 of each expert are one, and those once more another.
      groups.push_back({kExperts, g, {{reader.get(), kStart[g], kBytes[g], 0}, {reader.get(), kStart[g] + 7, 1000, 0}}});
    }
    return groups;
  }
};

std::vector<FramePool> pools(const File& file, int64_t frames) {
  std::vector<FramePool> pools;
  for (const PartGroup& group : file.groups()) pools.push_back({ExpertCache::frame_bytes(group.pieces), kExperts, frames});
  return pools;
}

bool has_bytes(const ExpertCache& cache, int32_t frame, int group, int64_t expert) {
  const uint64_t at[] = {kStart[group] + static_cast<uint64_t>(expert) * kBytes[group],
                         kStart[group] + 7 + static_cast<uint64_t>(expert) * 1000};
  const size_t n[] = {kBytes[group], 1000};
  for (size_t piece = 0; piece < 2; ++piece) {
    const uint8_t* const bytes = cache.bytes(frame, group, expert, piece);
    for (size_t i = 0; i < n[piece]; ++i)
      if (bytes[i] != byte_at(at[piece] + i)) return false;
  }
  return true;
}

// Reads, or finds, one part and gives it up again.
bool use(ExpertCache& cache, int group, int64_t expert, bool once = false, bool* was_there = nullptr) {
  bool there = false;
  const ExpertCache::Reservation r{{group, -1}, {1, 0}};
  if (!cache.reserve(r, nullptr)) return false;
  const int32_t frame = cache.pin(group, expert, was_there ? was_there : &there);
  const bool ok = cache.wait(frame, nullptr) && has_bytes(cache, frame, group, expert);
  cache.unpin(frame, once);
  cache.give_back(r);
  return ok;
}

bool is_there(ExpertCache& cache, int64_t expert) { return cache.is_ready(0, expert); }

void which_goes() {
  const File file;
  std::vector<double> used(kExperts, 0.0);
  ExpertCache cache(file.groups(), pools(file, 4), {false, false, [&](int, int64_t e) { return used[static_cast<size_t>(e)]; }, {}});
  for (int64_t e : {0, 1, 2, 3, 0}) expect(use(cache, 0, e), "bytes");
  expect(use(cache, 0, 4) && !is_there(cache, 1) && is_there(cache, 0), "of equals the oldest goes");
  used[2] = 0.5;
  expect(use(cache, 0, 5) && is_there(cache, 2) && !is_there(cache, 3), "the oldest stays while others are used less");
  used[0] = used[4] = used[5] = 0.7;
  expect(use(cache, 0, 6) && !is_there(cache, 2), "the one used least goes");
  expect(use(cache, 0, 7, true) && use(cache, 0, 8) && !is_there(cache, 7), "what was used once goes first");
  const ExpertCache::Stats stats = cache.stats();
  expect(stats.misses == 9 && stats.hits == 1 && stats.evictions == 5 && stats.failures == 0, "counts");
  expect(stats.resident_bytes == 4 * cache.bytes_of_frame(0), "four frames are held");
}

void many_threads(bool paged) {
  const File file;
  ExpertCache cache(file.groups(), pools(file, 6), {paged, false, {}, {}});
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 6; ++t)
    threads.emplace_back([&, t] {
      std::mt19937 rng(t);
      for (int round = 0; round < 150; ++round) {
        // As a layer does: a few of both groups, pinned together.
        const int64_t n = 1 + static_cast<int64_t>(rng() % 3);
        const ExpertCache::Reservation r{{0, 1}, {n, n}};
        const std::atomic<bool> cancelled{rng() % 8 == 0};
        if (!cache.reserve(r, rng() % 2 ? &cancelled : nullptr)) continue;
        std::vector<std::pair<int32_t, int64_t> > pinned[2];
        const int64_t first = static_cast<int64_t>(rng() % kExperts);
        bool there = false;
        for (int g = 0; g < kGroups; ++g)
          for (int64_t i = 0; i < n; ++i) {
            const int64_t e = (first + i * 3) % kExperts;
            pinned[g].emplace_back(cache.pin(g, e, &there), e);
          }
        for (int g = 0; g < kGroups; ++g)
          for (const auto& [frame, e] : pinned[g])
            if (cache.wait(frame, &cancelled)) expect(has_bytes(cache, frame, g, e), "bytes with many threads");
        for (int g = 0; g < kGroups; ++g)
          for (const auto& [frame, e] : pinned[g]) cache.unpin(frame, rng() % 4 == 0);
        cache.give_back(r);
      }
    });
  for (std::thread& t : threads) t.join();
  for (int64_t e = 0; e < kExperts; ++e) expect(use(cache, 0, e) && use(cache, 1, e), "all frames serve afterwards");
}

void filled() {
  const File file;
  std::atomic<int> n_filled{0};
  ExpertCache cache(file.groups(), pools(file, kExperts), {false, true, {}, [&] { ++n_filled; }});
  expect(use(cache, 1, 17), "asked for while the rest is read");
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!cache.is_all_ready() && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  expect(cache.is_all_ready(), "idle readers read everything");
  while (n_filled == 0 && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  expect(n_filled == 1, "that is told once");
  for (int g = 0; g < kGroups; ++g)
    for (int64_t e = 0; e < kExperts; ++e) expect(has_bytes(cache, cache.frame_of(g, e), g, e), "bytes of what was filled");
  expect(cache.stats().evictions == 0, "nothing was given up");
}

// Frames for some: what is known to be used, the most used first, and nothing is given up for it.
void filled_by_use(bool paged) {
  const File file;
  const auto used = [](int group, int64_t e) { return e % 7 == group ? static_cast<double>(e + 1) : 0.0; };
  for (const int64_t frames : {2, 4, 30}) {
    ExpertCache cache(file.groups(), pools(file, frames), {paged, true, used, {}});
    const int64_t hot[] = {(kExperts + 6) / 7, (kExperts + 5) / 7};  // experts in use, by group
    const int64_t wanted = std::min(frames, hot[0]) + std::min(frames, hot[1]);
    const auto n_ready = [&] {
      int64_t n = 0;
      for (int g = 0; g < kGroups; ++g)
        for (int64_t e = 0; e < kExperts; ++e) n += cache.is_ready(g, e);
      return n;
    };
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (n_ready() < wanted && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    expect(n_ready() == wanted && cache.stats().fills == static_cast<uint64_t>(wanted), "as many as are used and have a frame");
    for (int g = 0; g < kGroups; ++g) {
      int64_t best = kExperts - 1;
      for (int64_t i = 0; i < std::min(frames, hot[g]); ++i, --best) {
        while (best % 7 != g) --best;
        expect(cache.is_ready(g, best) && has_bytes(cache, cache.frame_of(g, best), g, best), "the ones used most");
      }
    }
    expect(cache.stats().misses == 0 && cache.stats().evictions == 0, "before anything was asked for");
    bool there = false;
    expect(use(cache, 0, 35, false, &there) && there, "found at its first use");
    // Of more parts than are compared with each other the oldest go, so the ones filled first are the newest.
    for (int64_t e = 1; e <= frames - 1; ++e) expect(use(cache, 0, e == 28 ? 39 : e), "others");
    expect(is_there(cache, 35), "the one used most stays");
  }
}

void reservations() {
  const File file;
  ExpertCache cache(file.groups(), pools(file, 4), {});
  const ExpertCache::Reservation most{{0, 1}, {3, 3}};
  expect(cache.reserve(most, nullptr), "room");
  std::atomic<bool> cancelled{false}, got{false}, refused{false};
  std::thread waits([&] {
    got = cache.reserve(most, nullptr);
    cache.give_back(most);
  });
  std::thread gives_up([&] { refused = !cache.reserve(most, &cancelled); });
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  expect(!got, "no room for two");
  cancelled = true;
  gives_up.join();
  expect(refused, "a cancelled run does not wait");
  cache.give_back(most);
  waits.join();
  expect(got, "room again");
  const ExpertCache::Reservation same{{0, 0}, {2, 2}}, too{{0, 0}, {3, 2}};
  expect(cache.reserve(same, nullptr), "both parts of one pool");
  cache.give_back(same);
  cancelled = true;
  expect(!cache.reserve(too, &cancelled), "more than there are");
}

void faults() {
  const File file;
  ExpertCache cache(file.groups(), pools(file, 4), {});
  expect(use(cache, 1, 1), "before");
  if (truncate(file.path.c_str(), static_cast<off_t>(kStart[1] + kBytes[1] * 10)) != 0) std::abort();
  bool there = false;
  const int32_t frame = cache.pin(1, 30, &there);
  expect(!cache.wait(frame, nullptr), "behind the new end");
  const Status status = cache.failure(frame);
  expect(status.code() == Code::invalid_state && status.text().find("shorter") != std::string::npos, status.text().c_str());
  cache.unpin(frame, false);
  expect(use(cache, 1, 1) && use(cache, 0, 3), "other experts are still served");
  std::vector<uint8_t> rest(kStart[1] + kBytes[1] * kExperts);
  for (size_t i = 0; i < rest.size(); ++i) rest[i] = byte_at(i);
  const int fd = open(file.path.c_str(), O_WRONLY);
  if (fd < 0 || write(fd, rest.data(), rest.size()) != static_cast<ssize_t>(rest.size())) std::abort();
  close(fd);
  expect(use(cache, 1, 30), "read again once it can be");
}

void replaced() {
  File file;
  const std::string other = file.path + ".new";
  std::filesystem::copy_file(file.path, other);
  std::filesystem::rename(other, file.path);
  auto reader = model::FileReader::open(file.mapped);
  expect(!reader.ok() && reader.take_status().text().find("replaced") != std::string::npos, "another file of the same name");
}

}  // namespace

int main() {
  which_goes();
  many_threads(false);
  many_threads(true);
  filled();
  filled_by_use(false);
  filled_by_use(true);
  reservations();
  faults();
  replaced();
  if (failures) return EXIT_FAILURE;
  std::printf("ok\n");
  return EXIT_SUCCESS;
}
#endif

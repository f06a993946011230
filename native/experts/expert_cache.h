// SPDX-License-Identifier: Apache-2.0
// Frames of memory that hold parts of experts, the threads that read them from files, and what is given up for them.
//
// A frame is empty, being read, or ready. While somebody uses it, it is pinned; otherwise it stands in a list by age, from which
// the next to be given up is taken: of the oldest few the one whose expert is used least. Who wants parts of a layer reserves as
// many frames as will be pinned at once, before the first is: so runs at the same time wait for each other, and never in a ring.
//
// Readers that nobody waits for fill empty frames, the parts used most first; they take no frame that holds something.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/page_block.h"
#include "base/status.h"
#include "experts/store_plan.h"
#include "model/file_reader.h"

namespace hotset::experts {

// A tensor of one part, in its file and in its frame. Expert e begins at offset + e * bytes.
struct PartPiece {
  const model::FileReader* file = nullptr;
  uint64_t offset = 0;
  size_t bytes = 0;
  size_t at = 0;  // in the frame; whole aligned blocks are read, so the bytes begin at + offset % FileReader::kAlignment
};

// A part of all experts of a layer.
struct PartGroup {
  int64_t n_experts = 0;
  int pool = 0;
  std::vector<PartPiece> pieces;
};

class ExpertCache {
 public:
  static constexpr int kReaders = 4;
  static constexpr size_t kRequestBytes = size_t{4} << 20;  // of one read
  static size_t frame_bytes(const std::vector<PartPiece>& pieces);

  struct Settings {
    bool paged = false;                                      // frames stand for pages of the mapping; nothing is copied
    bool fill = false;                                       // idle readers fill frames that are empty: see list_fills()
    std::function<double(int group, int64_t expert)> score;  // how much an expert is used; empty: all the same
    std::function<void()> filled;                            // called once by a reader when all have been filled; does not throw
  };
  // Starts the readers. Throws std::bad_alloc and std::system_error.
  ExpertCache(std::vector<PartGroup> groups, const std::vector<FramePool>& pools, Settings settings);
  // Nothing may be reserved or pinned. In a child made by fork() the readers do not exist and are not waited for.
  ~ExpertCache();
  ExpertCache(const ExpertCache&) = delete;
  ExpertCache& operator=(const ExpertCache&) = delete;

  // Waits until so many frames can be pinned, at most all of a pool; first come, first served. False when *cancelled was set meanwhile.
  struct Reservation {
    int pool[2];
    int64_t frames[2];
  };
  bool reserve(const Reservation& wanted, const std::atomic<bool>* cancelled);
  void give_back(const Reservation& held);

  // Pins the part of an expert and begins to read it if it is not there. Returns its frame. Within the caller's reservation.
  int32_t pin(int group, int64_t expert, bool* was_there);
  // once: the part was used for many rows at a time and goes before parts that decoding has used.
  void unpin(int32_t frame, bool once);
  // Waits until a pinned frame is ready. False: reading failed or *cancelled was set.
  bool wait(int32_t frame, const std::atomic<bool>* cancelled);
  // Why reading a pinned frame failed; success when it did not.
  Status failure(int32_t frame) const;
  // The bytes of a piece: in the frame, or in the mapping.
  const uint8_t* bytes(int32_t frame, int group, int64_t expert, size_t piece) const;
  // Where a part is; -1: nowhere.
  int32_t frame_of(int group, int64_t expert) const {
    return frame_of_[static_cast<size_t>(part_number(group, expert))].load(std::memory_order_relaxed);
  }
  // Ready now; it may be given up at any time.
  bool is_ready(int group, int64_t expert) const;
  bool is_all_ready() const { return n_ready_.load(std::memory_order_acquire) == n_parts_; }
  int64_t frames(int pool) const { return pools_[static_cast<size_t>(pool)].n_frames; }

  size_t bytes_of_frame(int pool) const { return pools_[static_cast<size_t>(pool)].frame_bytes; }

  struct Stats {
    uint64_t hits = 0, misses = 0, evictions = 0, bytes_read = 0, failures = 0;
    uint64_t fills = 0;         // parts that idle readers began to read
    size_t resident_bytes = 0;  // of frames that hold a part
  };
  Stats stats() const;
  size_t table_bytes() const;  // of its own bookkeeping

 private:
  enum class State : uint8_t { empty, reading, ready, failed };
  struct Frame {
    std::atomic<State> state{State::empty};
    int pool = 0;
    int32_t part = -1;  // number of the part in it
    int32_t pins = 0;
    int32_t older = -1, newer = -1;  // in the list of its pool, while unpinned
    bool is_listed = false;
    bool is_fill = false;       // nobody has asked for the part yet
    int32_t next_to_read = -1;  // in the readers' queue
    size_t piece = 0;           // next to be read: this piece, from this block on
    size_t position = 0;
    int in_flight = 0;
    Code code = Code::ok;
    std::string text;
  };
  struct Pool {
    size_t frame_bytes = 0;
    int64_t n_frames = 0, reserved = 0;
    int32_t first = 0;      // of its frames
    int64_t n_touched = 0;  // frames from the first on that have held something; the others are in no list
    int32_t oldest = -1, newest = -1;
    PageBlock memory;
  };
  struct Waiter {
    const Reservation* wanted;
    Waiter* next = nullptr;
  };
  struct Request {
    int32_t frame, part;
    size_t piece;
    uint64_t offset;
    size_t bytes, at;
  };

  int32_t part_number(int group, int64_t expert) const { return first_part_[static_cast<size_t>(group)] + static_cast<int32_t>(expert); }
  int group_of(int32_t part) const;
  uint8_t* memory(int32_t frame) const;
  void list_newest(int32_t f);
  void list_oldest(int32_t f);
  void unlist(int32_t f);
  bool has_frame(const Pool& pool) const { return pool.n_touched < pool.n_frames || pool.oldest >= 0; }
  bool has_empty_frame(const Pool& pool) const {
    return pool.n_touched < pool.n_frames || (pool.oldest >= 0 && frames_[static_cast<size_t>(pool.oldest)].part < 0);
  }
  int32_t take_frame(Pool& pool);
  void start(int32_t f, int32_t part);
  void give_up(Frame& frame);
  void list_fills();
  void start_fill();
  bool take_request(bool may_fill, Request* out);
  void finish_request(const Request& request, Code code, std::string text);
  Status read(const Request& request) const;
  void reader(bool may_fill);
  bool has_room(const Reservation& wanted) const;
  void stop();

  const std::vector<PartGroup> groups_;
  const Settings settings_;
  std::vector<int32_t> first_part_;
  int32_t n_parts_ = 0;
  std::unique_ptr<std::atomic<int32_t>[]> frame_of_;  // by part, -1: nowhere
  std::vector<Pool> pools_;
  std::unique_ptr<Frame[]> frames_;
  int32_t n_frames_ = 0;

  mutable std::mutex mutex_;  // of all but atomics
  std::condition_variable work_, done_, room_;
  int32_t queue_first_ = -1, queue_last_ = -1;
  std::vector<int32_t> fills_;  // parts for empty frames, in this order
  size_t next_fill_ = 0;
  Waiter *waiting_first_ = nullptr, *waiting_last_ = nullptr;
  bool stop_ = false;
  std::atomic<int32_t> n_ready_{0};
  Stats stats_;
  const int64_t process_;
  std::unique_ptr<std::vector<std::thread>> readers_;
};

}  // namespace hotset::experts

// SPDX-License-Identifier: Apache-2.0
// The cache's tables are under one lock, which is never held while a file is read.
#include "experts/expert_cache.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "base/thread_pool.h"

#if defined(__linux__)
#include <pthread.h>
#endif

namespace hotset::experts {
namespace {

constexpr size_t kBlock = model::FileReader::kAlignment;
constexpr int kCandidates = 256;                          // of the oldest frames, compared by use
constexpr int kFillers = 2;                               // readers that fill frames nobody asked for
constexpr std::chrono::milliseconds kCancelInterval{10};  // how often a waiting run looks whether it was cancelled

uint64_t floor_block(uint64_t n) { return n & ~uint64_t{kBlock - 1}; }
uint64_t ceil_block(uint64_t n) { return floor_block(n + kBlock - 1); }

// Bytes of blocks that hold any one expert of a piece.
size_t room_of(const PartPiece& piece) {
  const bool aligned = piece.offset % kBlock == 0 && piece.bytes % kBlock == 0;
  return static_cast<size_t>(ceil_block(piece.bytes + (aligned ? 0 : kBlock - 1)));
}

// Waits for `condition`; false when *cancelled was set first.
template <class F>
bool wait_for(std::condition_variable& cv, std::unique_lock<std::mutex>& lock, const std::atomic<bool>* cancelled, F&& condition) {
  while (!condition()) {
    if (!cancelled) {
      cv.wait(lock);
    } else {
      if (cancelled->load(std::memory_order_relaxed)) return false;
      cv.wait_for(lock, kCancelInterval);
    }
  }
  return true;
}

}  // namespace

size_t ExpertCache::frame_bytes(const std::vector<PartPiece>& pieces) {
  size_t bytes = 0;
  for (const PartPiece& piece : pieces) bytes += room_of(piece);
  return bytes;
}

ExpertCache::ExpertCache(std::vector<PartGroup> groups, const std::vector<FramePool>& pools, Settings settings)
    : groups_([&] {
        for (PartGroup& group : groups) {
          size_t at = 0;
          for (PartPiece& piece : group.pieces) {
            piece.at = at;
            at += room_of(piece);
          }
        }
        return std::move(groups);
      }()),
      settings_(std::move(settings)),
      process_(process_id()),
      readers_(std::make_unique<std::vector<std::thread>>()) {
  for (const PartGroup& group : groups_) {
    first_part_.push_back(n_parts_);
    n_parts_ += static_cast<int32_t>(group.n_experts);
  }
  frame_of_ = std::make_unique<std::atomic<int32_t>[]>(static_cast<size_t>(n_parts_));
  for (int32_t i = 0; i < n_parts_; ++i) frame_of_[static_cast<size_t>(i)].store(-1, std::memory_order_relaxed);
  for (const FramePool& wanted : pools) n_frames_ += static_cast<int32_t>(wanted.n_frames);
  frames_ = std::make_unique<Frame[]>(static_cast<size_t>(n_frames_));
  int32_t first = 0;
  for (const FramePool& wanted : pools) {
    Pool& pool = pools_.emplace_back();
    pool.frame_bytes = wanted.frame_bytes;
    pool.n_frames = wanted.n_frames;
    pool.first = first;
    if (!settings_.paged) pool.memory = PageBlock(wanted.frame_bytes * static_cast<size_t>(wanted.n_frames));
    for (int32_t f = first; f < first + wanted.n_frames; ++f) frames_[static_cast<size_t>(f)].pool = static_cast<int>(pools_.size()) - 1;
    first += static_cast<int32_t>(wanted.n_frames);
  }
  if (settings_.fill) list_fills();
  try {
    for (int i = 0; i < kReaders; ++i) {
      readers_->emplace_back([this, i] { reader(i < kFillers); });
#if defined(__linux__)
      pthread_setname_np(readers_->back().native_handle(), "hotset-reader");
#endif
    }
  } catch (...) {
    stop();
    throw;
  }
}

void ExpertCache::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  work_.notify_all();
  for (std::thread& t : *readers_) t.join();
}

ExpertCache::~ExpertCache() {
  if (process_id() == process_)
    stop();
  else
    readers_.release();  // handles of threads that do not exist here can be neither joined nor let go
}

int ExpertCache::group_of(int32_t part) const {
  return static_cast<int>(std::upper_bound(first_part_.begin(), first_part_.end(), part) - first_part_.begin()) - 1;
}

uint8_t* ExpertCache::memory(int32_t f) const {
  const Pool& pool = pools_[static_cast<size_t>(frames_[static_cast<size_t>(f)].pool)];
  return pool.memory.data() + static_cast<size_t>(f - pool.first) * pool.frame_bytes;
}

// ---- age ---------------------------------------------------------------------------------------------------------------

void ExpertCache::list_newest(int32_t f) {
  Frame& frame = frames_[static_cast<size_t>(f)];
  Pool& pool = pools_[static_cast<size_t>(frame.pool)];
  frame.older = pool.newest;
  frame.newer = -1;
  (pool.newest < 0 ? pool.oldest : frames_[static_cast<size_t>(pool.newest)].newer) = f;
  pool.newest = f;
  frame.is_listed = true;
}

void ExpertCache::list_oldest(int32_t f) {
  Frame& frame = frames_[static_cast<size_t>(f)];
  Pool& pool = pools_[static_cast<size_t>(frame.pool)];
  frame.newer = pool.oldest;
  frame.older = -1;
  (pool.oldest < 0 ? pool.newest : frames_[static_cast<size_t>(pool.oldest)].older) = f;
  pool.oldest = f;
  frame.is_listed = true;
}

void ExpertCache::unlist(int32_t f) {
  Frame& frame = frames_[static_cast<size_t>(f)];
  Pool& pool = pools_[static_cast<size_t>(frame.pool)];
  (frame.older < 0 ? pool.oldest : frames_[static_cast<size_t>(frame.older)].newer) = frame.newer;
  (frame.newer < 0 ? pool.newest : frames_[static_cast<size_t>(frame.newer)].older) = frame.older;
  frame.is_listed = false;
}

// Takes an untouched frame, or of the oldest ones the one whose expert is used least, of equals the oldest, and empties it. There
// is one: has_frame.
int32_t ExpertCache::take_frame(Pool& pool) {
  if (pool.n_touched < pool.n_frames) return pool.first + static_cast<int32_t>(pool.n_touched++);
  int32_t best = -1;
  double least = 0;
  int32_t f = pool.oldest;
  for (int i = 0; i < kCandidates && f >= 0; ++i, f = frames_[static_cast<size_t>(f)].newer) {
    const Frame& frame = frames_[static_cast<size_t>(f)];
    const int group = settings_.score && frame.part >= 0 ? group_of(frame.part) : -1;
    const double score = group < 0 ? 0 : settings_.score(group, frame.part - first_part_[static_cast<size_t>(group)]);
    if (best >= 0 && score >= least) continue;
    best = f;
    least = score;
  }
  unlist(best);
  give_up(frames_[static_cast<size_t>(best)]);
  return best;
}

void ExpertCache::give_up(Frame& frame) {
  if (frame.part < 0) return;
  const bool was_ready = frame.state.load(std::memory_order_relaxed) == State::ready;
  frame_of_[static_cast<size_t>(frame.part)].store(-1, std::memory_order_relaxed);
  if (was_ready) {
    n_ready_.fetch_sub(1, std::memory_order_relaxed);
    ++stats_.evictions;
  }
  stats_.resident_bytes -= pools_[static_cast<size_t>(frame.pool)].frame_bytes;
  if (settings_.paged) {
    const int group = group_of(frame.part);
    const int64_t expert = frame.part - first_part_[static_cast<size_t>(group)];
    for (const PartPiece& piece : groups_[static_cast<size_t>(group)].pieces)
      piece.file->drop(piece.offset + static_cast<uint64_t>(expert) * piece.bytes, piece.bytes);
  }
  frame.part = -1;
  frame.state.store(State::empty, std::memory_order_relaxed);
}

// ---- reservations ------------------------------------------------------------------------------------------------------

bool ExpertCache::has_room(const Reservation& wanted) const {
  int64_t frames[2] = {wanted.frames[0], wanted.frames[1]};
  if (wanted.pool[0] == wanted.pool[1]) frames[0] = frames[1] = frames[0] + frames[1];
  for (int i = 0; i < 2; ++i) {
    if (wanted.pool[i] < 0) continue;
    const Pool& pool = pools_[static_cast<size_t>(wanted.pool[i])];
    if (pool.reserved + frames[i] > pool.n_frames) return false;
  }
  return true;
}

bool ExpertCache::reserve(const Reservation& wanted, const std::atomic<bool>* cancelled) {
  std::unique_lock lock(mutex_);
  Waiter me{&wanted};
  (waiting_last_ ? waiting_last_->next : waiting_first_) = &me;
  waiting_last_ = &me;
  const bool got = wait_for(room_, lock, cancelled, [&] { return waiting_first_ == &me && has_room(wanted); });
  Waiter* before = nullptr;
  for (Waiter* w = waiting_first_; w != &me; w = w->next) before = w;
  (before ? before->next : waiting_first_) = me.next;
  if (waiting_last_ == &me) waiting_last_ = before;
  for (int i = 0; i < 2 && got; ++i)
    if (wanted.pool[i] >= 0) pools_[static_cast<size_t>(wanted.pool[i])].reserved += wanted.frames[i];
  if (waiting_first_) room_.notify_all();
  return got;
}

void ExpertCache::give_back(const Reservation& held) {
  const std::lock_guard lock(mutex_);
  for (int i = 0; i < 2; ++i)
    if (held.pool[i] >= 0) pools_[static_cast<size_t>(held.pool[i])].reserved -= held.frames[i];
  if (waiting_first_) room_.notify_all();
}

// ---- parts -------------------------------------------------------------------------------------------------------------

int32_t ExpertCache::pin(int group, int64_t expert, bool* was_there) {
  const int32_t part = part_number(group, expert);
  std::unique_lock lock(mutex_);
  int32_t f = frame_of_[static_cast<size_t>(part)].load(std::memory_order_relaxed);
  if (f >= 0 && frames_[static_cast<size_t>(f)].state.load(std::memory_order_relaxed) == State::failed &&
      frames_[static_cast<size_t>(f)].pins == 0) {  // once more, for a new run
    unlist(f);
    give_up(frames_[static_cast<size_t>(f)]);
    list_oldest(f);
    f = -1;
  }
  *was_there = f >= 0;
  if (f >= 0) {
    Frame& frame = frames_[static_cast<size_t>(f)];
    if (frame.is_listed) unlist(f);
    frame.is_fill = false;
    ++frame.pins;
    ++stats_.hits;
    return f;
  }
  ++stats_.misses;
  Pool& pool = pools_[static_cast<size_t>(groups_[static_cast<size_t>(group)].pool)];
  // Frames that a cancelled run left while they were read are in no list before they have been.
  done_.wait(lock, [&] { return has_frame(pool); });
  f = take_frame(pool);
  start(f, part);
  ++frames_[static_cast<size_t>(f)].pins;
  work_.notify_all();
  return f;
}

// Puts an empty frame into the readers' queue. With the lock.
void ExpertCache::start(int32_t f, int32_t part) {
  Frame& frame = frames_[static_cast<size_t>(f)];
  frame.part = part;
  frame.state.store(State::reading, std::memory_order_relaxed);
  frame.piece = frame.position = 0;
  frame.is_fill = false;
  frame.code = Code::ok;
  frame.next_to_read = -1;
  stats_.resident_bytes += pools_[static_cast<size_t>(frame.pool)].frame_bytes;
  frame_of_[static_cast<size_t>(part)].store(f, std::memory_order_relaxed);
  (queue_last_ < 0 ? queue_first_ : frames_[static_cast<size_t>(queue_last_)].next_to_read) = f;
  queue_last_ = f;
}

void ExpertCache::unpin(int32_t f, bool once) {
  const std::lock_guard lock(mutex_);
  Frame& frame = frames_[static_cast<size_t>(f)];
  if (--frame.pins > 0 || frame.state.load(std::memory_order_relaxed) == State::reading) return;  // listed when it has been read
  once ? list_oldest(f) : list_newest(f);
}

bool ExpertCache::wait(int32_t f, const std::atomic<bool>* cancelled) {
  const std::atomic<State>& state = frames_[static_cast<size_t>(f)].state;
  if (state.load(std::memory_order_acquire) == State::ready) return true;
  std::unique_lock lock(mutex_);
  if (!wait_for(done_, lock, cancelled, [&] { return state.load(std::memory_order_relaxed) != State::reading; })) return false;
  return state.load(std::memory_order_relaxed) == State::ready;
}

Status ExpertCache::failure(int32_t f) const {
  const std::lock_guard lock(mutex_);
  const Frame& frame = frames_[static_cast<size_t>(f)];
  if (frame.state.load(std::memory_order_relaxed) != State::failed) return {};
  return Status(frame.code, frame.text);
}

const uint8_t* ExpertCache::bytes(int32_t f, int group, int64_t expert, size_t i) const {
  const PartPiece& piece = groups_[static_cast<size_t>(group)].pieces[i];
  const uint64_t offset = piece.offset + static_cast<uint64_t>(expert) * piece.bytes;
  if (settings_.paged) return piece.file->file().data() + offset;
  return memory(f) + piece.at + offset % kBlock;
}

bool ExpertCache::is_ready(int group, int64_t expert) const {
  const int32_t f = frame_of_[static_cast<size_t>(part_number(group, expert))].load(std::memory_order_relaxed);
  return f >= 0 && frames_[static_cast<size_t>(f)].state.load(std::memory_order_relaxed) == State::ready;
}

ExpertCache::Stats ExpertCache::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

size_t ExpertCache::table_bytes() const {
  return sizeof(*this) + static_cast<size_t>(n_frames_) * sizeof(Frame) + static_cast<size_t>(n_parts_) * sizeof(int32_t) +
         groups_.size() * sizeof(PartGroup) + fills_.size() * sizeof(int32_t);
}

// ---- readers -----------------------------------------------------------------------------------------------------------

// The parts to be brought into empty frames: those used most first, then in the order of the layers. Where a pool has no frame for all
// of its parts, only parts that are known to be used.
void ExpertCache::list_fills() {
  std::vector<double> use(static_cast<size_t>(n_parts_), 0.0);
  for (int32_t part = 0; part < n_parts_; ++part) {
    const int group = group_of(part);
    const int64_t expert = part - first_part_[static_cast<size_t>(group)];
    if (settings_.score) use[static_cast<size_t>(part)] = settings_.score(group, expert);
  }
  std::vector<int64_t> parts_of(pools_.size()), listed(pools_.size());
  for (const PartGroup& group : groups_) parts_of[static_cast<size_t>(group.pool)] += group.n_experts;
  std::vector<int32_t> order(static_cast<size_t>(n_parts_));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return use[static_cast<size_t>(a)] > use[static_cast<size_t>(b)]; });
  for (const int32_t part : order) {
    const auto pool = static_cast<size_t>(groups_[static_cast<size_t>(group_of(part))].pool);
    const bool holds_all = pools_[pool].n_frames >= parts_of[pool];
    if (listed[pool] == pools_[pool].n_frames || (!holds_all && !(use[static_cast<size_t>(part)] > 0))) continue;
    ++listed[pool];
    fills_.push_back(part);
  }
}

// Queues the next part that is nowhere yet, if there is an empty frame for it. With the lock.
void ExpertCache::start_fill() {
  while (next_fill_ < fills_.size()) {
    const int32_t part = fills_[next_fill_++];
    Pool& pool = pools_[static_cast<size_t>(groups_[static_cast<size_t>(group_of(part))].pool)];
    if (frame_of_[static_cast<size_t>(part)].load(std::memory_order_relaxed) >= 0 || !has_empty_frame(pool)) continue;
    const int32_t f = take_frame(pool);
    start(f, part);
    frames_[static_cast<size_t>(f)].is_fill = true;
    ++stats_.fills;
    return;
  }
}

// The next read of the first frame in the queue. With the lock.
bool ExpertCache::take_request(bool may_fill, Request* out) {
  if (queue_first_ < 0 && may_fill) start_fill();
  if (queue_first_ < 0) return false;
  const int32_t f = queue_first_;
  Frame& frame = frames_[static_cast<size_t>(f)];
  const int group = group_of(frame.part);
  const std::vector<PartPiece>& pieces = groups_[static_cast<size_t>(group)].pieces;
  const PartPiece& piece = pieces[frame.piece];
  const uint64_t offset = piece.offset + static_cast<uint64_t>(frame.part - first_part_[static_cast<size_t>(group)]) * piece.bytes;
  const uint64_t from = floor_block(offset), to = ceil_block(offset + piece.bytes);
  out->frame = f;
  out->part = frame.part;
  out->piece = frame.piece;
  out->offset = from + frame.position;
  out->bytes = static_cast<size_t>(std::min<uint64_t>(kRequestBytes, to - out->offset));
  out->at = piece.at + frame.position;
  frame.position += out->bytes;
  if (from + frame.position == to) {
    frame.position = 0;
    ++frame.piece;
  }
  ++frame.in_flight;
  if (frame.piece == pieces.size()) {
    queue_first_ = frame.next_to_read;
    if (queue_first_ < 0) queue_last_ = -1;
  }
  return true;
}

// With the lock.
void ExpertCache::finish_request(const Request& request, Code code, std::string text) {
  Frame& frame = frames_[static_cast<size_t>(request.frame)];
  --frame.in_flight;
  if (code == Code::ok) {
    stats_.bytes_read += request.bytes;
  } else if (frame.code == Code::ok) {
    frame.code = code;
    frame.text = std::move(text);
    ++stats_.failures;
  }
  const bool all_taken = frame.piece == groups_[static_cast<size_t>(group_of(frame.part))].pieces.size();
  if (!all_taken || frame.in_flight > 0) return;
  frame.state.store(frame.code == Code::ok ? State::ready : State::failed, std::memory_order_release);
  if (frame.code == Code::ok) n_ready_.fetch_add(1, std::memory_order_release);
  if (frame.pins == 0) frame.is_fill ? list_oldest(request.frame) : list_newest(request.frame);  // fills: the hottest goes last
  done_.notify_all();
}

Status ExpertCache::read(const Request& request) const {
  const PartPiece& piece = groups_[static_cast<size_t>(group_of(request.part))].pieces[request.piece];
  if (!settings_.paged) return piece.file->read(request.offset, request.bytes, memory(request.frame) + request.at);
  const size_t bytes = static_cast<size_t>(std::min<uint64_t>(request.bytes, piece.file->file().bytes() - request.offset));
  piece.file->file().will_need(request.offset, bytes);
  return piece.file->populate(request.offset, bytes);
}

void ExpertCache::reader(bool may_fill) {
  std::unique_lock lock(mutex_);
  for (;;) {
    Request request = {};
    while (!stop_ && !take_request(may_fill, &request)) work_.wait(lock);
    if (stop_) return;
    lock.unlock();
    Code code = Code::ok;
    std::string text;
    try {
      const Status status = read(request);
      code = status.code();
      text = status.text();
    } catch (...) {  // no memory for the text of a failure
      code = Code::out_of_memory;
    }
    lock.lock();
    const bool was_all = is_all_ready();
    finish_request(request, code, std::move(text));
    if (!settings_.filled || was_all || !is_all_ready()) continue;
    lock.unlock();
    settings_.filled();
    lock.lock();
  }
}

}  // namespace hotset::experts

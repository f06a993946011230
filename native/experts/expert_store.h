// SPDX-License-Identifier: Apache-2.0
// The experts of a session: whose bytes, and where they are now. One store a session, filled while its kernels are created.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "experts/expert_cache.h"
#include "experts/expert_layer.h"
#include "experts/store_plan.h"
#include "model/graph.h"

namespace hotset::experts {

// One tensor with the same bytes of every expert, one expert after the other.
struct ExpertTensor {
  const uint8_t* data = nullptr;  // of expert 0: in a mapping or in memory of the model; null while only planning
  size_t bytes = 0;               // of one expert; 0: there is no such tensor
  int file = -1;                  // index into Model::files; -1: in memory of the model
  uint64_t offset = 0;            // in the file, of expert 0
};

struct LayerTensors {
  struct Matrix {
    ExpertTensor weights, scales, zero_points, bias;
    const uint8_t* global_scales = nullptr;  // float32 an expert; null: all 1
  };
  int64_t n_experts = 0, k = 1;
  Matrix fc1, fc2, fc3;
};

class ExpertStore {
 public:
  struct Settings {
    bool has_bound = false;
    uint64_t bound = 0;
    bool allow_file_backing = false;
    bool is_chosen = false;  // as StoreRequest::is_chosen
    HostPages pages = HostPages::automatic;
    FileIo io = FileIo::automatic;
    uint64_t available_bytes = UINT64_MAX;
    std::function<double(int layer, int64_t expert)> score;  // how much an expert is used; null: all the same
  };

  // Before open(). Returns the layer's number; layers of the same bytes share one.
  int add_layer(LayerTensors layer);
  // Decides where experts lie. With `planning` nothing more: no file is opened.
  Status open(const Settings& settings, std::span<const std::shared_ptr<model::MappedFile>> files, bool planning);
  bool is_open() const { return is_open_; }

  const StorePlan& plan() const { return plan_; }
  size_t fixed_bytes() const { return fixed_bytes_; }
  size_t n_layers() const { return layers_.size(); }
  // File and offset, in this order, of tensors that are read into memory: their mapping is not touched any more.
  std::vector<std::pair<int, uint64_t>> read_tensors() const;
  // Host memory of the store itself.
  size_t table_bytes() const;
  ExpertCache::Stats stats() const { return cache_ ? cache_->stats() : ExpertCache::Stats(); }

  // Experts that a run can have at once.
  int64_t together(int layer) const;
  // The bytes of all experts, or null when a StoreFetch has to bring them.
  const ExpertBytes* table(int layer);
  // Whether an expert can be used without waiting for a file.
  bool is_at_hand(int layer, int64_t expert) const;
  // The system begins to read mapped experts that nobody has used yet.
  void will_use(int layer, const int32_t* ids, int64_t n);

 private:
  friend class StoreFetch;
  struct Layer {
    LayerTensors tensors;
    std::vector<const ExpertTensor*> pieces[2];  // those in a file, by part
    std::vector<const uint8_t* MatrixBytes::*> roles[2];
    std::vector<MatrixBytes ExpertBytes::*> matrices[2];
    std::vector<ExpertBytes> table;  // in the mapping and in memory of the model; of the cache once it holds everything
    int group[2] = {-1, -1};         // of the cache
    std::unique_ptr<std::atomic<bool>[]> used;
  };
  static void list_pieces(Layer* layer);
  Status open_cache(const Settings& settings, std::span<const std::shared_ptr<model::MappedFile>> files);
  int64_t frames(int layer, int part) const;
  void list_ranges();
  void drop_file_pages() const;
  void fill_tables();
  void point(const Layer& layer, int part, int64_t expert, int32_t frame, ExpertBytes* out) const;

  std::vector<std::unique_ptr<Layer>> layers_;
  std::vector<std::shared_ptr<model::MappedFile>> files_;
  std::vector<std::unique_ptr<model::FileReader>> readers_;  // by file, null where no expert lies
  struct Range {
    int file;
    uint64_t from, to;
  };
  std::vector<Range> ranges_;  // of files that hold experts
  StorePlan plan_;
  size_t fixed_bytes_ = 0;
  bool is_open_ = false;
  std::unique_ptr<ExpertCache> cache_;  // last: its threads read the files
  std::once_flag filled_;
};

// Brings the experts of one call into the cache and points a table at them.
class StoreFetch final : public ExpertFetch {
 public:
  // Memory for calls of up to n different experts.
  static size_t workspace_bytes(int64_t n) { return static_cast<size_t>(n) * 4 * sizeof(int32_t); }
  // table: [n_experts], entries of the call's experts are written. cancelled may be null.
  StoreFetch(ExpertStore& store, int layer, ExpertBytes* table, void* workspace, const std::atomic<bool>* cancelled);
  ~StoreFetch() override { end(); }
  StoreFetch(const StoreFetch&) = delete;
  StoreFetch& operator=(const StoreFetch&) = delete;

  bool is_at_hand(int32_t expert) const override;
  void begin(const int32_t* experts, int64_t n) override;
  void end() override;
  int64_t next(int part, int64_t from) override;
  bool wait(int part, int64_t i) override;
  // What went wrong in the calls so far.
  Status take_status();

 private:
  void pin_up_to(int part, int64_t end);
  void unpin_up_to(int part, int64_t end);
  void fail(int part, int64_t i);

  ExpertStore& store_;
  ExpertCache& cache_;
  const ExpertStore::Layer& layer_;
  const int layer_number_;
  ExpertBytes* const table_;
  int32_t* const space_;
  const std::atomic<bool>* const cancelled_;
  int32_t* experts_ = nullptr;  // [n], as frames and was_there by part
  int32_t* frames_[2] = {};
  uint8_t* was_there_[2] = {};
  int64_t n_ = 0;
  bool holds_ = false;  // a reservation
  bool all_fit_ = true;
  bool is_prompt_ = false;  // more experts than rows of a few tokens use: what was read for it goes first
  ExpertCache::Reservation reservation_ = {};
  int64_t pinned_[2] = {}, unpinned_[2] = {};  // ends of what was pinned, and given up again
  std::atomic<bool> failed_{false};
  std::mutex status_mutex_;
  Status status_;
};

}  // namespace hotset::experts

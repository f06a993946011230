// SPDX-License-Identifier: Apache-2.0
// Layers of experts, their tables, and the fetching of what is not in memory.
#include "experts/expert_store.h"

#include <algorithm>
#include <cstring>
#include <tuple>

namespace hotset::experts {
namespace {

constexpr size_t kWorthAdvice = size_t{256} << 10;  // bytes of an expert below which asking for read-ahead costs more than a fault

constexpr const uint8_t* MatrixBytes::* kRoles[] = {&MatrixBytes::weights, &MatrixBytes::scales, &MatrixBytes::zero_points,
                                                    &MatrixBytes::bias};
constexpr ExpertTensor LayerTensors::Matrix::* kTensors[] = {&LayerTensors::Matrix::weights, &LayerTensors::Matrix::scales,
                                                             &LayerTensors::Matrix::zero_points, &LayerTensors::Matrix::bias};
constexpr struct {
  LayerTensors::Matrix LayerTensors::* tensors;
  MatrixBytes ExpertBytes::* bytes;
  int part;
} kMatrices[] = {
    {&LayerTensors::fc1, &ExpertBytes::fc1, 0}, {&LayerTensors::fc3, &ExpertBytes::fc3, 0}, {&LayerTensors::fc2, &ExpertBytes::fc2, 1}};

bool is_same(const ExpertTensor& a, const ExpertTensor& b) {
  return a.data == b.data && a.bytes == b.bytes && a.file == b.file && a.offset == b.offset;
}

bool is_same(const LayerTensors& a, const LayerTensors& b) {
  bool same = a.n_experts == b.n_experts;
  for (const auto& matrix : kMatrices) {
    same = same && (a.*matrix.tensors).global_scales == (b.*matrix.tensors).global_scales;
    for (const auto tensor : kTensors) same = same && is_same(a.*matrix.tensors.*tensor, b.*matrix.tensors.*tensor);
  }
  return same;
}

// Pointers of one expert as the tensors lie.
ExpertBytes expert_bytes(const LayerTensors& layer, int64_t expert) {
  const auto e = static_cast<size_t>(expert);
  ExpertBytes bytes;
  for (const auto& matrix : kMatrices) {
    const LayerTensors::Matrix& tensors = layer.*matrix.tensors;
    MatrixBytes& out = bytes.*matrix.bytes;
    for (size_t role = 0; role < std::size(kRoles); ++role) {
      const ExpertTensor& tensor = tensors.*kTensors[role];
      if (tensor.data) out.*kRoles[role] = tensor.data + e * tensor.bytes;
    }
    if (tensors.global_scales) std::memcpy(&out.global_scale, tensors.global_scales + e * sizeof(float), sizeof(float));
  }
  return bytes;
}

std::vector<ExpertBytes> make_table(const LayerTensors& layer) {
  std::vector<ExpertBytes> table(static_cast<size_t>(layer.n_experts));
  for (size_t e = 0; e < table.size(); ++e) table[e] = expert_bytes(layer, static_cast<int64_t>(e));
  return table;
}

}  // namespace

int ExpertStore::add_layer(LayerTensors tensors) {
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (!is_same(layers_[i]->tensors, tensors)) continue;
    layers_[i]->tensors.k = std::max(layers_[i]->tensors.k, tensors.k);
    return static_cast<int>(i);
  }
  auto layer = std::make_unique<Layer>();
  layer->tensors = std::move(tensors);
  list_pieces(layer.get());
  for (const auto& matrix : kMatrices)
    for (const auto tensor : kTensors) {
      const ExpertTensor& t = layer->tensors.*matrix.tensors.*tensor;
      if (t.file < 0) fixed_bytes_ += t.bytes * static_cast<size_t>(layer->tensors.n_experts);
    }
  layers_.push_back(std::move(layer));
  return static_cast<int>(layers_.size()) - 1;
}

void ExpertStore::list_pieces(Layer* layer) {
  for (const auto& matrix : kMatrices) {
    for (size_t role = 0; role < std::size(kRoles); ++role) {
      const ExpertTensor& tensor = layer->tensors.*matrix.tensors.*kTensors[role];
      if (tensor.file < 0 || tensor.bytes == 0) continue;
      layer->pieces[matrix.part].push_back(&tensor);
      layer->roles[matrix.part].push_back(kRoles[role]);
      layer->matrices[matrix.part].push_back(matrix.bytes);
    }
  }
}

Status ExpertStore::open(const Settings& settings, std::span<const std::shared_ptr<model::MappedFile>> files, bool planning) {
  StoreRequest request;
  for (const auto& layer : layers_) {
    LayerSize& size = request.layers.emplace_back();
    size.n_experts = layer->tensors.n_experts;
    size.k = layer->tensors.k;
    for (int part = 0; part < 2; ++part) {
      std::vector<PartPiece> pieces;
      for (const ExpertTensor* tensor : layer->pieces[part]) {
        pieces.push_back({nullptr, tensor->offset, tensor->bytes, 0});
        size.part_bytes[part] += tensor->bytes;
      }
      size.frame_bytes[part] = ExpertCache::frame_bytes(pieces);
    }
  }
  request.fixed_bytes = fixed_bytes_;
  request.has_bound = settings.has_bound;
  request.bound = settings.bound;
  request.available_bytes = settings.available_bytes;
  request.allow_file_backing = settings.allow_file_backing;
  request.is_chosen = settings.is_chosen;
  request.pages = settings.pages;
  request.io = settings.io;
  request.n_readers = ExpertCache::kReaders;
  HOTSET_ASSIGN(plan_, plan_expert_store(request));
  if (planning) return {};
  files_.assign(files.begin(), files.end());
  for (const auto& layer : layers_) {
    layer->table = make_table(layer->tensors);
    layer->used = std::make_unique<std::atomic<bool>[]>(layer->table.size());
  }
  if (plan_.home != ExpertHome::mapped) HOTSET_TRY(open_cache(settings, files));
  is_open_ = true;
  return {};
}

Status ExpertStore::open_cache(const Settings& settings, std::span<const std::shared_ptr<model::MappedFile>> files) {
  std::vector<PartGroup> groups;
  std::vector<int> layer_of_group;
  readers_.resize(files.size());
  for (size_t l = 0; l < layers_.size(); ++l) {
    Layer& layer = *layers_[l];
    for (int part = 0; part < 2; ++part) {
      if (layer.pieces[part].empty()) continue;
      layer.group[part] = static_cast<int>(groups.size());
      layer_of_group.push_back(static_cast<int>(l));
      PartGroup& group = groups.emplace_back();
      group.n_experts = layer.tensors.n_experts;
      group.pool = plan_.pool_of[part][l];
      for (const ExpertTensor* tensor : layer.pieces[part]) {
        auto& reader = readers_[static_cast<size_t>(tensor->file)];
        if (!reader) {
          HOTSET_ASSIGN(reader, model::FileReader::open(files[static_cast<size_t>(tensor->file)]));
        }
        group.pieces.push_back({reader.get(), tensor->offset, tensor->bytes, 0});
      }
    }
  }
  ExpertCache::Settings cache;
  cache.paged = plan_.home == ExpertHome::paged;
  cache.fill = true;
  list_ranges();
  if (plan_.holds_all) {
    cache.filled = [this] { drop_file_pages(); };
  } else {
    drop_file_pages();  // what others have left in the page cache counts too
    for (const Range& range : ranges_)
      if (cache.paged) readers_[static_cast<size_t>(range.file)]->expect_random_access(range.from, range.to - range.from);
  }
  if (settings.score)
    cache.score = [score = settings.score, layer_of_group](int group, int64_t expert) {
      return score(layer_of_group[static_cast<size_t>(group)], expert);
    };
  try {
    cache_ = std::make_unique<ExpertCache>(std::move(groups), plan_.pools, std::move(cache));
  } catch (const std::bad_alloc&) {
    return fail(Code::out_of_memory, "cannot allocate %zu bytes for experts", plan_.frames_bytes());
  }
  return {};
}

// Tensors that follow each other are one range: the system keeps pages in larger pieces, which only a range around them drops.
void ExpertStore::list_ranges() {
  constexpr uint64_t kGap = uint64_t{64} << 10;
  for (const auto& layer : layers_)
    for (const auto& pieces : layer->pieces)
      for (const ExpertTensor* tensor : pieces)
        ranges_.push_back({tensor->file, tensor->offset, tensor->offset + tensor->bytes * static_cast<uint64_t>(layer->tensors.n_experts)});
  std::sort(ranges_.begin(), ranges_.end(),
            [](const Range& a, const Range& b) { return std::tie(a.file, a.from) < std::tie(b.file, b.from); });
  size_t n = 0;
  for (const Range& range : ranges_) {
    if (n > 0 && ranges_[n - 1].file == range.file && range.from <= ranges_[n - 1].to + kGap)
      ranges_[n - 1].to = std::max(ranges_[n - 1].to, range.to);
    else
      ranges_[n++] = range;
  }
  ranges_.resize(n);
}

std::vector<std::pair<int, uint64_t>> ExpertStore::read_tensors() const {
  std::vector<std::pair<int, uint64_t>> places;
  if (plan_.home != ExpertHome::cached) return places;
  for (const auto& layer : layers_)
    for (const auto& pieces : layer->pieces)
      for (const ExpertTensor* tensor : pieces) places.emplace_back(tensor->file, tensor->offset);
  std::sort(places.begin(), places.end());
  return places;
}

void ExpertStore::drop_file_pages() const {
  for (const Range& range : ranges_) readers_[static_cast<size_t>(range.file)]->drop(range.from, range.to - range.from);
}

size_t ExpertStore::table_bytes() const {
  size_t bytes = sizeof(*this) + (cache_ ? cache_->table_bytes() : 0);
  for (const auto& layer : layers_) bytes += sizeof(Layer) + layer->table.size() * (sizeof(ExpertBytes) + sizeof(bool));
  return bytes;
}

// What fits into half of the frames, so that a prompt leaves the other half to what decoding uses and to other runs; two sets of
// the experts of a row always fit.
int64_t ExpertStore::together(int l) const {
  const Layer& layer = *layers_[static_cast<size_t>(l)];
  if (!cache_ || plan_.holds_all) return INT64_MAX;
  int64_t room = INT64_MAX;
  for (int part = 0; part < 2; ++part)
    if (layer.group[part] >= 0) room = std::min(room, std::max(frames(l, part) / 2, std::min(frames(l, part), 2 * layer.tensors.k)));
  return room;
}

// Frames that the parts of a layer may take.
int64_t ExpertStore::frames(int l, int part) const {
  const int pool = plan_.pool_of[part][static_cast<size_t>(l)];
  return cache_->frames(pool) / (pool == plan_.pool_of[1 - part][static_cast<size_t>(l)] ? 2 : 1);
}

void ExpertStore::point(const Layer& layer, int part, int64_t expert, int32_t frame, ExpertBytes* out) const {
  for (size_t i = 0; i < layer.pieces[part].size(); ++i)
    out->*layer.matrices[part][i].*layer.roles[part][i] = cache_->bytes(frame, layer.group[part], expert, i);
}

// Everything has been read and nothing will be given up: plain tables serve from now on.
void ExpertStore::fill_tables() {
  for (const auto& layer : layers_)
    for (int part = 0; part < 2; ++part)
      for (int64_t e = 0; e < layer->tensors.n_experts && layer->group[part] >= 0; ++e)
        point(*layer, part, e, cache_->frame_of(layer->group[part], e), &layer->table[static_cast<size_t>(e)]);
}

const ExpertBytes* ExpertStore::table(int l) {
  const Layer& layer = *layers_[static_cast<size_t>(l)];
  if (layer.group[0] >= 0 || layer.group[1] >= 0) {
    if (!plan_.holds_all || !cache_->is_all_ready()) return nullptr;
    std::call_once(filled_, [this] { fill_tables(); });
  }
  return layer.table.data();
}

bool ExpertStore::is_at_hand(int l, int64_t expert) const {
  if (!cache_) return true;
  const Layer& layer = *layers_[static_cast<size_t>(l)];
  return std::all_of(std::begin(layer.group), std::end(layer.group),
                     [&](int group) { return group < 0 || cache_->is_ready(group, expert); });
}

void ExpertStore::will_use(int l, const int32_t* ids, int64_t n) {
  if (cache_) return;
  const Layer& layer = *layers_[static_cast<size_t>(l)];
  for (int64_t i = 0; i < n; ++i) {
    if (ids[i] < 0 || layer.used[static_cast<size_t>(ids[i])].load(std::memory_order_relaxed)) continue;
    layer.used[static_cast<size_t>(ids[i])].store(true, std::memory_order_relaxed);
    for (const auto& pieces : layer.pieces)
      for (const ExpertTensor* tensor : pieces)
        if (tensor->bytes >= kWorthAdvice)
          files_[static_cast<size_t>(tensor->file)]->will_need(tensor->offset + static_cast<uint64_t>(ids[i]) * tensor->bytes,
                                                               tensor->bytes);
  }
}

// ---- fetch -------------------------------------------------------------------------------------------------------------

StoreFetch::StoreFetch(ExpertStore& store, int layer, ExpertBytes* table, void* workspace, const std::atomic<bool>* cancelled)
    : store_(store),
      cache_(*store.cache_),
      layer_(*store.layers_[static_cast<size_t>(layer)]),
      layer_number_(layer),
      table_(table),
      space_(static_cast<int32_t*>(workspace)),
      cancelled_(cancelled) {
  for (int part = 0; part < 2; ++part)
    reservation_.pool[part] = layer_.group[part] < 0 ? -1 : store.plan_.pool_of[part][static_cast<size_t>(layer)];
}

bool StoreFetch::is_at_hand(int32_t expert) const {
  return (layer_.group[0] < 0 || cache_.is_ready(layer_.group[0], expert)) &&
         (layer_.group[1] < 0 || cache_.is_ready(layer_.group[1], expert));
}

void StoreFetch::begin(const int32_t* experts, int64_t n) {
  n_ = n;
  if (failed_.load(std::memory_order_relaxed)) return;
  experts_ = space_;
  std::copy(experts, experts + n, experts_);
  for (int part = 0; part < 2; ++part) {
    frames_[part] = space_ + (1 + part) * n;
    was_there_[part] = reinterpret_cast<uint8_t*>(space_ + 3 * n) + part * n;
    pinned_[part] = unpinned_[part] = 0;
  }
  is_prompt_ = n > 2 * layer_.tensors.k;
  all_fit_ = n <= store_.together(layer_number_);
  for (int part = 0; part < 2; ++part) {
    if (reservation_.pool[part] < 0) continue;
    reservation_.frames[part] = all_fit_ ? n : std::min(n, std::max<int64_t>(store_.frames(layer_number_, part) / 2, 1));
  }
  holds_ = cache_.reserve(reservation_, cancelled_);
  if (!holds_) return fail(0, -1);
  pin_up_to(0, reservation_.frames[0]);
  if (all_fit_) pin_up_to(1, reservation_.frames[1]);
}

void StoreFetch::pin_up_to(int part, int64_t end) {
  const int group = layer_.group[part];
  if (group < 0) return;
  for (int64_t& i = pinned_[part]; i < std::min(end, n_); ++i) {
    ExpertBytes& entry = table_[experts_[i]];
    // Not from layer_.table, which a run beside this one may be filling.
    if (part == 0 || layer_.group[0] < 0) entry = expert_bytes(layer_.tensors, experts_[i]);
    bool was_there = false;
    frames_[part][i] = cache_.pin(group, experts_[i], &was_there);
    was_there_[part][i] = was_there;
    store_.point(layer_, part, experts_[i], frames_[part][i], &entry);
  }
}

void StoreFetch::unpin_up_to(int part, int64_t end) {
  for (int64_t& i = unpinned_[part]; i < std::min(end, pinned_[part]); ++i)
    cache_.unpin(frames_[part][i], is_prompt_ && !was_there_[part][i]);
}

int64_t StoreFetch::next(int part, int64_t from) {
  if (failed_.load(std::memory_order_relaxed)) return n_;
  if (all_fit_) return n_;
  if (part == 1) unpin_up_to(0, n_);
  unpin_up_to(part, from);
  const int64_t frames = layer_.group[part] < 0 ? n_ : reservation_.frames[part];
  pin_up_to(part, from + frames);
  // Reads of FC2 begin behind the last of FC1.
  if (part == 0 && from + frames >= n_ && layer_.group[1] >= 0) pin_up_to(1, reservation_.frames[1]);
  return std::min(n_, from + std::max<int64_t>(frames / 2, 1));
}

bool StoreFetch::wait(int part, int64_t i) {
  if (failed_.load(std::memory_order_relaxed)) return false;
  if (layer_.group[part] < 0 || cache_.wait(frames_[part][i], cancelled_)) return true;
  fail(part, i);
  return false;
}

void StoreFetch::fail(int part, int64_t i) {
  const std::lock_guard lock(status_mutex_);
  if (failed_.exchange(true)) return;
  if (i >= 0) status_ = cache_.failure(frames_[part][i]);
  if (status_.ok())
    status_ = Status(Code::cancelled, "the run was cancelled");
  else
    status_ = std::move(status_).at("expert " + std::to_string(experts_[i]));
}

void StoreFetch::end() {
  for (int part = 0; part < 2; ++part) {
    unpin_up_to(part, n_);
    pinned_[part] = unpinned_[part] = 0;
  }
  if (holds_) cache_.give_back(reservation_);
  holds_ = false;
  n_ = 0;
}

Status StoreFetch::take_status() {
  const std::lock_guard lock(status_mutex_);
  return std::move(status_);
}

}  // namespace hotset::experts

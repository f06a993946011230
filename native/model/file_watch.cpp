// SPDX-License-Identifier: Apache-2.0
#include "model/file_watch.h"

#include <algorithm>

namespace hotset::model {

void FileWatch::start(const std::vector<std::shared_ptr<MappedFile>>& files, const std::vector<uint64_t>& ends) {
#if defined(_WIN32)
  return;
#endif
  if (static_cast<size_t>(std::count_if(ends.begin(), ends.end(), [](uint64_t end) { return end > 0; })) > kMostFiles) return;
  watched_.reserve(kMostFiles);
  for (size_t i = 0; i < files.size(); ++i) {
    if (ends[i] == 0 || !files[i]->data()) continue;
    auto handle = FileHandle::open(files[i]->path(), FileHandle::Access::buffered);
    if (handle.ok() && handle.value().identity() == files[i]->identity())
      watched_.push_back({files[i], ends[i], std::move(handle.value())});
  }
}

Status FileWatch::check() const {
  for (const Watched& w : watched_) {
    const uint64_t bytes = w.handle.bytes_now();
    HOTSET_FAIL_IF(bytes < w.end, invalid_state,
                   "file %s has become shorter: %llu bytes, the session needs the first %llu (replace a model's files by renaming)",
                   quote(w.file->path()).c_str(), static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(w.end));
  }
  return {};
}

}  // namespace hotset::model

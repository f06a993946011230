// SPDX-License-Identifier: Apache-2.0
#include "model/file_watch.h"

#include <algorithm>

#if !defined(_WIN32)
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

namespace hotset::model {

#if defined(_WIN32)

FileWatch::~FileWatch() = default;
void FileWatch::start(const std::vector<std::shared_ptr<MappedFile>>&, const std::vector<uint64_t>&) {}
Status FileWatch::check() const { return {}; }

#else

FileWatch::~FileWatch() {
  for (const Watched& w : watched_) ::close(w.fd);
}

void FileWatch::start(const std::vector<std::shared_ptr<MappedFile>>& files, const std::vector<uint64_t>& ends) {
  if (static_cast<size_t>(std::count_if(ends.begin(), ends.end(), [](uint64_t end) { return end > 0; })) > kMostFiles) return;
  watched_.reserve(kMostFiles);
  for (size_t i = 0; i < files.size(); ++i) {
    if (ends[i] == 0 || !files[i]->data()) continue;
    const int fd = ::open(files[i]->path().c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat info;
    if (fd >= 0 && ::fstat(fd, &info) == 0 && files[i]->is_same(info.st_dev, info.st_ino, static_cast<uint64_t>(info.st_size)))
      watched_.push_back({files[i], ends[i], fd});
    else if (fd >= 0)
      ::close(fd);
  }
}

Status FileWatch::check() const {
  for (const Watched& w : watched_) {
    struct stat info;
    if (::fstat(w.fd, &info) != 0) continue;
    const uint64_t bytes = static_cast<uint64_t>(info.st_size);
    HOTSET_FAIL_IF(bytes < w.end, invalid_state,
                   "file %s has become shorter: %llu bytes, the session needs the first %llu (replace a model's files by renaming)",
                   quote(w.file->path()).c_str(), static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(w.end));
  }
  return {};
}

#endif

}  // namespace hotset::model

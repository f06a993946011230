// SPDX-License-Identifier: Apache-2.0
// Whether the files under mapped bytes are still as long as they were: reading a page that a truncated file has lost ends the process.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "model/file_handle.h"

namespace hotset::model {

// For one thread until check() is called, then for any. On Windows a mapped file cannot be truncated, and nothing is watched.
class FileWatch {
 public:
  FileWatch() = default;
  FileWatch(const FileWatch&) = delete;
  FileWatch& operator=(const FileWatch&) = delete;

  // files: of a model; ends: by file, how many of its first bytes are needed (0: none). More files than kMostFiles are not watched:
  // each takes a file descriptor and 0.4 us of a check. Neither is one that is no longer under its name.
  void start(const std::vector<std::shared_ptr<MappedFile>>& files, const std::vector<uint64_t>& ends);
  // invalid_state when a file has become too short; it is well again when the file is.
  Status check() const;

  static constexpr size_t kMostFiles = 8;

 private:
  struct Watched {
    std::shared_ptr<MappedFile> file;
    uint64_t end;
    FileHandle handle;
  };
  std::vector<Watched> watched_;
};

}  // namespace hotset::model

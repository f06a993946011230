// SPDX-License-Identifier: Apache-2.0
// Reads parts of a mapped file into memory, past the page cache where the system can. Inputs of the expert store: what is read
// here is not kept a second time by the system.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/status.h"
#include "model/file_handle.h"

namespace hotset::model {

class FileReader {
 public:
  static constexpr size_t kAlignment = 4096;  // of positions, lengths and memory: what every disk takes

  // The same file, opened once more: invalid_state when its name has another file or size by now, not_found when it has gone.
  static Result<std::unique_ptr<FileReader>> open(const std::shared_ptr<MappedFile>& file);
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

  // Bytes [offset, offset + bytes) to `to`; offset, bytes and `to` are multiples of kAlignment, and what lies behind the end
  // of the file is left alone. A file that has become shorter, or cannot be read: invalid_state. Any number of threads at once.
  Status read(uint64_t offset, size_t bytes, void* to) const;
  // Pages of the range leave the page cache where nobody else maps them. The mapping of this process gives them up first.
  void drop(uint64_t offset, uint64_t bytes) const;
  // Brings the range into the mapping; failures as those of read().
  Status populate(uint64_t offset, size_t bytes) const;
  // Pages of the range will be read alone, not with their neighbours.
  void expect_random_access(uint64_t offset, uint64_t bytes) const;

  const MappedFile& file() const { return *file_; }
  bool is_direct() const { return is_direct_; }

 private:
  explicit FileReader(std::shared_ptr<MappedFile> file) : file_(std::move(file)) {}
  double cached_part(uint64_t offset, size_t bytes) const;
  Status shorter(uint64_t offset, size_t bytes) const;

  const std::shared_ptr<MappedFile> file_;
  bool is_direct_ = false;
  FileHandle handle_, direct_;  // POSIX: direct_ past the page cache, where the file system can
};

}  // namespace hotset::model

// SPDX-License-Identifier: Apache-2.0
// A file that is open for reading, and what tells it from another of its name.
#pragma once
#include <cstdint>
#include <string>
#include <system_error>
#include <utility>

#include "base/status.h"
#include "model/graph.h"

namespace hotset::model {

class FileHandle {
 public:
  enum class Access {
    buffered,
    direct,  // past the page cache, in whole aligned blocks; not every file system has it
  };

#if defined(_WIN32)
  using Native = void*;
  static inline const Native kNone = nullptr;
#else
  using Native = int;
  static constexpr Native kNone = -1;
#endif

  FileHandle() = default;
  ~FileHandle() { close(); }
  FileHandle(FileHandle&& other) noexcept : native_(std::exchange(other.native_, kNone)), identity_(other.identity_) {}
  FileHandle& operator=(FileHandle&& other) noexcept {
    if (this != &other) {
      close();
      native_ = std::exchange(other.native_, kNone);
      identity_ = other.identity_;
    }
    return *this;
  }

  // A missing or unreadable file, or a folder: not_found. A pipe is not waited for.
  static Result<FileHandle> open(const std::string& utf8_path, Access access);

  bool is_open() const { return native_ != kNone; }
  Native native() const { return native_; }
  const FileIdentity& identity() const { return identity_; }  // when it was opened
  // Its length by now; UINT64_MAX where the system does not tell.
  uint64_t bytes_now() const noexcept;

 private:
  void close() noexcept;

  Native native_ = kNone;
  FileIdentity identity_;
};

// What the system's last call said.
std::error_code last_system_error();
// The failure of a call about a file as a whole.
Status file_failure(const std::string& utf8_path, const std::error_code& error);

}  // namespace hotset::model

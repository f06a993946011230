// SPDX-License-Identifier: Apache-2.0
// Opening files on POSIX systems and Windows, and the checks that every reader of them needs.
#include "model/file_handle.h"

#if defined(_WIN32)
#include <windows.h>

#include <filesystem>
#else
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#endif

namespace hotset::model {

Status file_failure(const std::string& path, const std::error_code& error) {
  const bool full = error == std::errc::not_enough_memory;
  return fail(full ? Code::out_of_memory : Code::not_found, "file %s: %s", quote(path).c_str(), error.message().c_str());
}

#if defined(_WIN32)

std::error_code last_system_error() { return std::error_code(static_cast<int>(GetLastError()), std::system_category()); }

Result<FileHandle> FileHandle::open(const std::string& utf8_path, Access access) {
  HOTSET_FAIL_IF(!valid_text(utf8_path), invalid_argument, "the path %s is not UTF-8", quote(utf8_path).c_str());
  const std::filesystem::path path(std::u8string(utf8_path.begin(), utf8_path.end()));
  const DWORD flags = access == Access::direct ? FILE_FLAG_NO_BUFFERING : FILE_ATTRIBUTE_NORMAL;
  const HANDLE handle =
      CreateFileW(path.c_str(), GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_DELETE, nullptr, OPEN_EXISTING, flags, nullptr);
  if (handle == INVALID_HANDLE_VALUE) return file_failure(utf8_path, last_system_error());
  FileHandle file;
  file.native_ = handle;
  LARGE_INTEGER size;
  if (!GetFileSizeEx(handle, &size)) return file_failure(utf8_path, last_system_error());
  file.identity_.bytes = static_cast<uint64_t>(size.QuadPart);
  return file;
}

uint64_t FileHandle::bytes_now() const noexcept {
  LARGE_INTEGER size;
  return GetFileSizeEx(native_, &size) ? static_cast<uint64_t>(size.QuadPart) : UINT64_MAX;
}

void FileHandle::close() noexcept {
  if (is_open()) CloseHandle(native_);
}

#else

std::error_code last_system_error() { return std::error_code(errno, std::generic_category()); }

Result<FileHandle> FileHandle::open(const std::string& utf8_path, Access access) {
  int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;  // not blocking: opening a pipe by mistake must not wait for its writer
  if (access == Access::direct) {
#if defined(O_DIRECT)
    flags |= O_DIRECT;
#else
    return file_failure(utf8_path, std::make_error_code(std::errc::operation_not_supported));
#endif
  }
  FileHandle file;
  file.native_ = ::open(utf8_path.c_str(), flags);
  struct stat info;
  if (!file.is_open() || ::fstat(file.native_, &info) != 0) return file_failure(utf8_path, last_system_error());
  HOTSET_FAIL_IF(!S_ISREG(info.st_mode), not_found, "%s is not a file", quote(utf8_path).c_str());
  file.identity_ = {static_cast<uint64_t>(info.st_dev), static_cast<uint64_t>(info.st_ino), static_cast<uint64_t>(info.st_size)};
  return file;
}

uint64_t FileHandle::bytes_now() const noexcept {
  struct stat info;
  return ::fstat(native_, &info) == 0 ? static_cast<uint64_t>(info.st_size) : UINT64_MAX;
}

void FileHandle::close() noexcept {
  if (is_open()) ::close(native_);
}

#endif

}  // namespace hotset::model

// SPDX-License-Identifier: Apache-2.0
// Read-only shared file mappings, on POSIX systems and Windows.
#include <filesystem>
#include <system_error>

#include "model/graph.h"

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <windows.h>
#else
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#endif

namespace hotset::model {
namespace {
Status failed(const std::string& path, const std::error_code& error) {
  const bool full = error == std::errc::not_enough_memory;
  return fail(full ? Code::out_of_memory : Code::not_found, "file %s: %s", quote(path).c_str(), error.message().c_str());
}
}  // namespace

#if defined(_WIN32)

Result<std::shared_ptr<MappedFile>> MappedFile::open(const std::string& utf8_path, bool map) {
  const auto last_error = [] { return std::error_code(static_cast<int>(GetLastError()), std::system_category()); };
  HOTSET_FAIL_IF(!valid_text(utf8_path), invalid_argument, "the path %s is not UTF-8", quote(utf8_path).c_str());
  const std::filesystem::path path(std::u8string(utf8_path.begin(), utf8_path.end()));
  const HANDLE handle =
      CreateFileW(path.c_str(), GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_DELETE, nullptr, OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, nullptr);
  if (handle == INVALID_HANDLE_VALUE) return failed(utf8_path, last_error());
  const std::unique_ptr<void, decltype(&CloseHandle)> file_guard(handle, &CloseHandle);
  LARGE_INTEGER size;
  if (!GetFileSizeEx(handle, &size)) return failed(utf8_path, last_error());
  std::shared_ptr<MappedFile> file(new MappedFile);
  file->path_ = utf8_path;
  file->bytes_ = static_cast<uint64_t>(size.QuadPart);
  if (file->bytes_ == 0 || !map) return file;
  file->mapping_ = CreateFileMappingW(handle, nullptr, PAGE_READONLY, 0, 0, nullptr);
  if (!file->mapping_) return failed(utf8_path, last_error());
  file->data_ = static_cast<const uint8_t*>(MapViewOfFile(file->mapping_, FILE_MAP_READ, 0, 0, 0));
  if (!file->data_) return failed(utf8_path, last_error());
  return file;
}

MappedFile::~MappedFile() {
  if (data_) UnmapViewOfFile(data_);
  if (mapping_) CloseHandle(mapping_);
}

void MappedFile::drop_pages(uint64_t offset, uint64_t length) const {
  if (!data_ || offset > bytes_ || length > bytes_ - offset) return;
  constexpr uint64_t page = 4096;
  const uint64_t first = (offset + page - 1) / page * page, last = (offset + length) / page * page;
  // Unlocking pages that are not locked takes them out of the working set (and reports that they were not locked).
  if (first < last) VirtualUnlock(const_cast<uint8_t*>(data_) + first, static_cast<size_t>(last - first));
}

void MappedFile::will_need(uint64_t, uint64_t) const {}

#else

Result<std::shared_ptr<MappedFile>> MappedFile::open(const std::string& utf8_path, bool map) {
  const auto last_error = [] { return std::error_code(errno, std::generic_category()); };
  // Not blocking: opening a pipe by mistake must not wait for its writer.
  const int fd = ::open(utf8_path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return failed(utf8_path, last_error());
  struct Closer {
    int fd;
    ~Closer() { ::close(fd); }
  } const closer{fd};
  struct stat info;
  if (::fstat(fd, &info) != 0) return failed(utf8_path, last_error());
  HOTSET_FAIL_IF(!S_ISREG(info.st_mode), not_found, "%s is not a file", quote(utf8_path).c_str());
  std::shared_ptr<MappedFile> file(new MappedFile);
  file->path_ = utf8_path;
  file->bytes_ = static_cast<uint64_t>(info.st_size);
  file->device_ = static_cast<uint64_t>(info.st_dev);
  file->number_ = static_cast<uint64_t>(info.st_ino);
  if (file->bytes_ == 0 || !map) return file;
  HOTSET_FAIL_IF(file->bytes_ > SIZE_MAX / 2, out_of_memory, "file %s: too large for this system's address space",
                 quote(utf8_path).c_str());
  // Shared, not private: a shared read-only mapping can be pinned for a GPU in place.
  void* data = ::mmap(nullptr, static_cast<size_t>(file->bytes_), PROT_READ, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return failed(utf8_path, last_error());
  file->data_ = static_cast<const uint8_t*>(data);
  return file;
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<uint8_t*>(data_), static_cast<size_t>(bytes_));
}

void MappedFile::drop_pages(uint64_t offset, uint64_t length) const {
  if (!data_ || offset > bytes_ || length > bytes_ - offset) return;
  const uint64_t page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t first = (offset + page - 1) / page * page, last = (offset + length) / page * page;
  if (first < last) ::madvise(const_cast<uint8_t*>(data_) + first, static_cast<size_t>(last - first), MADV_DONTNEED);
}

void MappedFile::will_need(uint64_t offset, uint64_t length) const {
  if (!data_ || offset > bytes_ || length > bytes_ - offset) return;
  const uint64_t page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)), first = offset / page * page;
  ::madvise(const_cast<uint8_t*>(data_) + first, static_cast<size_t>(offset + length - first), MADV_WILLNEED);
}

#endif

}  // namespace hotset::model

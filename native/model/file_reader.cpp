// SPDX-License-Identifier: Apache-2.0
// Positioned reads. On Linux: O_DIRECT for what the page cache does not hold already, and its pages are dropped behind a read
// that went through it.
#include "model/file_reader.h"

#include <algorithm>

#if defined(_WIN32)
#include <windows.h>
#else
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#endif

namespace hotset::model {
namespace {

#if !defined(_WIN32)
const uint64_t kPage = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));

uint64_t page_floor(uint64_t n) { return n & ~(kPage - 1); }
#endif

Status unreadable(const MappedFile& file, uint64_t offset, const std::error_code& error) {
  return fail(Code::invalid_state, "file %s: cannot read at %llu: %s", quote(file.path()).c_str(), static_cast<unsigned long long>(offset),
              error.message().c_str());
}

}  // namespace

Status FileReader::shorter(uint64_t offset, size_t bytes) const {
  return fail(Code::invalid_state, "file %s has become shorter since it was opened: %llu bytes are wanted", quote(file_->path()).c_str(),
              static_cast<unsigned long long>(std::min<uint64_t>(offset + bytes, file_->bytes())));
}

Result<std::unique_ptr<FileReader>> FileReader::open(const std::shared_ptr<MappedFile>& file) {
  std::unique_ptr<FileReader> reader(new FileReader(file));
#if defined(_WIN32)
  HOTSET_ASSIGN(reader->handle_, FileHandle::open(file->path(), FileHandle::Access::direct));
  reader->is_direct_ = true;
#else
  HOTSET_ASSIGN(reader->handle_, FileHandle::open(file->path(), FileHandle::Access::buffered));
#endif
  HOTSET_FAIL_IF(reader->handle_.identity() != file->identity(), invalid_state, "file %s was replaced while the model was opened",
                 quote(file->path()).c_str());
#if defined(__linux__)
  // Buffered reads get what they ask for and nothing around it.
  ::posix_fadvise(reader->handle_.native(), 0, 0, POSIX_FADV_RANDOM);
  auto direct = FileHandle::open(file->path(), FileHandle::Access::direct);
  reader->is_direct_ = direct.ok() && direct.value().identity() == file->identity();
  if (reader->is_direct_) reader->direct_ = std::move(direct.value());
#endif
  return reader;
}

#if defined(_WIN32)

Status FileReader::read(uint64_t offset, size_t bytes, void* to) const {
  const uint64_t end = std::min<uint64_t>(offset + bytes, file_->bytes());
  for (uint64_t at = offset; at < end;) {
    OVERLAPPED position = {};
    position.Offset = static_cast<DWORD>(at);
    position.OffsetHigh = static_cast<DWORD>(at >> 32);
    const DWORD wanted = static_cast<DWORD>(std::min<uint64_t>(offset + bytes - at, uint64_t{1} << 30));
    DWORD got = 0;
    if (!ReadFile(handle_.native(), static_cast<uint8_t*>(to) + (at - offset), wanted, &got, &position) &&
        GetLastError() != ERROR_HANDLE_EOF)
      return unreadable(*file_, at, last_system_error());
    if (got == 0) return shorter(offset, bytes);
    at += got;
  }
  return {};
}

void FileReader::drop(uint64_t offset, uint64_t bytes) const { file_->drop_pages(offset, std::min(bytes, file_->bytes() - offset)); }
Status FileReader::populate(uint64_t, size_t) const { return {}; }
void FileReader::expect_random_access(uint64_t, uint64_t) const {}
double FileReader::cached_part(uint64_t, size_t) const { return 0; }

#else

Status FileReader::read(uint64_t offset, size_t bytes, void* to) const {
  const uint64_t end = std::min<uint64_t>(offset + bytes, file_->bytes());
  const double cached = cached_part(offset, bytes);  // what is there already is copied from there
  bool direct = is_direct_ && cached < 0.5;
  for (uint64_t at = offset; at < end;) {
    const ssize_t got = ::pread((direct ? direct_ : handle_).native(), static_cast<uint8_t*>(to) + (at - offset),
                                static_cast<size_t>(offset + bytes - at), static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && direct && errno == EINVAL) {  // a file system that took the flag and not the read
      direct = false;
      continue;
    }
    if (got < 0) return unreadable(*file_, at, last_system_error());
    if (got == 0) return shorter(offset, bytes);
    at += static_cast<uint64_t>(got);
    if (at % kAlignment != 0) direct = false;  // a read that was cut short
  }
  if (!direct || cached > 0) drop(offset, bytes);
  return {};
}

void FileReader::drop(uint64_t offset, uint64_t bytes) const {
  const uint64_t from = page_floor(offset), to = std::min(page_floor(offset + bytes + kPage - 1), page_floor(file_->bytes() + kPage - 1));
  if (from >= to) return;
  if (file_->data()) ::madvise(const_cast<uint8_t*>(file_->data()) + from, static_cast<size_t>(to - from), MADV_DONTNEED);
#if defined(POSIX_FADV_DONTNEED)
  ::posix_fadvise(handle_.native(), static_cast<off_t>(from), static_cast<off_t>(to - from), POSIX_FADV_DONTNEED);
#endif
}

Status FileReader::populate(uint64_t offset, size_t bytes) const {
#if defined(MADV_POPULATE_READ)
  const uint64_t from = page_floor(offset), to = offset + bytes;
  if (::madvise(const_cast<uint8_t*>(file_->data()) + from, static_cast<size_t>(to - from), MADV_POPULATE_READ) == 0) return {};
  if (errno == EFAULT || errno == EHWPOISON) return shorter(offset, bytes);
#else
  (void)offset;
  (void)bytes;
#endif
  return {};  // a kernel without it: compute threads bring the pages in
}

void FileReader::expect_random_access(uint64_t offset, uint64_t bytes) const {
  const uint64_t from = page_floor(offset);
  ::madvise(const_cast<uint8_t*>(file_->data()) + from, static_cast<size_t>(offset + bytes - from), MADV_RANDOM);
}

// Of the range, the part that the page cache holds. 1 where the system does not tell, which it does to a file's owner.
double FileReader::cached_part(uint64_t offset, size_t bytes) const {
#if defined(__linux__)
  if (!file_->data()) return 0;
  unsigned char present[1024];
  uint64_t n = 0, n_present = 0;
  const uint64_t end = std::min<uint64_t>(offset + bytes, file_->bytes());
  for (uint64_t at = offset; at < end; at += sizeof present * kPage) {
    const uint64_t length = std::min<uint64_t>(end - at, sizeof present * kPage), pages = (length + kPage - 1) / kPage;
    if (::mincore(const_cast<uint8_t*>(file_->data()) + at, static_cast<size_t>(length), present) != 0) return 0;
    n += pages;
    for (uint64_t i = 0; i < pages; ++i) n_present += present[i] & 1;
  }
  return n == 0 ? 0 : static_cast<double>(n_present) / static_cast<double>(n);
#else
  (void)offset;
  (void)bytes;
  return 0;
#endif
}

#endif

}  // namespace hotset::model

// SPDX-License-Identifier: Apache-2.0
// Read-only shared file mappings, on POSIX systems and Windows.
#include "model/file_handle.h"

#if defined(_WIN32)
#include <windows.h>
#else
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace hotset::model {

Result<std::shared_ptr<MappedFile>> MappedFile::open(const std::string& utf8_path, bool map) {
  HOTSET_ASSIGN(const FileHandle handle, FileHandle::open(utf8_path, FileHandle::Access::buffered));
  std::shared_ptr<MappedFile> file(new MappedFile);
  file->path_ = utf8_path;
  file->identity_ = handle.identity();
  if (file->bytes() == 0 || !map) return file;
#if defined(_WIN32)
  file->mapping_ = CreateFileMappingW(handle.native(), nullptr, PAGE_READONLY, 0, 0, nullptr);
  if (!file->mapping_) return file_failure(utf8_path, last_system_error());
  file->data_ = static_cast<const uint8_t*>(MapViewOfFile(file->mapping_, FILE_MAP_READ, 0, 0, 0));
  if (!file->data_) return file_failure(utf8_path, last_system_error());
#else
  HOTSET_FAIL_IF(file->bytes() > SIZE_MAX / 2, out_of_memory, "file %s: too large for this system's address space",
                 quote(utf8_path).c_str());
  // Shared, not private: a shared read-only mapping can be pinned for a GPU in place.
  void* data = ::mmap(nullptr, static_cast<size_t>(file->bytes()), PROT_READ, MAP_SHARED, handle.native(), 0);
  if (data == MAP_FAILED) return file_failure(utf8_path, last_system_error());
  file->data_ = static_cast<const uint8_t*>(data);
#endif
  return file;
}

#if defined(_WIN32)

MappedFile::~MappedFile() {
  if (data_) UnmapViewOfFile(data_);
  if (mapping_) CloseHandle(mapping_);
}

void MappedFile::drop_pages(uint64_t offset, uint64_t length) const {
  if (!data_ || offset > bytes() || length > bytes() - offset) return;
  constexpr uint64_t page = 4096;
  const uint64_t first = (offset + page - 1) / page * page, last = (offset + length) / page * page;
  // Unlocking pages that are not locked takes them out of the working set (and reports that they were not locked).
  if (first < last) VirtualUnlock(const_cast<uint8_t*>(data_) + first, static_cast<size_t>(last - first));
}

void MappedFile::will_need(uint64_t, uint64_t) const {}

#else

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<uint8_t*>(data_), static_cast<size_t>(bytes()));
}

void MappedFile::drop_pages(uint64_t offset, uint64_t length) const {
  if (!data_ || offset > bytes() || length > bytes() - offset) return;
  const uint64_t page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t first = (offset + page - 1) / page * page, last = (offset + length) / page * page;
  if (first < last) ::madvise(const_cast<uint8_t*>(data_) + first, static_cast<size_t>(last - first), MADV_DONTNEED);
}

void MappedFile::will_need(uint64_t offset, uint64_t length) const {
  if (!data_ || offset > bytes() || length > bytes() - offset) return;
  const uint64_t page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)), first = offset / page * page;
  ::madvise(const_cast<uint8_t*>(data_) + first, static_cast<size_t>(offset + length - first), MADV_WILLNEED);
}

#endif

}  // namespace hotset::model

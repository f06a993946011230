// SPDX-License-Identifier: Apache-2.0
// Blocks of pages from mmap or VirtualAlloc.
#include "base/page_block.h"

#include <new>
#include <utility>

#if defined(_WIN32)
#include <windows.h>
#else
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace hotset {

PageBlock::PageBlock(PageBlock&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

PageBlock& PageBlock::operator=(PageBlock&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

#if defined(_WIN32)

PageBlock::PageBlock(size_t bytes) : bytes_(bytes) {
  if (!bytes) return;
  data_ = static_cast<uint8_t*>(VirtualAlloc(nullptr, bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE));
  if (!data_) throw std::bad_alloc();
}

PageBlock::~PageBlock() {
  if (data_) VirtualFree(data_, 0, MEM_RELEASE);
}

#else

PageBlock::PageBlock(size_t bytes) {
  if (!bytes) return;
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE)), size = (bytes + page - 1) & ~(page - 1);
  if (size < bytes || size > SIZE_MAX - kHugePage) throw std::bad_alloc();
  int flags = MAP_PRIVATE | MAP_ANONYMOUS;
#if defined(MAP_NORESERVE)
  flags |= MAP_NORESERVE;
#endif
  void* const mapped = ::mmap(nullptr, size + kHugePage, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  // What lies before the first multiple of a huge page and behind the block goes back.
  uint8_t* const first = static_cast<uint8_t*>(mapped);
  const size_t before = -reinterpret_cast<uintptr_t>(first) & (kHugePage - 1);
  if (before) ::munmap(first, before);
  ::munmap(first + before + size, kHugePage - before);
  data_ = first + before;
  bytes_ = size;
#if defined(MADV_HUGEPAGE)
  ::madvise(data_, size, MADV_HUGEPAGE);  // a hint: failure changes speed only
#endif
}

PageBlock::~PageBlock() {
  if (data_) ::munmap(data_, bytes_);
}

#endif

}  // namespace hotset

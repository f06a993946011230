// SPDX-License-Identifier: Apache-2.0
// Anonymous memory straight from the system, for data of many megabytes: exact in size, in huge pages where they are to be had.
#pragma once
#include <cstddef>
#include <cstdint>

namespace hotset {

class PageBlock {
 public:
  static constexpr size_t kHugePage = size_t{2} << 20;

  PageBlock() = default;
  // Zeroed when first touched, which is when the system finds the memory. Begins at a multiple of kHugePage. Throws
  // std::bad_alloc when the addresses are refused.
  explicit PageBlock(size_t bytes);
  ~PageBlock();
  PageBlock(PageBlock&& other) noexcept;
  PageBlock& operator=(PageBlock&& other) noexcept;
  uint8_t* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  uint8_t* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace hotset

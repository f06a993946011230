// SPDX-License-Identifier: Apache-2.0
// The edge between C and C++: nothing thrown leaves, every failure leaves its text for hotset_last_error().
#pragma once
#include <hotset/hotset.h>

#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <type_traits>

#include "base/status.h"
#include "base/tensor.h"

namespace hotset::api {

// Keeps the text of the calling thread and returns the status.
hotset_status record(const Status& status) noexcept;
hotset_status record(Code code, const char* text) noexcept;
std::string& thread_note();

// Runs f() -> Status at the C edge.
template <class F>
hotset_status guard(F&& f) noexcept {
  try {
    return record(f());
  } catch (const std::bad_alloc&) {
    return record(Code::out_of_memory, "out of memory");
  } catch (const std::exception& e) {
    return record(Code::internal, e.what());
  } catch (...) {
    return record(Code::internal, "unknown exception");
  }
}

// Copies a struct to a caller whose version of it may be older (shorter) or newer (longer).
template <class T>
Status copy_out(T* out, const T& from) {
  HOTSET_FAIL_IF(!out, invalid_argument, "out is NULL");
  HOTSET_FAIL_IF(out->struct_size < sizeof(uint32_t) * 2, invalid_argument, "struct_size is %u: set it to sizeof the struct",
                 out->struct_size);
  const uint32_t size = out->struct_size;
  std::memcpy(out, &from, size < sizeof(T) ? size : sizeof(T));
  out->struct_size = size;
  return {};
}

// A text for the caller to free with hotset_text_free.
Status give_text(const std::string& text, char** out);

}  // namespace hotset::api

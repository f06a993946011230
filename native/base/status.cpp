// SPDX-License-Identifier: Apache-2.0
// Formatting of failure texts.
#include "base/status.h"

#include <cstdarg>
#include <cstdio>

namespace hotset {
namespace {
std::string vformat(const char* format, va_list args) {
  va_list again;
  va_copy(again, args);
  const int n = std::vsnprintf(nullptr, 0, format, args);
  std::string text(n > 0 ? static_cast<size_t>(n) : 0, '\0');
  if (n > 0) std::vsnprintf(text.data(), text.size() + 1, format, again);
  va_end(again);
  return text;
}
}  // namespace

Status fail(Code code, const char* format, ...) {
  va_list args;
  va_start(args, format);
  Status status(code, vformat(format, args));
  va_end(args);
  return status;
}

std::string format_text(const char* format, ...) {
  va_list args;
  va_start(args, format);
  std::string text = vformat(format, args);
  va_end(args);
  return text;
}

}  // namespace hotset

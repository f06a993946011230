// SPDX-License-Identifier: Apache-2.0
// Look-up of operators in the generated table.
#include "ops/op.h"

#include <cstdarg>
#include <cstdio>

namespace hotset::ops {

extern const OpList* const kOpLists[];  // generated: one list a file of native/ops
extern const size_t kOpListCount;

const OpEntry* find_op(std::string_view domain, std::string_view op_type, int opset, bool* known) {
  bool seen = false;
  const OpEntry* found = nullptr;
  for (size_t i = 0; i < kOpListCount && !found; ++i) {
    for (const OpEntry& e : std::span(kOpLists[i]->entries, kOpLists[i]->count)) {
      if (e.op_type != op_type || e.domain != domain) continue;
      seen = true;
      if (opset >= e.since && opset <= e.until) found = &e;
    }
  }
  if (known) *known = seen;
  return found;
}

bool has_kernel(std::string_view domain, std::string_view op_type) {
  bool known = false;
  find_op(domain, op_type, 0, &known);
  return known;
}

Status OpContext::fail(Code code, const char* format, ...) const {
  char text[1024];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  return Status(code, node_.text() + ": " + text);
}

}  // namespace hotset::ops

// SPDX-License-Identifier: Apache-2.0
// Error texts, versions, texts and tensors at the C edge.
#include "api/guard.h"

#include <cstdlib>

static_assert(static_cast<int>(hotset::Code::internal) == HOTSET_ERROR_INTERNAL &&
              static_cast<int>(hotset::Code::invalid_state) == HOTSET_ERROR_INVALID_STATE);
static_assert(static_cast<int>(hotset::DType::f8e8m0) == HOTSET_FLOAT8E8M0 && static_cast<int>(hotset::DType::bf16) == HOTSET_BFLOAT16);
static_assert(hotset::kMaxRank == HOTSET_MAX_RANK);

namespace hotset::api {
namespace {
thread_local std::string last_error;
thread_local std::string note;
}  // namespace

std::string& thread_note() { return note; }

hotset_status record(const Status& status) noexcept {
  if (status.ok()) return HOTSET_OK;
  try {
    last_error = status.text();
  } catch (...) {
    last_error.clear();
  }
  return static_cast<hotset_status>(status.code());
}

hotset_status record(Code code, const char* text) noexcept {
  try {
    last_error = text;
  } catch (...) {
    last_error.clear();
  }
  return static_cast<hotset_status>(code);
}

Status give_text(const std::string& text, char** out) {
  HOTSET_FAIL_IF(!out, invalid_argument, "out is NULL");
  *out = static_cast<char*>(std::malloc(text.size() + 1));
  HOTSET_FAIL_IF(!*out, out_of_memory, "cannot allocate %zu bytes", text.size() + 1);
  std::memcpy(*out, text.c_str(), text.size() + 1);
  return {};
}

}  // namespace hotset::api

using namespace hotset;
using namespace hotset::api;

extern "C" {

uint32_t hotset_api_version(void) { return HOTSET_API_VERSION; }

const char* hotset_version(void) { return HOTSET_BUILD_VERSION; }

const char* hotset_last_error(void) { return last_error.c_str(); }

const char* hotset_status_name(hotset_status status) {
  switch (status) {
    case HOTSET_OK:
      return "ok";
    case HOTSET_ERROR_INVALID_ARGUMENT:
      return "invalid argument";
    case HOTSET_ERROR_NOT_FOUND:
      return "not found";
    case HOTSET_ERROR_INVALID_MODEL:
      return "invalid model";
    case HOTSET_ERROR_UNSUPPORTED:
      return "unsupported";
    case HOTSET_ERROR_BUDGET:
      return "budget too small";
    case HOTSET_ERROR_OUT_OF_MEMORY:
      return "out of memory";
    case HOTSET_ERROR_OUT_OF_DEVICE_MEMORY:
      return "out of device memory";
    case HOTSET_ERROR_DEVICE:
      return "device error";
    case HOTSET_ERROR_CANCELLED:
      return "cancelled";
    case HOTSET_ERROR_INVALID_STATE:
      return "invalid state";
    case HOTSET_ERROR_INTERNAL:
      return "internal error";
  }
  return "unknown status";
}

void hotset_text_free(char* text) { std::free(text); }

}  // extern "C"

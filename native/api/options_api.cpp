// SPDX-License-Identifier: Apache-2.0
// C entries of options, devices and the doctor.
#include <cstdio>

#include "api/handles.h"
#include "cuda/driver.h"
#include "cuda/fatbins.h"
#include "session/report.h"

#if defined(__linux__)
#include <sys/sysinfo.h>
#endif

using namespace hotset;
using namespace hotset::api;

namespace {

// GPUs that a session can compute on; the sentence goes to the thread's note.
int count_usable() {
  int n = 0;
  cuda::device_count(&n, &thread_note());
  if (n == 0 || cuda::kFatbinCount > 0) return n;
  thread_note() += ", but this build of hotset has no device code: it was built without nvcc";
  return 0;
}

}  // namespace

extern "C" {

hotset_status hotset_device_count(int32_t* out) {
  return guard([&]() -> Status {
    HOTSET_FAIL_IF(!out, invalid_argument, "out is NULL");
    *out = count_usable();
    return {};
  });
}

const char* hotset_device_note(void) {
  try {
    count_usable();
  } catch (...) {
    thread_note().clear();
  }
  return thread_note().c_str();
}

hotset_status hotset_device_get_info(int32_t index, hotset_device_info* out) {
  return guard([&]() -> Status {
    hotset_device_info info = {};
    if (index == -1) {
      info.device = HOTSET_CPU;
      std::snprintf(info.name, sizeof info.name, "CPU");
#if defined(__linux__)
      struct sysinfo system = {};
      if (sysinfo(&system) == 0) info.memory_bytes = static_cast<uint64_t>(system.totalram) * system.mem_unit;
#endif
      return copy_out(out, info);
    }
    cuda::DeviceInfo found;
    std::string why;
    HOTSET_FAIL_IF(!cuda::device_info(index, &found, &why), invalid_argument, "device %d: %s", index, why.c_str());
    info.device = HOTSET_CUDA;
    info.device_id = index;
    info.compute_major = found.compute_major;
    info.compute_minor = found.compute_minor;
    info.driver_version = found.driver_version;
    info.memory_bytes = found.memory_bytes;
    std::snprintf(info.name, sizeof info.name, "%s", found.name.c_str());
    return copy_out(out, info);
  });
}

hotset_status hotset_doctor(char** out) {
  return guard([&] { return give_text(doctor_json(), out); });
}

size_t hotset_option_count(void) { return option_table().size(); }

hotset_status hotset_option_at(size_t index, hotset_option_info* out) {
  return guard([&]() -> Status {
    HOTSET_FAIL_IF(index >= option_table().size(), invalid_argument, "option %zu of %zu", index, option_table().size());
    const OptionInfo& o = option_table()[index];
    hotset_option_info info = {};
    info.key = o.key;
    info.type = option_type_name(o.type);
    info.default_value = o.default_value;
    info.allowed = o.allowed;
    info.help = o.help;
    return copy_out(out, info);
  });
}

hotset_status hotset_options_create(hotset_options** out) {
  return guard([&]() -> Status {
    HOTSET_FAIL_IF(!out, invalid_argument, "out is NULL");
    *out = new hotset_options;
    return {};
  });
}

void hotset_options_free(hotset_options* options) { delete options; }

hotset_status hotset_options_set(hotset_options* options, const char* key, const char* value) {
  return guard([&]() -> Status {
    HOTSET_FAIL_IF(!options || !key || !value, invalid_argument, "options, key or value is NULL");
    HOTSET_FAIL_IF(*key == '\0', invalid_argument, "the key of an option is empty");
    return options->options.set(key, value);
  });
}

hotset_status hotset_options_get(const hotset_options* options, const char* key, const char** out) {
  return guard([&]() -> Status {
    HOTSET_FAIL_IF(!options || !key || !out, invalid_argument, "options, key or out is NULL");
    const std::string* value = options->options.find(key);
    HOTSET_FAIL_IF(!value, invalid_argument, "unknown option '%s'", key);
    *out = value->c_str();
    return {};
  });
}

hotset_status hotset_options_set_log(hotset_options* options, int32_t level, hotset_log_callback callback, void* user) {
  return guard([&]() -> Status {
    HOTSET_FAIL_IF(!options, invalid_argument, "options is NULL");
    HOTSET_FAIL_IF(level < HOTSET_LOG_VERBOSE || level > HOTSET_LOG_OFF, invalid_argument, "log level %d, allowed 0..4", level);
    options->callbacks.log_level = callback ? level : HOTSET_LOG_OFF;
    options->callbacks.log = nullptr;
    if (callback) options->callbacks.log = [=](int at, const char* text) { callback(at, text, user); };
    return {};
  });
}

hotset_status hotset_options_set_progress(hotset_options* options, hotset_progress_callback callback, void* user) {
  return guard([&]() -> Status {
    HOTSET_FAIL_IF(!options, invalid_argument, "options is NULL");
    options->callbacks.progress = nullptr;
    if (callback)
      options->callbacks.progress = [=](const char* stage, uint64_t done, uint64_t total) {
        return callback(stage, done, total, user) == 0;
      };
    return {};
  });
}

}  // extern "C"

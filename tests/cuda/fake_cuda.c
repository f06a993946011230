/* SPDX-License-Identifier: Apache-2.0
 * A stand-in for libcuda.so.1 with one device, for tests of the driver layer without a GPU. FAKE_CUDA picks what is wrong
 * with it: "nodevice", "mismatch", "missing" (a function), "empty" (initialises, counts no device), "badcount".
 * Compiled with FAKE_CUDA_OLD it is a driver from before CUDA 12. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { NO_DEVICE = 100, INVALID_DEVICE = 101, NOT_FOUND = 500, MISMATCH = 803 };

static int is(const char *mode) {
  const char *wanted = getenv("FAKE_CUDA");
  return wanted && !strcmp(wanted, mode);
}

static int fake_init(unsigned flags) {
  (void)flags;
  return is("nodevice") ? NO_DEVICE : is("mismatch") ? MISMATCH : 0;
}

#ifdef FAKE_CUDA_OLD

int cuInit(unsigned flags) { return fake_init(flags); }

#else

static int fake_version(int *version) {
  *version = 12040;
  return 0;
}
static int fake_error_name(int result, const char **out) {
  *out = result == NO_DEVICE ? "CUDA_ERROR_NO_DEVICE" : result == MISMATCH ? "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH" : "CUDA_ERROR_UNKNOWN";
  return 0;
}
static int fake_error_string(int result, const char **out) {
  *out = result == NO_DEVICE ? "no CUDA-capable device is detected" : "something is wrong";
  return 0;
}
static int fake_count(int *n) {
  *n = is("empty") ? 0 : 1;
  return is("badcount") ? 999 : 0;
}
static int fake_device(int *device, int index) {
  *device = 7;
  return index == 0 ? 0 : INVALID_DEVICE;
}
static int fake_name(char *name, int size, int device) {
  strncpy(name, "Fake GPU", (size_t)size);
  return device == 7 ? 0 : INVALID_DEVICE;
}
static int fake_memory(size_t *bytes, int device) {
  *bytes = (size_t)3 << 30;
  return device == 7 ? 0 : INVALID_DEVICE;
}
static int fake_attribute(int *value, int attribute, int device) {
  *value = attribute == 75 ? 8 : attribute == 76 ? 6 : -1;
  return device == 7 ? 0 : INVALID_DEVICE;
}
static int fake_refusal(void) { return NOT_FOUND; }

typedef void (*function)(void);

int cuInit(unsigned flags) { return fake_init(flags); }

int cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *status) {
  static const struct {
    const char *name;
    function address;
  } known[] = {
      {"cuInit", (function)fake_init},
      {"cuDriverGetVersion", (function)fake_version},
      {"cuGetErrorName", (function)fake_error_name},
      {"cuGetErrorString", (function)fake_error_string},
      {"cuDeviceGetCount", (function)fake_count},
      {"cuDeviceGet", (function)fake_device},
      {"cuDeviceGetName", (function)fake_name},
      {"cuDeviceTotalMem", (function)fake_memory},
      {"cuDeviceGetAttribute", (function)fake_attribute},
  };
  function found = (function)fake_refusal;
  (void)version;
  (void)flags;
  *status = 0;
  *out = NULL;
  if (is("missing") && !strcmp(name, "cuLibraryLoadData")) {
    *status = 1; /* CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND */
    return 0;
  }
  for (size_t i = 0; i < sizeof known / sizeof known[0]; ++i)
    if (!strcmp(name, known[i].name)) found = known[i].address;
  memcpy(out, &found, sizeof found);
  return 0;
}

#endif

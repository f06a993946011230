/* SPDX-License-Identifier: Apache-2.0
 * A stand-in for libcuda.so.1: loader, devices, contexts, kernels, and the controls of fake_cuda.h. Compiled with
 * FAKE_CUDA_OLD it is a driver from before CUDA 12. */
#define _GNU_SOURCE
#include "fake_cuda.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake_cuda_state.h"

static int is(const char *mode) {
  const char *wanted = getenv("FAKE_CUDA");
  return wanted && !strcmp(wanted, mode);
}

#ifdef FAKE_CUDA_OLD

int cuInit(unsigned flags) { return flags || is("nodevice") ? NO_DEVICE : 0; }

#else

enum { MAX_FAILURES = 16, MAX_COUNTERS = 64, MAX_LAUNCHES = 4096, MAX_CONTEXTS = 64 };

fake_state fake;
static struct {
  char function[40];
  int in, code;
} failures[MAX_FAILURES];
static struct {
  char function[40];
  long calls;
} counters[MAX_COUNTERS];
static long all_calls, n_launches;
static char launches[MAX_LAUNCHES][96];
static char misuse[200];
static const char *running = "";
static pid_t owner;
static int ended, set_up;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local int contexts[MAX_CONTEXTS], n_contexts; /* device indices */

static void end(void) { ended = 1; }

static void set_failure(const char *function, int nth, int code) {
  for (int i = 0; i < MAX_FAILURES; ++i)
    if (!failures[i].in) {
      snprintf(failures[i].function, sizeof failures[i].function, "%s", function);
      failures[i].in = nth;
      failures[i].code = code;
      return;
    }
}

static long number(const char *name, long otherwise) {
  const char *text = getenv(name);
  return text && *text ? atol(text) : otherwise;
}

static void read_environment(void) {
  if (set_up) return;
  set_up = 1;
  fake.n_devices = (int)number("FAKE_CUDA_DEVICES", 1);
  if (fake.n_devices > MAX_DEVICES) fake.n_devices = MAX_DEVICES;
  fake.compute = (int)number("FAKE_CUDA_COMPUTE", 90);
  fake.lazy = number("FAKE_CUDA_LAZY", 0) != 0;
  for (int i = 0; i < MAX_DEVICES; ++i) fake.devices[i].total = (size_t)number("FAKE_CUDA_MEMORY", 143771L << 20);
  const char *text = getenv("FAKE_CUDA_FAIL");
  char function[40];
  int nth, code, used;
  while (text && sscanf(text, " %39[^:]:%d=%d%n", function, &nth, &code, &used) == 3) {
    set_failure(function, nth, code);
    text += used;
    if (*text == ',') ++text;
  }
}

static int is_sticky(int code) { return code == 214 || code == 700 || (code >= 714 && code <= 719); }

static int injected(const char *function) {
  int code = 0;
  for (int i = 0; i < MAX_FAILURES; ++i)
    if (failures[i].in && (!failures[i].function[0] || !strcmp(failures[i].function, function)))
      if (--failures[i].in == 0 && !code) code = failures[i].code;
  return code;
}

int fake_enter(const char *function, int needs, int *device) {
  if (ended) {
    dprintf(2, "%s: called after the driver has gone\n", function);
    _exit(70);
  }
  pthread_mutex_lock(&mutex);
  read_environment();
  running = function;
  ++all_calls;
  for (int i = 0; i < MAX_COUNTERS; ++i) {
    if (!counters[i].function[0]) snprintf(counters[i].function, sizeof counters[i].function, "%s", function);
    if (strcmp(counters[i].function, function) != 0) continue;
    ++counters[i].calls;
    break;
  }
  *device = needs && n_contexts > 0 ? contexts[n_contexts - 1] : -1;
  if (!owner || (owner != getpid() && strcmp(function, "cuInit") != 0)) return NOT_INITIALIZED;
  const int code = injected(function);
  if (*device >= 0) {
    fake_device *d = &fake.devices[*device];
    if (is_sticky(code) && !d->sticky) d->sticky = code;
    if (d->sticky) return d->sticky;
    if (!d->retained && !code) return fake_misused("the current context has been released", INVALID_CONTEXT);
  } else if (needs && !code) {
    return fake_misused("no context is current", INVALID_CONTEXT);
  }
  return code;
}

int fake_leave(int result) {
  pthread_mutex_unlock(&mutex);
  return result;
}

int fake_misused(const char *text, int result) {
  if (!misuse[0]) snprintf(misuse, sizeof misuse, "%s: %s", running, text);
  return result;
}

object *fake_make(enum kind kind, int device) {
  object *o = calloc(1, sizeof *o);
  if (!o) abort();
  *o = (object){.kind = kind, .device = device, .alive = 1, .next = fake.objects};
  return fake.objects = o;
}

object *fake_find(const void *handle, enum kind kind) {
  for (object *o = fake.objects; o; o = o->next)
    if (o == handle && o->kind == kind) return o;
  return NULL;
}

void fake_remove(object *o) {
  object **link = &fake.objects;
  while (*link != o) link = &(*link)->next;
  *link = o->next;
  o->next = fake.dead;
  fake.dead = o;
  o->alive = 0;
  free(o->work.items);
  o->work = (queue){0};
}

static void (*on_launch)(const char *kernel, void *user);
static void *on_launch_user;

void fake_cuda_on_launch(void (*run)(const char *kernel, void *user), void *user) {
  on_launch = run;
  on_launch_user = user;
}

void fake_note_launch(const object *function) {
  if (on_launch) on_launch(function->name, on_launch_user);
  if (n_launches < MAX_LAUNCHES) memcpy(launches[n_launches], function->name, sizeof launches[0]);
  ++n_launches;
}

/* ---- devices and contexts ---- */

static int init(unsigned flags) {
  int unused;
  if (!owner) {
    owner = getpid();
    atexit(end);
  }
  const int result = fake_enter("cuInit", 0, &unused);
  if (owner != getpid()) return fake_leave(NOT_INITIALIZED);
  return fake_leave(result ? result : flags ? INVALID_VALUE : is("nodevice") ? NO_DEVICE : is("mismatch") ? MISMATCH : 0);
}

static int version(int *out) {
  *out = (int)number("FAKE_CUDA_VERSION", 13000);
  return 0;
}

static const struct {
  int code;
  const char *name, *text;
} errors[] = {
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {NO_BINARY, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {MISMATCH, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination"},
    {CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
};

static int error_text(int code, const char **out, int want_name) {
  for (size_t i = 0; i < sizeof errors / sizeof errors[0]; ++i)
    if (errors[i].code == code) {
      *out = want_name ? errors[i].name : errors[i].text;
      return 0;
    }
  *out = NULL;
  return INVALID_VALUE;
}
static int error_name(int code, const char **out) { return error_text(code, out, 1); }
static int error_string(int code, const char **out) { return error_text(code, out, 0); }

static int device_count(int *n) {
  int unused, result = fake_enter("cuDeviceGetCount", 0, &unused);
  *n = is("empty") ? 0 : fake.n_devices;
  return fake_leave(is("badcount") ? 999 : result);
}

static int device_get(int *device, int index) {
  int unused, result = fake_enter("cuDeviceGet", 0, &unused);
  *device = FIRST_DEVICE + index;
  return fake_leave(result ? result : index >= 0 && index < fake.n_devices ? 0 : INVALID_DEVICE);
}

static int check_device(int device) {
  const int index = device - FIRST_DEVICE;
  return index >= 0 && index < fake.n_devices ? 0 : fake_misused("no such device", INVALID_DEVICE);
}

static int device_name(char *name, int size, int device) {
  int unused, result = fake_enter("cuDeviceGetName", 0, &unused);
  if (!result) result = check_device(device);
  if (!result) snprintf(name, (size_t)size, "Fake GPU %d", device - FIRST_DEVICE);
  return fake_leave(result);
}

static int device_memory(size_t *bytes, int device) {
  int unused, result = fake_enter("cuDeviceTotalMem", 0, &unused);
  if (!result) result = check_device(device);
  if (!result) *bytes = fake.devices[device - FIRST_DEVICE].total;
  return fake_leave(result);
}

static int device_attribute(int *value, int attribute, int device) {
  int unused, result = fake_enter("cuDeviceGetAttribute", 0, &unused);
  if (!result) result = check_device(device);
  if (result) return fake_leave(result);
  switch (attribute) { /* of an H200 */
    case 1:
      *value = 1024;
      break; /* threads a block */
    case 8:
      *value = 49152;
      break; /* shared bytes a block */
    case 10:
      *value = 32;
      break; /* warp */
    case 16:
      *value = 132;
      break; /* multiprocessors */
    case 38:
      *value = 62914560;
      break; /* L2 */
    case 75:
      *value = fake.compute / 10;
      break;
    case 76:
      *value = fake.compute % 10;
      break;
    case 81:
      *value = 233472;
      break; /* shared bytes a multiprocessor */
    case 97:
      *value = 232448;
      break; /* shared bytes a block, opt-in */
    case 113:
      *value = 1;
      break; /* registers read-only host memory */
    default:
      *value = 0;
  }
  return fake_leave(0);
}

static int ctx_retain(void **out, int device) {
  int unused, result = fake_enter("cuDevicePrimaryCtxRetain", 0, &unused);
  if (!result) result = check_device(device);
  if (result) return fake_leave(result);
  fake_device *d = &fake.devices[device - FIRST_DEVICE];
  ++d->retained;
  *out = &d->marker;
  return fake_leave(0);
}

static int ctx_release(int device) {
  int unused, result = fake_enter("cuDevicePrimaryCtxRelease", 0, &unused);
  const int wrong = check_device(device);
  if (wrong) return fake_leave(wrong);
  fake_device *d = &fake.devices[device - FIRST_DEVICE];
  if (d->retained == 0) return fake_leave(fake_misused("released once too often", INVALID_CONTEXT));
  if (--d->retained == 0) {
    d->sticky = 0;
    for (object *o = fake.objects; o; o = o->next)
      if (o->device == device - FIRST_DEVICE && o->kind != KERNEL) fake_misused("objects of the context are left", 0);
  }
  return fake_leave(result);
}

static int ctx_push(void *context) {
  int unused, result = fake_enter("cuCtxPushCurrent", 0, &unused);
  if (result) return fake_leave(result);
  for (int i = 0; i < fake.n_devices; ++i)
    if (context == &fake.devices[i].marker && fake.devices[i].retained && n_contexts < MAX_CONTEXTS) {
      contexts[n_contexts++] = i;
      return fake_leave(0);
    }
  return fake_leave(fake_misused("no context, or contexts are never popped", INVALID_CONTEXT));
}

static int ctx_pop(void **out) {
  int unused, result = fake_enter("cuCtxPopCurrent", 0, &unused);
  if (n_contexts == 0) return fake_leave(fake_misused("no context is current", INVALID_CONTEXT));
  *out = &fake.devices[contexts[--n_contexts]].marker;
  return fake_leave(result);
}

/* ---- device code ---- */

static int library_load(void **out, const void *code, int *a, void **b, unsigned n, int *c, void **d, unsigned m) {
  (void)a, (void)b, (void)c, (void)d;
  int device, result = fake_enter("cuLibraryLoadData", 1, &device);
  if (result) return fake_leave(result);
  const unsigned char magic[4] = {0x50, 0xed, 0x55, 0xba};
  if (n || m || memcmp(code, magic, 4) != 0) return fake_leave(fake_misused("no fatbin", INVALID_IMAGE));
  *out = fake_make(LIBRARY, device);
  return fake_leave(0);
}

static int library_get_kernel(void **out, void *library, const char *name) {
  int device, result = fake_enter("cuLibraryGetKernel", 1, &device);
  if (result) return fake_leave(result);
  if (!fake_find(library, LIBRARY)) return fake_leave(fake_misused("no library", INVALID_HANDLE));
  object *o = fake_make(KERNEL, device);
  o->library = library;
  snprintf(o->name, sizeof o->name, "%s", name);
  *out = o;
  return fake_leave(0);
}

static int library_unload(void *library) {
  int device, result = fake_enter("cuLibraryUnload", 1, &device);
  object *l = fake_find(library, LIBRARY);
  if (!l) return fake_leave(result ? result : fake_misused("no library", INVALID_HANDLE));
  fake_run_all(l->device);
  for (object *o = fake.objects, *next; o; o = next) {
    next = o->next;
    if (o->kind == KERNEL && o->library == l) fake_remove(o);
  }
  fake_remove(l);
  return fake_leave(result);
}

static int kernel_get_function(void **out, void *kernel) {
  int device, result = fake_enter("cuKernelGetFunction", 1, &device);
  if (result) return fake_leave(result);
  *out = kernel;
  return fake_leave(fake_find(kernel, KERNEL) ? 0 : fake_misused("no kernel", INVALID_HANDLE));
}

static int func_set_attribute(void *function, int attribute, int value) {
  int device, result = fake_enter("cuFuncSetAttribute", 1, &device);
  if (result) return fake_leave(result);
  object *o = fake_find(function, KERNEL);
  if (!o) return fake_leave(fake_misused("no function", INVALID_HANDLE));
  if (attribute != 8) return fake_leave(0);
  o->shared_bytes = value;
  return fake_leave(value >= 0 && value <= 232448 ? 0 : fake_misused("more shared memory than there is", INVALID_VALUE));
}

/* ---- controls ---- */

void fake_cuda_reset(void) {
  pthread_mutex_lock(&mutex);
  read_environment();
  memset(failures, 0, sizeof failures);
  memset(counters, 0, sizeof counters);
  all_calls = n_launches = 0;
  misuse[0] = 0;
  for (int i = 0; i < MAX_DEVICES; ++i) {
    fake.devices[i].sticky = 0;
    fake.devices[i].peak = fake.devices[i].used;
  }
  pthread_mutex_unlock(&mutex);
}

void fake_cuda_fail(const char *function, int nth, int code) {
  pthread_mutex_lock(&mutex);
  set_failure(function, nth, code);
  pthread_mutex_unlock(&mutex);
}

long fake_cuda_calls(const char *function) {
  if (!function[0]) return all_calls;
  for (int i = 0; i < MAX_COUNTERS; ++i)
    if (!strcmp(counters[i].function, function)) return counters[i].calls;
  return 0;
}

long fake_cuda_live(const char *kind) {
  static const char *const names[KINDS] = {"library", "", "memory", "pinned", "registered", "stream", "event", "graph", "exec"};
  long n = 0;
  pthread_mutex_lock(&mutex);
  for (object *o = fake.objects; o; o = o->next)
    if (o->kind != KERNEL && (!kind[0] || !strcmp(kind, names[o->kind]))) ++n;
  if (!kind[0] || !strcmp(kind, "context"))
    for (int i = 0; i < MAX_DEVICES; ++i) n += fake.devices[i].retained;
  pthread_mutex_unlock(&mutex);
  return n;
}

size_t fake_cuda_used(int device) { return fake.devices[device].used; }
size_t fake_cuda_peak(int device) { return fake.devices[device].peak; }
void fake_cuda_set_memory(int device, size_t total_bytes) {
  read_environment();
  fake.devices[device].total = total_bytes;
}
void fake_cuda_set_lazy(int lazy) {
  read_environment();
  fake.lazy = lazy;
}
const char *fake_cuda_launched(long index) { return index >= 0 && index < n_launches && index < MAX_LAUNCHES ? launches[index] : NULL; }
const char *fake_cuda_misuse(void) { return misuse; }

/* ---- loader ---- */

#define F(name, function) {name, (fake_function)function}
static const fake_entry device_functions[] = {
    F("cuInit", init),
    F("cuDriverGetVersion", version),
    F("cuGetErrorName", error_name),
    F("cuGetErrorString", error_string),
    F("cuDeviceGetCount", device_count),
    F("cuDeviceGet", device_get),
    F("cuDeviceGetName", device_name),
    F("cuDeviceTotalMem", device_memory),
    F("cuDeviceGetAttribute", device_attribute),
    F("cuDevicePrimaryCtxRetain", ctx_retain),
    F("cuDevicePrimaryCtxRelease", ctx_release),
    F("cuCtxPushCurrent", ctx_push),
    F("cuCtxPopCurrent", ctx_pop),
    F("cuLibraryLoadData", library_load),
    F("cuLibraryGetKernel", library_get_kernel),
    F("cuLibraryUnload", library_unload),
    F("cuKernelGetFunction", kernel_get_function),
    F("cuFuncSetAttribute", func_set_attribute),
    {NULL, NULL},
};

int cuInit(unsigned flags) { return init(flags); }

static int not_supported(void) { return 801; }

int cuGetProcAddress_v2(const char *name, void **out, int cuda_version, uint64_t flags, int *status) {
  const fake_entry *tables[] = {device_functions, fake_memory_functions, fake_stream_functions};
  (void)cuda_version;
  (void)flags;
  fake_function found = (fake_function)not_supported;            /* what no test needs */
  *status = is("missing") && !strcmp(name, "cuLibraryLoadData"); /* CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND */
  *out = NULL;
  if (*status) return 0;
  for (int t = 0; t < 3; ++t)
    for (const fake_entry *f = tables[t]; f->name; ++f)
      if (!strcmp(name, f->name)) found = f->address;
  memcpy(out, &found, sizeof *out);
  return 0;
}

#endif

/* SPDX-License-Identifier: Apache-2.0
 * The stand-in driver's memory: blocks of devices, pinned and registered host memory. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "fake_cuda_state.h"

static size_t whole_pages(size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

static unsigned char *map_pages(size_t bytes) {
  void *p = mmap(NULL, whole_pages(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? NULL : p;
}

object *fake_block(device_pointer address, size_t bytes) {
  for (object *o = fake.objects; o; o = o->next) {
    if (o->kind != MEMORY && o->kind != PINNED && o->kind != REGISTERED) continue;
    const device_pointer begin = (device_pointer)(uintptr_t)o->begin | (o->kind == MEMORY ? DEVICE_BIT : 0);
    if (address >= begin && address - begin <= o->bytes && bytes <= o->bytes - (address - begin) && (bytes || address - begin < o->bytes))
      return o;
  }
  return NULL;
}

static int mem_get_info(size_t *free_bytes, size_t *total) {
  int device, result = fake_enter("cuMemGetInfo", 1, &device);
  if (result) return fake_leave(result);
  *total = fake.devices[device].total;
  *free_bytes = fake.devices[device].total - fake.devices[device].used;
  return fake_leave(0);
}

static int mem_alloc(device_pointer *out, size_t bytes) {
  int device, result = fake_enter("cuMemAlloc", 1, &device);
  if (result) return fake_leave(result);
  if (fake_capture_forbids()) return fake_leave(fake_misused("memory is taken during a capture", CAPTURE_UNSUPPORTED));
  if (bytes == 0) return fake_leave(fake_misused("no bytes are asked for", INVALID_VALUE));
  fake_device *d = &fake.devices[device];
  if (bytes > d->total - d->used) return fake_leave(OUT_OF_MEMORY);
  object *o = fake_make(MEMORY, device);
  o->begin = map_pages(bytes);
  o->bytes = bytes;
  if (!o->begin) {
    fake_remove(o);
    return fake_leave(OUT_OF_MEMORY);
  }
  d->used += bytes;
  if (d->used > d->peak) d->peak = d->used;
  *out = (device_pointer)(uintptr_t)o->begin | DEVICE_BIT;
  return fake_leave(0);
}

static int mem_free(device_pointer address) {
  int device, result = fake_enter("cuMemFree", 1, &device);
  if (device < 0) return fake_leave(result);
  object *o = fake_block(address, 1);
  if (!o || o->kind != MEMORY || o->device != device || address != ((device_pointer)(uintptr_t)o->begin | DEVICE_BIT)) {
    return fake_leave(result ? result : fake_misused("not the address of device memory", INVALID_VALUE));
  }
  fake_run_all(device); /* as the driver does */
  fake.devices[device].used -= o->bytes;
  munmap(o->begin, whole_pages(o->bytes));
  fake_remove(o);
  return fake_leave(result);
}

static int mem_host_alloc(void **out, size_t bytes, unsigned flags) {
  (void)flags;
  int device, result = fake_enter("cuMemHostAlloc", 1, &device);
  if (result) return fake_leave(result);
  if (fake_capture_forbids()) return fake_leave(fake_misused("memory is pinned during a capture", CAPTURE_UNSUPPORTED));
  object *o = fake_make(PINNED, device);
  o->begin = bytes ? map_pages(bytes) : NULL;
  o->bytes = bytes;
  if (!o->begin) {
    fake_remove(o);
    return fake_leave(bytes ? OUT_OF_MEMORY : INVALID_VALUE);
  }
  *out = o->begin;
  return fake_leave(0);
}

static int mem_free_host(void *address) {
  int device, result = fake_enter("cuMemFreeHost", 1, &device);
  if (device < 0) return fake_leave(result);
  object *o = fake_block((device_pointer)(uintptr_t)address, 1);
  if (!o || o->kind != PINNED || o->begin != address) {
    return fake_leave(result ? result : fake_misused("not the address of pinned memory", INVALID_VALUE));
  }
  fake_run_all(device);
  munmap(o->begin, whole_pages(o->bytes));
  fake_remove(o);
  return fake_leave(result);
}

/* 0 unknown; else 'p' private or 's' shared, in upper case when it can be written. */
static int mapping_kind(uintptr_t begin, uintptr_t end) {
  FILE *maps = fopen("/proc/self/maps", "r");
  char line[512];
  int kind = 0;
  while (maps && fgets(line, sizeof line, maps)) {
    unsigned long long from, to;
    char access[5];
    if (sscanf(line, "%llx-%llx %4s", &from, &to, access) != 3 || from > begin || to < end) continue;
    kind = access[1] == 'w' ? access[3] - 32 : access[3];
    break;
  }
  if (maps) fclose(maps);
  return kind;
}

static int mem_host_register(void *address, size_t bytes, unsigned flags) {
  enum { READ_ONLY = 8 };
  int device, result = fake_enter("cuMemHostRegister", 1, &device);
  if (result) return fake_leave(result);
  const device_pointer begin = (device_pointer)(uintptr_t)address;
  const int kind = mapping_kind((uintptr_t)begin, (uintptr_t)begin + bytes);
  if (!bytes || !kind) return fake_leave(fake_misused("not one mapping", INVALID_VALUE));
  if ((flags & READ_ONLY) && (kind == 'p' || kind == 'P')) return fake_leave(fake_misused("a private mapping is registered read-only", INVALID_VALUE));
  if (!(flags & READ_ONLY) && kind >= 'a') return fake_leave(INVALID_VALUE);
  if (fake_block(begin, 1) || fake_block(begin + bytes - 1, 1)) return fake_leave(ALREADY_REGISTERED);
  object *o = fake_make(REGISTERED, device);
  o->begin = address;
  o->bytes = bytes;
  o->read_only = (flags & READ_ONLY) != 0;
  return fake_leave(0);
}

static int mem_host_unregister(void *address) {
  int device, result = fake_enter("cuMemHostUnregister", 1, &device);
  if (device < 0) return fake_leave(result);
  object *o = fake_block((device_pointer)(uintptr_t)address, 1);
  if (!o || o->kind != REGISTERED || o->begin != address) {
    return fake_leave(result ? result : fake_misused("not the address of registered memory", 713));
  }
  fake_run_all(device);
  fake_remove(o);
  return fake_leave(result);
}

static int mem_host_get_device_pointer(device_pointer *out, void *address, unsigned flags) {
  int device, result = fake_enter("cuMemHostGetDevicePointer", 1, &device);
  if (result) return fake_leave(result);
  *out = (device_pointer)(uintptr_t)address;
  return fake_leave(flags == 0 && fake_block(*out, 1) ? 0 : INVALID_VALUE);
}

static int pointer_get_attribute(void *out, int attribute, device_pointer address) {
  enum { MEMORY_TYPE = 2, DEVICE_ORDINAL = 9, RANGE_START = 11, RANGE_SIZE = 12 };
  int device, result = fake_enter("cuPointerGetAttribute", 0, &device);
  if (result) return fake_leave(result);
  const object *o = fake_block(address, 1);
  if (!o) return fake_leave(INVALID_VALUE);
  const device_pointer begin = (device_pointer)(uintptr_t)o->begin | (o->kind == MEMORY ? DEVICE_BIT : 0);
  switch (attribute) {
    case MEMORY_TYPE:
      *(unsigned *)out = o->kind == MEMORY ? 2 : 1;
      break;
    case DEVICE_ORDINAL:
      *(int *)out = o->device;
      break;
    case RANGE_START:
      *(device_pointer *)out = begin;
      break;
    case RANGE_SIZE:
      *(size_t *)out = o->bytes;
      break;
    default:
      result = fake_misused("an attribute that the stand-in does not know", INVALID_VALUE);
  }
  return fake_leave(result);
}

/* The host's view of a range of device memory (or of pinned memory), NULL when it is none. */
static unsigned char *device_range(device_pointer address, size_t bytes, int written) {
  const object *o = fake_block(address, bytes);
  if (!o || (written && o->read_only)) return NULL;
  return (unsigned char *)(uintptr_t)(address & ~DEVICE_BIT);
}

static int enqueue_copy(const char *function, void *to, const void *from, size_t bytes, int what, void *stream) {
  int device, result = fake_enter(function, 1, &device);
  if (result) return fake_leave(result);
  if (bytes == 0) return fake_leave(0);
  const device_pointer a = (device_pointer)(uintptr_t)to, b = (device_pointer)(uintptr_t)from;
  object *blocks[2] = {fake_block(a, bytes), fake_block(b, bytes)};
  unsigned char *target = what == 'h' || what == 'd' ? device_range(a, bytes, 1) : to;
  const unsigned char *source = what == 'o' || what == 'd' ? device_range(b, bytes, 0) : from;
  if (!target || (what == 'o' && (a & DEVICE_BIT))) return fake_leave(fake_misused("the target is no such memory", INVALID_VALUE));
  if (!source || (what == 'h' && (b & DEVICE_BIT))) return fake_leave(fake_misused("the source is no such memory", INVALID_VALUE));
  object *s = fake_stream(stream, device, &result);
  if (!s) return fake_leave(result);
  return fake_leave(
      fake_enqueue(s, (operation){.kind = COPY, .to = target, .from = source, .bytes = bytes, .blocks = {blocks[0], blocks[1]}}));
}

static int memcpy_htod(device_pointer to, const void *from, size_t bytes, void *stream) {
  return enqueue_copy("cuMemcpyHtoDAsync", (void *)(uintptr_t)to, from, bytes, 'h', stream);
}
static int memcpy_dtoh(void *to, device_pointer from, size_t bytes, void *stream) {
  return enqueue_copy("cuMemcpyDtoHAsync", to, (void *)(uintptr_t)from, bytes, 'o', stream);
}
static int memcpy_dtod(device_pointer to, device_pointer from, size_t bytes, void *stream) {
  return enqueue_copy("cuMemcpyDtoDAsync", (void *)(uintptr_t)to, (void *)(uintptr_t)from, bytes, 'd', stream);
}
static int memset_d8(device_pointer to, unsigned char value, size_t bytes, void *stream) {
  int device, result = fake_enter("cuMemsetD8Async", 1, &device);
  if (result) return fake_leave(result);
  if (bytes == 0) return fake_leave(0);
  unsigned char *target = device_range(to, bytes, 1);
  if (!target) return fake_leave(fake_misused("the target is no device memory", INVALID_VALUE));
  object *s = fake_stream(stream, device, &result);
  if (!s) return fake_leave(result);
  return fake_leave(
      fake_enqueue(s, (operation){.kind = SET, .to = target, .bytes = bytes, .value = value, .blocks = {fake_block(to, bytes), NULL}}));
}

#define F(name, function) {name, (fake_function)function}
const fake_entry fake_memory_functions[] = {
    F("cuMemGetInfo", mem_get_info),
    F("cuMemAlloc", mem_alloc),
    F("cuMemFree", mem_free),
    F("cuMemHostAlloc", mem_host_alloc),
    F("cuMemFreeHost", mem_free_host),
    F("cuMemHostRegister", mem_host_register),
    F("cuMemHostUnregister", mem_host_unregister),
    F("cuMemHostGetDevicePointer", mem_host_get_device_pointer),
    F("cuPointerGetAttribute", pointer_get_attribute),
    F("cuMemcpyHtoDAsync", memcpy_htod),
    F("cuMemcpyDtoHAsync", memcpy_dtoh),
    F("cuMemcpyDtoDAsync", memcpy_dtod),
    F("cuMemsetD8Async", memset_d8),
    {NULL, NULL},
};

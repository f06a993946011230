/* SPDX-License-Identifier: Apache-2.0
 * What the parts of the stand-in driver share. */
#ifndef FAKE_CUDA_STATE_H
#define FAKE_CUDA_STATE_H
#include <stddef.h>
#include <stdint.h>

#include "fake_cuda.h"

enum {
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  NOT_INITIALIZED = 3,
  NO_DEVICE = 100,
  INVALID_DEVICE = 101,
  INVALID_IMAGE = 200,
  INVALID_CONTEXT = 201,
  NO_BINARY = 209,
  INVALID_HANDLE = 400,
  NOT_FOUND = 500,
  NOT_READY = 600,
  ALREADY_REGISTERED = 712,
  MISMATCH = 803,
  CAPTURE_UNSUPPORTED = 900
};
enum { MAX_DEVICES = 4, FIRST_DEVICE = 7 /* ordinals and CUdevice are different things */ };

#define DEVICE_BIT (UINT64_C(1) << 62) /* makes an address that faults in host code */

typedef uint64_t device_pointer;
typedef struct object object;
typedef struct operation operation;
struct operation { /* a piece of work in a stream or graph */
  enum { COPY, SET, LAUNCH, RECORD, WAIT, GRAPH } kind;
  void* to;
  const void* from;
  size_t bytes;
  unsigned char value;
  object* blocks[2]; /* COPY, SET: what `to` and `from` lie in on the device or in pinned memory, or NULL */
  object* other;     /* LAUNCH: function, RECORD: event, GRAPH: exec, WAIT: stream */
  uint64_t position; /* WAIT: how far that stream has to be */
};
typedef struct { /* items[done, n) wait; `base` items before the first have been forgotten */
  operation* items;
  size_t n, capacity, done, base;
} queue;

enum kind { LIBRARY, KERNEL, MEMORY, PINNED, REGISTERED, STREAM, EVENT, GRAPH_, EXEC, KINDS };
struct object { /* what a handle or an address stands for */
  enum kind kind;
  int device; /* index */
  int alive;
  object* next;
  /* memory */
  unsigned char* begin; /* as the host sees it */
  size_t bytes;
  int read_only;
  /* kernel */
  object* library;
  char name[96];
  int shared_bytes;
  /* stream (queue), graph and exec (what is replayed) */
  queue work;
  object* capturing; /* the graph that a stream's work goes to */
  int origin;        /* the stream that began the capture */
  int mode;
  /* event */
  object* recorded_in; /* stream */
  object* recorded_graph;
  uint64_t recorded_at;
};

typedef struct {
  size_t total, used, peak;
  int retained;
  int sticky;
  int marker; /* its address is the context */
} fake_device;

typedef struct {
  int n_devices;
  int compute;
  int lazy;
  fake_device devices[MAX_DEVICES];
  object *objects, *dead; /* those that were removed keep their address, so that it is never used again */
} fake_state;

extern fake_state fake;

/* Begins a call: locks, counts it, and returns 0 or the failure it shall end with: injected, sticky, or no context. Every
 * call ends by fake_leave. `needs`: 0 nothing, 1 a current context, whose device index goes to *device (-1: none). What gives
 * something back does so even when its result is a failure, as that tells of earlier work. */
int fake_enter(const char* function, int needs, int* device);
/* Ends it. */
int fake_leave(int result);
int fake_misused(const char* text, int result); /* notes the misuse of the call now running; returns result */

object* fake_make(enum kind kind, int device);
object* fake_find(const void* handle, enum kind kind);    /* NULL unless alive */
object* fake_block(device_pointer address, size_t bytes); /* device, pinned or registered memory around it */
void fake_remove(object* o);
void fake_note_launch(const object* function);

int fake_enqueue(object* stream, operation o);
void fake_run_all(int device); /* everything enqueued on a device */
object* fake_stream(void* handle, int device, int* result);
int fake_capture_forbids(void); /* whether a capture in progress forbids the calling thread to allocate */

typedef void (*fake_function)(void);
typedef struct {
  const char* name;
  fake_function address;
} fake_entry;
extern const fake_entry fake_memory_functions[], fake_stream_functions[]; /* end with a NULL name */
#endif

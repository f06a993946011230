/* SPDX-License-Identifier: Apache-2.0
 * The stand-in driver's streams, events, launches and graphs. Work waits in the queue of its stream; without laziness it is run
 * as soon as it is there. A graph's queue is in the order of capture, which is a right order of replaying it. */
#include <stdlib.h>
#include <string.h>

#include "fake_cuda_state.h"

typedef struct { /* CUlaunchConfig */
  unsigned grid[3], block[3], shared_bytes;
  void *stream;
  void *attributes;
  unsigned n_attributes;
} launch_config;

static _Thread_local int my_captures; /* begun by this thread and not ended */
static int captures[3];               /* running, by mode: 0 global, 1 of the thread, 2 relaxed */

int fake_capture_forbids(void) { return captures[0] > 0 || my_captures > 0; }

static void push(queue *q, operation o) {
  if (q->n == q->capacity) {
    q->capacity = q->capacity ? q->capacity * 2 : 16;
    q->items = realloc(q->items, q->capacity * sizeof *q->items);
    if (!q->items) abort();
  }
  q->items[q->n++] = o;
}

static void run_until(object *stream, uint64_t position);

static void run(const operation *o) {
  if ((o->blocks[0] && !o->blocks[0]->alive) || (o->blocks[1] && !o->blocks[1]->alive)) {
    fake_misused("memory was given back before the work on it was done", 0);
    return;
  }
  switch (o->kind) {
    case COPY:
      memmove(o->to, o->from, o->bytes);
      break;
    case SET:
      memset(o->to, o->value, o->bytes);
      break;
    case LAUNCH:
      fake_note_launch(o->other);
      break;
    case RECORD:
      break;
    case WAIT:
      if (o->other->alive) run_until(o->other, o->position);
      break;
    case GRAPH:
      for (size_t i = 0; i < o->other->work.n; ++i) run(&o->other->work.items[i]);
  }
}

static uint64_t end_of(const object *stream) { return stream->work.base + stream->work.n; }

static void run_until(object *stream, uint64_t position) {
  queue *q = &stream->work;
  while (q->base + q->done < position && q->done < q->n) {
    const operation o = q->items[q->done++];
    if (!fake.devices[stream->device].sticky) run(&o); /* a lost device does nothing more: where it would write may be freed */
  }
  if (q->done == q->n) {
    q->base += q->n;
    q->done = q->n = 0;
  }
}

static void run_stream(object *stream) { run_until(stream, end_of(stream)); }

void fake_run_all(int device) {
  for (object *o = fake.objects; o; o = o->next)
    if (o->kind == STREAM && o->device == device) run_stream(o);
}

static object *default_stream(int device) {
  static object streams[MAX_DEVICES];
  streams[device].kind = STREAM;
  streams[device].device = device;
  streams[device].alive = 1;
  return &streams[device];
}

object *fake_stream(void *handle, int device, int *result) {
  /* 1 and 2 name default streams too */
  object *s = (uintptr_t)handle > 2 ? fake_find(handle, STREAM) : default_stream(device);
  *result = 0;
  if (!s)
    *result = fake_misused("no stream", INVALID_HANDLE);
  else if (s->device != device)
    *result = fake_misused("the stream is of another device", INVALID_CONTEXT);
  return *result ? NULL : s;
}

int fake_enqueue(object *stream, operation o) {
  if (stream->capturing) {
    if (o.kind != RECORD && o.kind != WAIT) push(&stream->capturing->work, o);
    return 0;
  }
  push(&stream->work, o);
  if (!fake.lazy || stream == default_stream(stream->device)) run_stream(stream);
  return 0;
}

static int stream_create(void **out, unsigned flags) {
  int device, result = fake_enter("cuStreamCreate", 1, &device);
  if (result) return fake_leave(result);
  *out = fake_make(STREAM, device);
  return fake_leave(flags <= 1 ? 0 : INVALID_VALUE);
}

static int stream_synchronize(void *handle) {
  int device, result = fake_enter("cuStreamSynchronize", 1, &device);
  if (result) return fake_leave(result);
  object *s = fake_stream(handle, device, &result);
  if (!s) return fake_leave(result);
  if (s->capturing) return fake_leave(fake_misused("waits for a stream that captures", CAPTURE_UNSUPPORTED));
  run_stream(s);
  return fake_leave(0);
}

static int stream_query(void *handle) {
  int device, result = fake_enter("cuStreamQuery", 1, &device);
  if (result) return fake_leave(result);
  object *s = fake_stream(handle, device, &result);
  if (!s) return fake_leave(result);
  const int busy = s->work.done < s->work.n;
  run_stream(s);
  return fake_leave(busy ? NOT_READY : 0);
}

static int stream_destroy(void *handle) {
  int device, result = fake_enter("cuStreamDestroy", 1, &device);
  object *s = fake_find(handle, STREAM);
  if (!s) return fake_leave(result ? result : fake_misused("no stream", INVALID_HANDLE));
  if (s->capturing) fake_misused("the stream captures", 0);
  run_stream(s);
  fake_remove(s);
  return fake_leave(result);
}

static int event_create(void **out, unsigned flags) {
  (void)flags;
  int device, result = fake_enter("cuEventCreate", 1, &device);
  if (result) return fake_leave(result);
  *out = fake_make(EVENT, device);
  return fake_leave(0);
}

static int event_record(void *handle, void *stream) {
  int device, result = fake_enter("cuEventRecord", 1, &device);
  if (result) return fake_leave(result);
  object *e = fake_find(handle, EVENT);
  object *s = fake_stream(stream, device, &result);
  if (!e || !s) return fake_leave(e ? result : fake_misused("no event", INVALID_HANDLE));
  e->recorded_in = s;
  e->recorded_graph = s->capturing;
  fake_enqueue(s, (operation){.kind = RECORD, .other = e});
  e->recorded_at = end_of(s);
  return fake_leave(0);
}

static int stream_wait_event(void *stream, void *handle, unsigned flags) {
  int device, result = fake_enter("cuStreamWaitEvent", 1, &device);
  if (result) return fake_leave(result);
  object *e = fake_find(handle, EVENT);
  object *s = fake_stream(stream, device, &result);
  if (!e || !s || flags) return fake_leave(e && s ? INVALID_VALUE : e ? result : fake_misused("no event", INVALID_HANDLE));
  if (e->recorded_graph && fake_find(e->recorded_graph, GRAPH_)) {
    if (s->capturing && s->capturing != e->recorded_graph) return fake_leave(fake_misused("two captures meet", 905));
    s->capturing = e->recorded_graph; /* joins the capture */
  } else if (s->capturing) {
    return fake_leave(fake_misused("a capture waits for an event outside of it", 905));
  } else if (e->recorded_in) {
    fake_enqueue(s, (operation){.kind = WAIT, .other = e->recorded_in, .position = e->recorded_at});
  }
  return fake_leave(0);
}

static int event_synchronize(void *handle) {
  int device, result = fake_enter("cuEventSynchronize", 1, &device);
  if (result) return fake_leave(result);
  object *e = fake_find(handle, EVENT);
  if (!e) return fake_leave(fake_misused("no event", INVALID_HANDLE));
  if (e->recorded_in && e->recorded_in->alive) run_until(e->recorded_in, e->recorded_at);
  return fake_leave(0);
}

static int event_query(void *handle) {
  int device, result = fake_enter("cuEventQuery", 1, &device);
  if (result) return fake_leave(result);
  object *e = fake_find(handle, EVENT);
  if (!e) return fake_leave(fake_misused("no event", INVALID_HANDLE));
  if (!e->recorded_in || !e->recorded_in->alive || e->recorded_in->work.base + e->recorded_in->work.done >= e->recorded_at)
    return fake_leave(0);
  run_until(e->recorded_in, e->recorded_at);
  return fake_leave(NOT_READY);
}

static int event_elapsed(float *out, void *from, void *to) {
  int device, result = fake_enter("cuEventElapsedTime", 1, &device);
  if (result) return fake_leave(result);
  *out = 1;
  return fake_leave(fake_find(from, EVENT) && fake_find(to, EVENT) ? 0 : fake_misused("no event", INVALID_HANDLE));
}

static int event_destroy(void *handle) {
  int device, result = fake_enter("cuEventDestroy", 1, &device);
  object *e = fake_find(handle, EVENT);
  if (!e) return fake_leave(result ? result : fake_misused("no event", INVALID_HANDLE));
  fake_remove(e);
  return fake_leave(result);
}

static int launch_kernel(const launch_config *how, void *function, void **parameters, void **extra) {
  int device, result = fake_enter("cuLaunchKernelEx", 1, &device);
  if (result) return fake_leave(result);
  object *f = fake_find(function, KERNEL);
  object *s = fake_stream(how->stream, device, &result);
  if (!f || !s) return fake_leave(f ? result : fake_misused("no function", INVALID_HANDLE));
  const unsigned threads = how->block[0] * how->block[1] * how->block[2];
  const unsigned allowed = f->shared_bytes > 49152 ? (unsigned)f->shared_bytes : 49152;
  if (!threads || threads > 1024 || !how->grid[0] || !how->grid[1] || !how->grid[2] || how->grid[0] > 0x7fffffff || how->grid[1] > 65535 ||
      how->grid[2] > 65535)
    return fake_leave(fake_misused("a grid or block that no device takes", INVALID_VALUE));
  if (how->shared_bytes > allowed) return fake_leave(fake_misused("more shared memory than the function may use", INVALID_VALUE));
  if (!parameters || extra) return fake_leave(fake_misused("no parameters", INVALID_VALUE));
  return fake_leave(fake_enqueue(s, (operation){.kind = LAUNCH, .other = f}));
}

static int begin_capture(void *handle, int mode) {
  int device, result = fake_enter("cuStreamBeginCapture", 1, &device);
  if (result) return fake_leave(result);
  object *s = fake_stream(handle, device, &result);
  if (!s) return fake_leave(result);
  if (!handle || s->capturing) return fake_leave(fake_misused("the stream cannot begin a capture", CAPTURE_UNSUPPORTED));
  s->capturing = fake_make(GRAPH_, device);
  s->origin = 1;
  s->mode = mode;
  ++captures[mode];
  if (mode != 2) ++my_captures;
  return fake_leave(0);
}

static int end_capture(void *handle, void **out) {
  int device, result = fake_enter("cuStreamEndCapture", 1, &device);
  object *s = fake_find(handle, STREAM);
  *out = NULL;
  if (!s || !s->capturing || !s->origin) return fake_leave(result ? result : fake_misused("the stream began no capture", 401));
  object *graph = s->capturing;
  for (object *o = fake.objects; o; o = o->next)
    if (o->kind == STREAM && o->capturing == graph) o->capturing = NULL;
  s->origin = 0;
  --captures[s->mode];
  if (s->mode != 2) --my_captures;
  if (result)
    fake_remove(graph);
  else
    *out = graph;
  return fake_leave(result);
}

static int graph_instantiate(void **out, void *handle, unsigned long long flags) {
  int device, result = fake_enter("cuGraphInstantiateWithFlags", 1, &device);
  if (result) return fake_leave(result);
  const object *graph = fake_find(handle, GRAPH_);
  if (!graph || flags) return fake_leave(fake_misused("no graph", INVALID_HANDLE));
  object *exec = fake_make(EXEC, device);
  for (size_t i = 0; i < graph->work.n; ++i) push(&exec->work, graph->work.items[i]);
  *out = exec;
  return fake_leave(0);
}

static int graph_launch(void *handle, void *stream) {
  int device, result = fake_enter("cuGraphLaunch", 1, &device);
  if (result) return fake_leave(result);
  object *exec = fake_find(handle, EXEC);
  object *s = fake_stream(stream, device, &result);
  if (!exec || !s) return fake_leave(exec ? result : fake_misused("no graph to run", INVALID_HANDLE));
  return fake_leave(fake_enqueue(s, (operation){.kind = GRAPH, .other = exec}));
}

static int graph_exec_destroy(void *handle) {
  int device, result = fake_enter("cuGraphExecDestroy", 1, &device);
  object *exec = fake_find(handle, EXEC);
  if (!exec) return fake_leave(result ? result : fake_misused("no graph to run", INVALID_HANDLE));
  fake_run_all(exec->device);
  fake_remove(exec);
  return fake_leave(result);
}

static int graph_destroy(void *handle) {
  int device, result = fake_enter("cuGraphDestroy", 1, &device);
  object *graph = fake_find(handle, GRAPH_);
  if (!graph) return fake_leave(result ? result : fake_misused("no graph", INVALID_HANDLE));
  fake_remove(graph);
  return fake_leave(result);
}

#define F(name, function) {name, (fake_function)function}
const fake_entry fake_stream_functions[] = {
    F("cuStreamCreate", stream_create),
    F("cuStreamSynchronize", stream_synchronize),
    F("cuStreamQuery", stream_query),
    F("cuStreamWaitEvent", stream_wait_event),
    F("cuStreamDestroy", stream_destroy),
    F("cuEventCreate", event_create),
    F("cuEventRecord", event_record),
    F("cuEventSynchronize", event_synchronize),
    F("cuEventQuery", event_query),
    F("cuEventElapsedTime", event_elapsed),
    F("cuEventDestroy", event_destroy),
    F("cuLaunchKernelEx", launch_kernel),
    F("cuStreamBeginCapture", begin_capture),
    F("cuStreamEndCapture", end_capture),
    F("cuGraphInstantiateWithFlags", graph_instantiate),
    F("cuGraphLaunch", graph_launch),
    F("cuGraphExecDestroy", graph_exec_destroy),
    F("cuGraphDestroy", graph_destroy),
    {NULL, NULL},
};

/* SPDX-License-Identifier: Apache-2.0
 * Memory: a steady decode step allocates nothing, every allocation may fail, and nothing is left behind.
 * malloc and its kin are replaced in this program, and so for the library too. */
#define _GNU_SOURCE
#include <errno.h>
#include <hotset/hotset.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if !defined(__GLIBC__) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
int main(void) {
  puts("needs glibc without sanitizers, which bring their own malloc");
  return 77;
}
#else

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

static atomic_long n_allocations, n_live;
static atomic_long fail_at = -1; /* the allocation with this number fails; -1: none */

static int refuse(void) {
  const long n = atomic_fetch_add(&n_allocations, 1);
  return n == atomic_load(&fail_at);
}

static void *counted(void *p) {
  if (p) atomic_fetch_add(&n_live, 1);
  else errno = ENOMEM;
  return p;
}

void *malloc(size_t n) { return counted(refuse() ? NULL : __libc_malloc(n)); }
void *calloc(size_t n, size_t m) { return counted(refuse() ? NULL : __libc_calloc(n, m)); }
void *memalign(size_t a, size_t n) { return counted(refuse() ? NULL : __libc_memalign(a, n)); }
void *aligned_alloc(size_t a, size_t n) { return memalign(a, n); }
int posix_memalign(void **out, size_t a, size_t n) {
  *out = memalign(a, n);
  return *out ? 0 : ENOMEM;
}
void *realloc(void *p, size_t n) {
  if (refuse()) {
    errno = ENOMEM;
    return NULL;
  }
  void *q = __libc_realloc(p, n);
  if (!p && q) atomic_fetch_add(&n_live, 1);
  return q;
}
void free(void *p) {
  if (p) atomic_fetch_sub(&n_live, 1);
  __libc_free(p);
}

static int failures;
#define CHECK(x)                                                                      \
  do {                                                                                \
    if (!(x)) {                                                                       \
      ++failures;                                                                     \
      printf("FAILED line %d: %s (%s)\n", __LINE__, #x, hotset_last_error());         \
    }                                                                                 \
  } while (0)

enum { LAYERS = 4, WINDOW = 128, LENGTH = 160, HEADS = 2, HEAD = 64, VOCAB = 4096 };

static float cache[2 * LAYERS][HEADS * LENGTH * HEAD];
static float logits[8 * VOCAB];
static int64_t ids[8], mask[LENGTH];

static hotset_tensor view(int32_t dtype, void *data, size_t bytes, int64_t a, int64_t b, int64_t c, int64_t d) {
  hotset_tensor t;
  memset(&t, 0, sizeof t);
  t.struct_size = sizeof t;
  t.dtype = dtype;
  t.device = HOTSET_CPU;
  t.data = data;
  t.bytes = bytes;
  t.shape[0] = a, t.shape[1] = b, t.shape[2] = c, t.shape[3] = d;
  t.rank = d ? 4 : 2;
  return t;
}

static hotset_status bind_all(hotset_binding *binding) {
  for (int layer = 0; layer < LAYERS; ++layer) {
    for (int value = 0; value < 2; ++value) {
      char past[64], present[64];
      snprintf(past, sizeof past, "past_key_values.%d.%s", layer, value ? "value" : "key");
      snprintf(present, sizeof present, "present.%d.%s", layer, value ? "value" : "key");
      const int64_t capacity = layer % 2 == 0 ? WINDOW : LENGTH;
      hotset_tensor t = view(HOTSET_FLOAT32, cache[2 * layer + value], sizeof cache[0], 1, HEADS, capacity, HEAD);
      hotset_status status = hotset_binding_set_input(binding, past, &t);
      if (status) return status;
      status = hotset_binding_set_output(binding, present, &t);
      if (status) return status;
    }
  }
  hotset_tensor y = view(HOTSET_FLOAT32, logits, sizeof logits, 0, 0, 0, 0);
  return hotset_binding_set_output(binding, "logits", &y);
}

static hotset_status step(hotset_binding *binding, int64_t n, int64_t total) {
  hotset_tensor x = view(HOTSET_INT64, ids, sizeof ids, 1, n, 0, 0), m = view(HOTSET_INT64, mask, sizeof mask, 1, total, 0, 0);
  hotset_status status = hotset_binding_set_input(binding, "input_ids", &x);
  if (!status) status = hotset_binding_set_input(binding, "attention_mask", &m);
  return status ? status : hotset_binding_run(binding, NULL);
}

/* Load, prompt of 5, three steps, free. */
static hotset_status whole_life(void) {
  hotset_options *options = NULL;
  hotset_session *session = NULL;
  hotset_binding *binding = NULL;
  hotset_sampler *sampler = NULL;
  char *plan = NULL;
  hotset_status status = hotset_options_create(&options);
  if (!status) status = hotset_options_set(options, "intra_op_num_threads", "2");
  if (!status) status = hotset_session_create(&session, DEMO_MODEL, options);
  if (!status) status = hotset_binding_create(&binding, session);
  if (!status) status = bind_all(binding);
  if (!status) status = step(binding, 5, 5);
  for (int i = 0; i < 3 && !status; ++i) status = step(binding, 1, 6 + i);
  if (!status) status = hotset_session_plan(session, &plan);
  hotset_sampler_config config = {sizeof config, 1, 20, 0.9f, 0.8f, 1.1f, 1};
  if (!status) status = hotset_sampler_create(&sampler, &config);
  hotset_tensor row = view(HOTSET_FLOAT32, logits, sizeof logits, 1, VOCAB, 0, 0);
  int64_t token = 0;
  if (!status) status = hotset_sampler_next(sampler, &row, &token);
  /* Also a plain run whose outputs the library allocates. */
  const char *in[] = {"input_ids", "attention_mask"}, *out[] = {"logits"};
  hotset_tensor inputs[2] = {view(HOTSET_INT64, ids, sizeof ids, 1, 1, 0, 0), view(HOTSET_INT64, mask, sizeof mask, 1, 1, 0, 0)};
  hotset_tensor y = view(HOTSET_UNDEFINED, NULL, 0, 0, 0, 0, 0);
  if (!status) {
    status = hotset_run(session, NULL, in, inputs, 2, out, &y, 1);
    CHECK(status == HOTSET_ERROR_INVALID_ARGUMENT || status == HOTSET_ERROR_OUT_OF_MEMORY); /* past inputs are missing */
    if (status == HOTSET_ERROR_INVALID_ARGUMENT) status = HOTSET_OK;
  }
  hotset_tensor_free(&y);
  hotset_text_free(plan);
  hotset_sampler_free(sampler);
  hotset_binding_free(binding);
  hotset_session_free(session);
  hotset_options_free(options);
  return status;
}

static void steady_decode_allocates_nothing(void) {
  hotset_session *session = NULL;
  hotset_binding *binding = NULL;
  CHECK(!hotset_session_create(&session, DEMO_MODEL, NULL));
  CHECK(!hotset_binding_create(&binding, session));
  CHECK(!bind_all(binding));
  CHECK(!step(binding, 5, 5));
  for (int i = 0; i < 3; ++i) CHECK(!step(binding, 1, 6 + i));
  const long before = atomic_load(&n_allocations);
  for (int i = 3; i < 150; ++i) CHECK(!step(binding, 1, 6 + i)); /* over the window of 128 as well */
  const long made = atomic_load(&n_allocations) - before;
  if (made) printf("FAILED: %ld allocations in 147 decode steps\n", made), ++failures;
  hotset_binding_free(binding);
  hotset_session_free(session);
}

int main(void) {
  for (int i = 0; i < LENGTH; ++i) mask[i] = 1;
  for (int i = 0; i < 8; ++i) ids[i] = 100 + i;
  CHECK(!whole_life()); /* once for what is made once a process */
  const long live = atomic_load(&n_live);
  for (int round = 0; round < 200; ++round) {
    CHECK(!whole_life());
    CHECK(atomic_load(&n_live) == live);
  }
  steady_decode_allocates_nothing();

  const long start = atomic_load(&n_allocations);
  CHECK(!whole_life());
  const long total = atomic_load(&n_allocations) - start;
  long refused = 0;
  for (long n = 0; n < total; ++n) {
    atomic_store(&fail_at, atomic_load(&n_allocations) + n);
    const hotset_status status = whole_life();
    atomic_store(&fail_at, -1);
    refused += status != HOTSET_OK;
    if (status != HOTSET_OK && status != HOTSET_ERROR_OUT_OF_MEMORY) printf("FAILED: allocation %ld gives status %d (%s)\n", n, status, hotset_last_error()), ++failures;
    if (atomic_load(&n_live) > live + 1) { /* the thread's error text may have grown */
      printf("FAILED: allocation %ld leaves %ld blocks\n", n, atomic_load(&n_live) - live);
      ++failures;
      break;
    }
  }
  printf("%ld allocations in a life, %ld refused ones were reported, %ld blocks live\n", total, refused, live);
  if (refused < total / 2) puts("FAILED: most refusals went unnoticed"), ++failures;
  if (!failures) puts("ok");
  return failures != 0;
}
#endif

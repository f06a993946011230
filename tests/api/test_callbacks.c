/* SPDX-License-Identifier: Apache-2.0
 * What a C host hears and says: log, progress, cancelling, tags, caller buffers, stats and metadata as text. */
#include <hotset/hotset.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                          \
  do {                                                                                            \
    if (!(condition)) {                                                                           \
      fprintf(stderr, "%d: %s (last error: %s)\n", __LINE__, #condition, hotset_last_error());    \
      exit(1);                                                                                    \
    }                                                                                             \
  } while (0)

struct heard {
  int messages, level, stages, stop_at;
  char text[512];
};

static void on_log(int32_t level, const char *text, void *user) {
  struct heard *const heard = user;
  if (!strstr(text, "is not used")) return;  // others tell where experts live
  ++heard->messages;
  heard->level = level;
  snprintf(heard->text, sizeof heard->text, "%s", text);
}

static int32_t on_progress(const char *stage, uint64_t done, uint64_t total, void *user) {
  struct heard *const heard = user;
  CHECK(stage[0] != '\0' && done <= total);
  return ++heard->stages == heard->stop_at;
}

static void callbacks(void) {
  struct heard heard = {0};
  hotset_options *options;
  hotset_session *session;
  CHECK(hotset_options_create(&options) == HOTSET_OK);
  CHECK(hotset_options_set(options, "session.somebody_elses", "1") == HOTSET_OK);
  CHECK(hotset_options_set_log(options, 5, on_log, &heard) == HOTSET_ERROR_INVALID_ARGUMENT);
  CHECK(hotset_options_set_log(options, HOTSET_LOG_INFO, on_log, &heard) == HOTSET_OK);
  CHECK(hotset_options_set_progress(options, on_progress, &heard) == HOTSET_OK);
  CHECK(hotset_session_create(&session, DEMO_MODEL, options) == HOTSET_OK);
  CHECK(heard.messages == 1 && heard.level == HOTSET_LOG_INFO && strstr(heard.text, "session.somebody_elses"));
  const int stages = heard.stages;
  CHECK(stages > 1);
  hotset_session_free(session);

  for (int stop = 1; stop <= stages; ++stop) {
    heard.stages = 0;
    heard.stop_at = stop;
    CHECK(hotset_session_create(&session, DEMO_MODEL, options) == HOTSET_ERROR_CANCELLED && !session && heard.stages == stop);
  }
  heard.messages = heard.stages = 0;
  CHECK(hotset_options_set_log(options, HOTSET_LOG_WARNING, on_log, &heard) == HOTSET_OK);
  CHECK(hotset_options_set_progress(options, NULL, NULL) == HOTSET_OK);
  CHECK(hotset_session_create(&session, DEMO_MODEL, options) == HOTSET_OK && heard.messages == 0 && heard.stages == 0);
  hotset_session_free(session);
  hotset_options_free(options);
}

static hotset_tensor tensor_of(int32_t dtype, int64_t rank, const int64_t *shape, void *data) {
  hotset_tensor t = {.struct_size = sizeof t, .dtype = dtype, .device = HOTSET_CPU, .rank = rank, .data = data};
  memcpy(t.shape, shape, (size_t)rank * sizeof *shape);
  t.bytes = hotset_tensor_bytes(dtype, shape, rank);
  return t;
}

/* The demo model's caches are updated in place; the logits land in a buffer of this program. */
static void runs(void) {
  enum { kVocabulary = 4096, kCache = 2 * 128 * 64 };
  static float caches[8][kCache], logits[3 * kVocabulary];
  hotset_session *session;
  hotset_binding *binding;
  hotset_run_options *run_options;
  CHECK(hotset_session_create(&session, DEMO_MODEL, NULL) == HOTSET_OK);
  CHECK(hotset_binding_create(&binding, session) == HOTSET_OK);
  CHECK(hotset_run_options_create(&run_options) == HOTSET_OK);
  int64_t ids[3] = {1, 2, 3}, ones[3] = {1, 1, 1};
  const hotset_tensor input = tensor_of(HOTSET_INT64, 2, (const int64_t[]){1, 3}, ids);
  const hotset_tensor mask = tensor_of(HOTSET_INT64, 2, (const int64_t[]){1, 3}, ones);
  CHECK(hotset_binding_set_input(binding, "input_ids", &input) == HOTSET_OK);
  CHECK(hotset_binding_set_input(binding, "attention_mask", &mask) == HOTSET_OK);
  int n = 0;
  for (size_t i = 0; i < hotset_session_input_count(session); ++i) {
    hotset_value_info info = {.struct_size = sizeof info};
    CHECK(hotset_session_input(session, i, &info) == HOTSET_OK);
    if (strncmp(info.name, "past_key_values.", 16) != 0) continue;
    char present[64];
    snprintf(present, sizeof present, "present.%.50s", info.name + 16);
    const hotset_tensor cache = tensor_of(HOTSET_FLOAT32, 4, (const int64_t[]){1, 2, 128, 64}, caches[n++]);
    CHECK(hotset_binding_set_input(binding, info.name, &cache) == HOTSET_OK);
    CHECK(hotset_binding_set_output(binding, present, &cache) == HOTSET_OK);
  }
  CHECK(n == 8);

  hotset_tensor output = {.struct_size = sizeof output, .data = logits, .bytes = sizeof logits - 1};
  CHECK(hotset_binding_set_output(binding, "logits", &output) == HOTSET_OK);
  CHECK(hotset_binding_run(binding, NULL) == HOTSET_ERROR_INVALID_ARGUMENT && strstr(hotset_last_error(), "49152"));
  output.bytes = sizeof logits;
  CHECK(hotset_binding_set_output(binding, "logits", &output) == HOTSET_OK);

  CHECK(hotset_run_options_set_tag(run_options, "request 7") == HOTSET_OK && hotset_cancel(run_options) == HOTSET_OK);
  CHECK(hotset_binding_run(binding, run_options) == HOTSET_ERROR_CANCELLED && strstr(hotset_last_error(), "request 7"));
  CHECK(hotset_run_options_reset(run_options) == HOTSET_OK);
  CHECK(hotset_binding_run(binding, run_options) == HOTSET_OK);
  hotset_tensor seen = {.struct_size = sizeof seen};
  CHECK(hotset_binding_output(binding, "logits", &seen) == HOTSET_OK);
  CHECK(seen.data == logits && seen.rank == 3 && seen.shape[1] == 3 && seen.shape[2] == kVocabulary && !seen.owner);
  CHECK(logits[0] != 0 && caches[0][0] != 0 && caches[7][0] != 0);

  char *text;
  CHECK(hotset_session_stats(session, &text) == HOTSET_OK);
  CHECK(strstr(text, "\"runs\":1,") && strstr(text, "\"failed_runs\":2,") && strstr(text, "\"routes_total\":12"));
  hotset_text_free(text);
  CHECK(hotset_session_metadata(session, &text) == HOTSET_OK && strstr(text, "\"producer_name\""));
  hotset_text_free(text);
  hotset_run_options_free(run_options);
  hotset_binding_free(binding);
  hotset_session_free(session);
}

int main(void) {
  callbacks();
  runs();
  return 0;
}

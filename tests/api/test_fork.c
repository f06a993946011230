/* SPDX-License-Identifier: Apache-2.0
 * A forked child: using the parent's session is an error, freeing it works, a session of its own works. Nothing hangs. */
#include <stdio.h>
#if defined(_WIN32) || defined(__SANITIZE_THREAD__)
int main(void) {
  puts("needs fork(), and threads after it, which the thread sanitizer does not allow");
  return 77;
}
#else
#include <hotset/hotset.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LAYERS = 4, HEADS = 2, LENGTH = 160, WINDOW = 128, HEAD = 64, VOCAB = 4096 };

static float cache[2 * LAYERS][HEADS * LENGTH * HEAD];
static float expected[VOCAB];

static hotset_session *create(void) {
  hotset_options *options = NULL;
  hotset_session *session = NULL;
  if (!hotset_options_create(&options) && !hotset_options_set(options, "intra_op_num_threads", "4"))
    hotset_session_create(&session, DEMO_MODEL, options);
  hotset_options_free(options);
  return session;
}

static hotset_tensor view(int32_t dtype, void *data, size_t bytes, int64_t a, int64_t b, int64_t c, int64_t d) {
  hotset_tensor t;
  memset(&t, 0, sizeof t);
  t.struct_size = sizeof t;
  t.dtype = dtype;
  t.device = HOTSET_CPU;
  t.data = data;
  t.bytes = bytes;
  t.rank = d ? 4 : 2;
  t.shape[0] = a, t.shape[1] = b, t.shape[2] = c, t.shape[3] = d;
  return t;
}

/* One prompt of 3 tokens; logits of the last. */
static hotset_status run(hotset_session *session, float *last) {
  int64_t ids[3] = {5, 6, 7}, mask[3] = {1, 1, 1};
  char names[2 * LAYERS][32];
  const char *in[2 + 2 * LAYERS] = {"input_ids", "attention_mask"}, *out[] = {"logits"};
  hotset_tensor x[2 + 2 * LAYERS], y = view(HOTSET_UNDEFINED, NULL, 0, 0, 0, 0, 0);
  x[0] = view(HOTSET_INT64, ids, sizeof ids, 1, 3, 0, 0);
  x[1] = view(HOTSET_INT64, mask, sizeof mask, 1, 3, 0, 0);
  for (int i = 0; i < 2 * LAYERS; ++i) {
    snprintf(names[i], sizeof names[i], "past_key_values.%d.%s", i / 2, i % 2 ? "value" : "key");
    in[2 + i] = names[i];
    x[2 + i] = view(HOTSET_FLOAT32, cache[i], sizeof cache[i], 1, HEADS, i / 2 % 2 ? LENGTH : WINDOW, HEAD);
  }
  const hotset_status status = hotset_run(session, NULL, in, x, 2 + 2 * LAYERS, out, &y, 1);
  if (!status) memcpy(last, (const float *)y.data + 2 * VOCAB, VOCAB * sizeof(float));
  hotset_tensor_free(&y);
  return status;
}

static int child(hotset_session *inherited, hotset_binding *binding, hotset_options *options) {
  float mine[VOCAB];
  hotset_binding *more = NULL;
  char *plan = NULL;
  if (run(inherited, mine) != HOTSET_ERROR_INVALID_STATE || !strstr(hotset_last_error(), "fork")) return 3;
  if (hotset_binding_run(binding, NULL) != HOTSET_ERROR_INVALID_STATE) return 4;
  if (hotset_binding_create(&more, inherited) != HOTSET_ERROR_INVALID_STATE || more) return 5;
  if (hotset_session_plan(inherited, &plan)) return 6;
  hotset_text_free(plan);
  hotset_session *own = create();
  if (!own || run(own, mine) || memcmp(mine, expected, sizeof mine)) return 7;
  hotset_binding_free(binding);
  hotset_session_free(inherited);
  hotset_options_free(options);
  hotset_session_free(own);
  return 0;
}

int main(void) {
  int failures = 0;
  hotset_options *options = NULL;
  hotset_session *session = create();
  hotset_binding *binding = NULL;
  if (!session || hotset_options_create(&options) || hotset_binding_create(&binding, session) || run(session, expected)) {
    printf("FAILED: %s\n", hotset_last_error());
    return 1;
  }
#if defined(__SANITIZE_ADDRESS__)
  const int rounds = 4; /* what the last child leaves behind would be called a leak */
#else
  const int rounds = 5;
#endif
  for (int round = 0; round < rounds; ++round) {
    const pid_t pid = fork();
    if (pid == 0) {
      alarm(240); /* a hang is a failure; a machine that does other work is none */
      const int code = round == 4 ? 0 : child(session, binding, options);
      if (round == 4) return 0; /* the ordinary way out, with everything still there */
      _exit(code);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    if (status) printf("FAILED: the child of round %d ended with %x\n", round, (unsigned)status), ++failures;
    float again[VOCAB];
    if (run(session, again) || memcmp(again, expected, sizeof again)) puts("FAILED: the parent's session"), ++failures;
  }
  hotset_binding_free(binding);
  hotset_session_free(session);
  hotset_options_free(options);
  if (!failures) puts("ok");
  return failures != 0;
}
#endif

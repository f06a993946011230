/* SPDX-License-Identifier: Apache-2.0
 * Sentences of the header about wrong calls and about outputs that are handed in again. */
#include <hotset/hotset.h>
#include <stdio.h>
#include <string.h>

static int failures;
#define CHECK(x)                                                              \
  do {                                                                        \
    if (!(x)) {                                                               \
      ++failures;                                                             \
      printf("FAILED line %d: %s (%s)\n", __LINE__, #x, hotset_last_error()); \
    }                                                                         \
  } while (0)

int main(void) {
  hotset_session *session = NULL;
  CHECK(!hotset_session_create(&session, DEMO_MODEL, NULL));
  if (!session) return 1;

  CHECK(hotset_session_save_profile(NULL, "profile.bin") == HOTSET_ERROR_INVALID_ARGUMENT);
  CHECK(hotset_session_save_profile(session, NULL) == HOTSET_ERROR_INVALID_ARGUMENT);
  CHECK(hotset_session_save_profile(session, "") == HOTSET_ERROR_INVALID_ARGUMENT);
  CHECK(hotset_session_save_profile(session, "profile-\xff.bin") == HOTSET_ERROR_INVALID_ARGUMENT);
  CHECK(hotset_session_save_profile(session, "profile.bin") == HOTSET_ERROR_INVALID_STATE); /* before the first run */

  /* One step of the demo model with empty full-length caches; windowed ones have 128 rows. */
  static float window[4][2 * 128 * 64];
  int64_t ids[3] = {5, 6, 7}, mask[3] = {1, 1, 1};
  const char *names[11] = {"input_ids", "attention_mask"};
  char text[8][64];
  hotset_tensor in[11];
  memset(in, 0, sizeof in);
  for (int i = 0; i < 11; ++i) in[i].struct_size = sizeof in[i];
  for (int i = 0; i < 2; ++i) {
    in[i].dtype = HOTSET_INT64;
    in[i].rank = 2;
    in[i].data = i ? mask : ids;
    in[i].bytes = sizeof ids;
    in[i].shape[0] = 1;
    in[i].shape[1] = 3;
  }
  for (int i = 0; i < 8; ++i) {
    const int layer = i / 2;
    snprintf(text[i], sizeof text[i], "past_key_values.%d.%s", layer, i % 2 ? "value" : "key");
    names[2 + i] = text[i];
    hotset_tensor *t = &in[2 + i];
    t->dtype = HOTSET_FLOAT32;
    t->rank = 4;
    t->shape[0] = 1, t->shape[1] = 2, t->shape[2] = layer % 2 ? 0 : 128, t->shape[3] = 64;
    t->data = window[i / 4 * 2 + i % 2];
    t->bytes = layer % 2 ? 0 : sizeof window[0];
  }
  const char *out[] = {"logits"};
  hotset_tensor y;
  memset(&y, 0, sizeof y);
  y.struct_size = sizeof y;
  CHECK(!hotset_run(session, NULL, names, in, 10, out, &y, 1));
  CHECK(y.owner && y.data && y.rank == 3 && y.shape[1] == 3 && y.bytes == 3 * 4096 * sizeof(float));
  const float first = ((const float *)y.data)[0];

  /* The result of a run may be handed in again: it is replaced. Shorter and longer runs both fit. */
  in[0].shape[1] = in[1].shape[1] = 1;
  CHECK(!hotset_run(session, NULL, names, in, 10, out, &y, 1));
  CHECK(y.shape[1] == 1 && y.bytes == 4096 * sizeof(float));
  in[0].shape[1] = in[1].shape[1] = 3;
  CHECK(!hotset_run(session, NULL, names, in, 10, out, &y, 1));
  CHECK(y.shape[1] == 3 && y.bytes == 3 * 4096 * sizeof(float) && ((const float *)y.data)[0] == first);

  /* An input given twice is refused; the failed run frees what the library had allocated. */
  names[10] = "input_ids";
  in[10] = in[0];
  CHECK(hotset_run(session, NULL, names, in, 11, out, &y, 1) == HOTSET_ERROR_INVALID_ARGUMENT);
  CHECK(strstr(hotset_last_error(), "twice") && !y.data && !y.owner);

  /* A caller buffer that is too small: the text names the size, and so do type and shape. */
  float small[8];
  y.data = small;
  y.bytes = sizeof small;
  y.rank = 0;
  CHECK(hotset_run(session, NULL, names, in, 10, out, &y, 1) == HOTSET_ERROR_INVALID_ARGUMENT);
  CHECK(strstr(hotset_last_error(), "49152") && y.data == (void *)small && y.rank == 3 && y.shape[2] == 4096 && y.dtype == HOTSET_FLOAT32);
  CHECK(hotset_tensor_bytes(y.dtype, y.shape, y.rank) == 49152);
  hotset_session_free(session);
  if (!failures) puts("ok");
  return failures != 0;
}

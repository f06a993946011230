/* SPDX-License-Identifier: Apache-2.0
 * Who owns which memory when: buffers too small, changed or freed after a call, structs of an older or newer header. */
#include <hotset/hotset.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures;
#define CHECK(x)                                                              \
  do {                                                                        \
    if (!(x)) {                                                               \
      ++failures;                                                             \
      printf("FAILED line %d: %s (%s)\n", __LINE__, #x, hotset_last_error()); \
    }                                                                         \
  } while (0)

static int says(const char *text) { return strstr(hotset_last_error(), text) != NULL; }

/* ONNX in its wire format: fields of short length and small numbers. */
typedef struct message {
  unsigned char bytes[200];
  size_t n;
} message;

static void put(message *m, int field, const void *data, size_t n) {
  m->bytes[m->n++] = (unsigned char)(field << 3 | 2);
  m->bytes[m->n++] = (unsigned char)n;
  memcpy(m->bytes + m->n, data, n);
  m->n += n;
}
static void put_text(message *m, int field, const char *text) { put(m, field, text, strlen(text)); }
static void put_message(message *m, int field, const message *part) { put(m, field, part->bytes, part->n); }
static void put_number(message *m, int field, int number) {
  m->bytes[m->n++] = (unsigned char)(field << 3);
  m->bytes[m->n++] = (unsigned char)number;
}

/* A float value of shape (n, 3). */
static message value(const char *name) {
  message n = {{0}, 0}, three = n, shape = n, tensor = n, type = n, v = n;
  put_text(&n, 2, "n");
  put_number(&three, 1, 3);
  put_message(&shape, 1, &n);
  put_message(&shape, 1, &three);
  put_number(&tensor, 1, 1);
  put_message(&tensor, 2, &shape);
  put_message(&type, 1, &tensor);
  put_text(&v, 1, name);
  put_message(&v, 2, &type);
  return v;
}

/* y = -x */
static message negation(void) {
  message node = {{0}, 0}, graph = node, opset = node, model = node;
  put_text(&node, 1, "x");
  put_text(&node, 2, "y");
  put_text(&node, 4, "Neg");
  put_message(&graph, 1, &node);
  put_text(&graph, 2, "g");
  const message x = value("x"), y = value("y");
  put_message(&graph, 11, &x);
  put_message(&graph, 12, &y);
  put_text(&opset, 1, "");
  put_number(&opset, 2, 13);
  put_number(&model, 1, 8);
  put_message(&model, 7, &graph);
  put_message(&model, 8, &opset);
  return model;
}

static hotset_tensor view(float *data, int64_t rows) {
  hotset_tensor t;
  memset(&t, 0, sizeof t);
  t.struct_size = sizeof t;
  t.dtype = HOTSET_FLOAT32;
  t.device = HOTSET_CPU;
  t.rank = 2;
  t.shape[0] = rows;
  t.shape[1] = 3;
  t.data = data;
  t.bytes = (size_t)rows * 3 * sizeof(float);
  return t;
}

static const char *const kIn[] = {"x"}, *const kOut[] = {"y"};

/* Options and model bytes may go as soon as the session exists. */
static hotset_session *create_and_forget(void) {
  message *model = malloc(sizeof *model);
  *model = negation();
  hotset_options *options = NULL;
  hotset_session *session = NULL;
  CHECK(!hotset_options_create(&options));
  CHECK(!hotset_options_set(options, "intra_op_num_threads", "2"));
  CHECK(!hotset_session_create_from_memory(&session, model->bytes, model->n, options));
  hotset_options_free(options);
  memset(model, 0xee, sizeof *model);
  free(model);
  return session;
}

static void small_outputs_are_refused(hotset_session *session) {
  float x[6] = {1, 2, 3, 4, 5, 6}, y[8] = {0, 0, 0, 0, 0, 0, 77, 77};
  const hotset_tensor in = view(x, 2);
  hotset_tensor out = view(y, 2);
  out.bytes = 23;
  CHECK(hotset_run(session, NULL, kIn, &in, 1, kOut, &out, 1) == HOTSET_ERROR_INVALID_ARGUMENT);
  CHECK(says("'y'") && says("23 bytes") && says("needs 24") && says("[2,3]"));
  CHECK(y[0] == 0 && out.data == y);
  out.bytes = 24;
  out.shape[0] = 999; /* shape and type of an output are set by the run */
  out.dtype = HOTSET_INT8;
  CHECK(!hotset_run(session, NULL, kIn, &in, 1, kOut, &out, 1));
  CHECK(out.shape[0] == 2 && out.shape[1] == 3 && out.dtype == HOTSET_FLOAT32 && out.bytes == 24 && !out.owner);
  for (int i = 0; i < 6; ++i) CHECK(y[i] == -x[i]);
  CHECK(y[6] == 77 && y[7] == 77);
  hotset_tensor_free(&out); /* leaves a caller's buffer alone */
  CHECK(out.data == y);

  hotset_tensor short_input = view(x, 2);
  short_input.bytes = 20;
  CHECK(hotset_run(session, NULL, kIn, &short_input, 1, kOut, &out, 1) == HOTSET_ERROR_INVALID_ARGUMENT);
  CHECK(says("20 bytes") && says("needs 24"));
  const int32_t strange_devices[] = {-3, 77};
  for (int i = 0; i < 2; ++i) {
    hotset_tensor elsewhere = in;
    elsewhere.device = strange_devices[i];
    CHECK(hotset_run(session, NULL, kIn, &elsewhere, 1, kOut, &out, 1) == HOTSET_ERROR_UNSUPPORTED && says("device"));
  }
  out.data = NULL;
  out.bytes = 24;
  CHECK(hotset_run(session, NULL, kIn, &in, 1, kOut, &out, 1) == HOTSET_ERROR_INVALID_ARGUMENT && says("data is NULL"));

  hotset_binding *binding = NULL;
  CHECK(!hotset_binding_create(&binding, session));
  CHECK(!hotset_binding_set_input(binding, "x", &in));
  out = view(y, 1);
  CHECK(!hotset_binding_set_output(binding, "y", &out));
  CHECK(hotset_binding_run(binding, NULL) == HOTSET_ERROR_INVALID_ARGUMENT && says("12 bytes") && says("needs 24"));
  hotset_tensor none = view(NULL, 0);
  CHECK(hotset_binding_output(binding, "y", &none) == HOTSET_ERROR_INVALID_ARGUMENT);
  CHECK(!hotset_binding_set_output(binding, "y", NULL)); /* the binding allocates, and the run works */
  CHECK(!hotset_binding_run(binding, NULL));
  CHECK(!hotset_binding_output(binding, "y", &none) && none.bytes == 24 && ((float *)none.data)[5] == -6);
  hotset_binding_free(binding);
}

/* Inputs are the caller's again when a run has returned, outputs live on. */
static void buffers_after_a_run(hotset_session *session) {
  hotset_tensor outs[8];
  for (int i = 0; i < 8; ++i) {
    float *x = malloc(9 * sizeof *x);
    for (int k = 0; k < 9; ++k) x[k] = (float)(10 * i + k);
    const hotset_tensor in = view(x, 3);
    memset(&outs[i], 0, sizeof outs[i]);
    outs[i].struct_size = sizeof outs[i];
    CHECK(!hotset_run(session, NULL, kIn, &in, 1, kOut, &outs[i], 1));
    memset(x, 0xff, 9 * sizeof *x);
    free(x);
  }
  hotset_session_free(session);
  for (int i = 0; i < 8; ++i) {
    for (int k = 0; k < 9; ++k) CHECK(((float *)outs[i].data)[k] == -(float)(10 * i + k));
    CHECK(outs[i].owner && outs[i].bytes == 36);
    hotset_tensor_free(&outs[i]);
    CHECK(!outs[i].data && !outs[i].owner && !outs[i].bytes);
    hotset_tensor_free(&outs[i]); /* twice is once */
  }
}

/* A caller with an older, shorter struct gets what it knows and nothing past it; a newer one keeps what the library does not know. */
static void structs_of_other_sizes(hotset_session *session) {
  struct {
    hotset_value_info info;
    char more[32];
  } v;
  memset(&v, 0x55, sizeof v);
  v.info.struct_size = offsetof(hotset_value_info, shape);
  CHECK(!hotset_session_input(session, 0, &v.info));
  CHECK(v.info.struct_size == offsetof(hotset_value_info, shape) && v.info.rank == 2 && !strcmp(v.info.name, "x"));
  for (size_t i = offsetof(hotset_value_info, shape); i < sizeof v; ++i) CHECK(((unsigned char *)&v)[i] == 0x55);
  v.info.struct_size = sizeof v;
  CHECK(!hotset_session_input(session, 0, &v.info));
  CHECK(v.info.shape[1] == 3 && v.info.shape[0] == -1 && !strcmp(v.info.dim_names[0], "n") && v.more[0] == 0x55);
  v.info.struct_size = 0;
  CHECK(hotset_session_input(session, 0, &v.info) == HOTSET_ERROR_INVALID_ARGUMENT && says("struct_size"));

  hotset_option_info option;
  memset(&option, 0x55, sizeof option);
  option.struct_size = offsetof(hotset_option_info, type);
  CHECK(!hotset_option_at(0, &option) && strlen(option.key) > 0);
  CHECK(((unsigned char *)&option)[offsetof(hotset_option_info, type)] == 0x55);
  hotset_device_info device;
  memset(&device, 0x55, sizeof device);
  device.struct_size = offsetof(hotset_device_info, name);
  CHECK(!hotset_device_get_info(-1, &device) && device.memory_bytes > 0 && device.name[0] == 0x55);

  float x[3] = {1, 2, 3};
  hotset_tensor in = view(x, 1), out;
  in.struct_size = 0;
  memset(&out, 0, sizeof out);
  out.struct_size = sizeof out;
  CHECK(hotset_run(session, NULL, kIn, &in, 1, kOut, &out, 1) == HOTSET_ERROR_INVALID_ARGUMENT && says("struct_size"));
  in.struct_size = sizeof in;
  out.struct_size = 0;
  CHECK(hotset_run(session, NULL, kIn, &in, 1, kOut, &out, 1) == HOTSET_ERROR_INVALID_ARGUMENT && says("struct_size"));
  hotset_sampler *sampler = NULL;
  hotset_sampler_config config;
  memset(&config, 0, sizeof config);
  CHECK(hotset_sampler_create(&sampler, &config) == HOTSET_ERROR_INVALID_ARGUMENT && says("struct_size") && !sampler);
}

/* All zero but the size: greedy, without penalty. */
static void zero_sampler_is_greedy(void) {
  float logits[3] = {0.5f, 3.0f, 2.9f};
  hotset_tensor row = view(logits, 1);
  int64_t token = -1;
  hotset_sampler *sampler = NULL;
  hotset_sampler_config config;
  memset(&config, 0, sizeof config);
  config.struct_size = sizeof config;
  CHECK(hotset_sampler_create(&sampler, &config) == HOTSET_OK);
  for (int i = 0; i < 3; ++i) CHECK(hotset_sampler_next(sampler, &row, &token) == HOTSET_OK && token == 1);
  row.device = 77;
  CHECK(hotset_sampler_next(sampler, &row, &token) == HOTSET_ERROR_UNSUPPORTED && says("device 77"));
  hotset_sampler_free(sampler);
  config.top_p = -0.5f;
  CHECK(hotset_sampler_create(&sampler, &config) == HOTSET_ERROR_INVALID_ARGUMENT && says("top_p is -0.5"));
  config.top_p = 0;
  config.repetition_penalty = -1;
  CHECK(hotset_sampler_create(&sampler, &config) == HOTSET_ERROR_INVALID_ARGUMENT && says("repetition_penalty is -1"));
}

static void null_is_an_answer(hotset_session *session) {
  char *text = NULL;
  size_t n = hotset_session_input_count(NULL) + hotset_session_output_count(NULL);
  CHECK(n == 0);
  hotset_session_free(NULL);
  hotset_binding_free(NULL);
  hotset_options_free(NULL);
  hotset_run_options_free(NULL);
  hotset_sampler_free(NULL);
  hotset_tensor_free(NULL);
  hotset_text_free(NULL);
  CHECK(hotset_session_create(NULL, "x", NULL) == HOTSET_ERROR_INVALID_ARGUMENT);
  CHECK(hotset_session_create_from_memory(NULL, "x", 1, NULL) == HOTSET_ERROR_INVALID_ARGUMENT);
  CHECK(hotset_run(NULL, NULL, NULL, NULL, 0, NULL, NULL, 0) == HOTSET_ERROR_INVALID_ARGUMENT);
  CHECK(hotset_run(session, NULL, NULL, NULL, 1, NULL, NULL, 0) == HOTSET_ERROR_INVALID_ARGUMENT);
  CHECK(hotset_session_plan(NULL, &text) == HOTSET_ERROR_INVALID_ARGUMENT);
  CHECK(hotset_session_plan(session, NULL) == HOTSET_ERROR_INVALID_ARGUMENT);
  CHECK(hotset_session_input(session, 5, NULL) == HOTSET_ERROR_INVALID_ARGUMENT);
  CHECK(hotset_binding_create(NULL, session) == HOTSET_ERROR_INVALID_ARGUMENT);
  CHECK(hotset_binding_run(NULL, NULL) == HOTSET_ERROR_INVALID_ARGUMENT);
  CHECK(hotset_cancel(NULL) == HOTSET_ERROR_INVALID_ARGUMENT && hotset_run_options_reset(NULL) == HOTSET_ERROR_INVALID_ARGUMENT);
  CHECK(hotset_plan_file(NULL, NULL, &text) == HOTSET_ERROR_INVALID_ARGUMENT);
  CHECK(hotset_device_count(NULL) == HOTSET_ERROR_INVALID_ARGUMENT);
  CHECK(hotset_options_create(NULL) == HOTSET_ERROR_INVALID_ARGUMENT);
  CHECK(!strcmp(hotset_status_name(HOTSET_ERROR_BUDGET), "budget too small") &&
        !strcmp(hotset_status_name((hotset_status)99), "unknown status"));
}

int main(void) {
  hotset_session *session = create_and_forget();
  if (!session) return 1;
  small_outputs_are_refused(session);
  structs_of_other_sizes(session);
  null_is_an_answer(session);
  buffers_after_a_run(session);
  zero_sampler_is_greedy();
  if (!failures) puts("ok");
  return failures != 0;
}

// SPDX-License-Identifier: Apache-2.0
// C11 host: greedy generation with caches bound once and updated in place.
//
// usage: generate_c11 MODEL.onnx HEAD_SIZE WINDOW N_TOKENS ID...    prints N_TOKENS token ids
#include <hotset/hotset.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRY(call)                                                         \
  do {                                                                    \
    if ((call) != HOTSET_OK) {                                            \
      fprintf(stderr, "%s: %s\n", #call, hotset_last_error());            \
      exit(1);                                                            \
    }                                                                     \
  } while (0)

static hotset_tensor tensor_of(int32_t dtype, int64_t rank, const int64_t *shape, void *data) {
  hotset_tensor t = {.struct_size = sizeof t, .dtype = dtype, .device = HOTSET_CPU, .rank = rank, .data = data};
  memcpy(t.shape, shape, (size_t)rank * sizeof *shape);
  t.bytes = hotset_tensor_bytes(dtype, shape, rank);
  return t;
}

// Binds every past_key_values.* input and the present.* output of the same layer to one buffer. Returns the buffers.
static size_t bind_caches(hotset_session *session, hotset_binding *binding, int64_t head_size, int64_t window, int64_t max_length,
                          void **buffers, size_t capacity) {
  static const char past[] = "past_key_values.";
  size_t n = 0;
  for (size_t i = 0; i < hotset_session_input_count(session); ++i) {
    hotset_value_info info = {.struct_size = sizeof info};
    TRY(hotset_session_input(session, i, &info));
    if (strncmp(info.name, past, sizeof past - 1) != 0) continue;
    if (info.rank != 4 || n == capacity) {
      fprintf(stderr, "cache '%s' is not one this program knows\n", info.name);
      exit(1);
    }
    const int sliding = info.dim_names[2] && strstr(info.dim_names[2], "sliding");
    const int64_t shape[4] = {1, info.shape[1], sliding ? window : max_length, info.shape[3] > 0 ? info.shape[3] : head_size};
    buffers[n] = calloc(1, hotset_tensor_bytes(info.dtype, shape, 4));
    if (!buffers[n]) exit(1);
    const hotset_tensor cache = tensor_of(info.dtype, 4, shape, buffers[n++]);
    char present[256];
    snprintf(present, sizeof present, "present.%s", info.name + sizeof past - 1);
    TRY(hotset_binding_set_input(binding, info.name, &cache));
    TRY(hotset_binding_set_output(binding, present, &cache));
  }
  return n;
}

int main(int argc, char **argv) {
  if (argc < 6 || hotset_api_version() != HOTSET_API_VERSION) {
    fprintf(stderr, "usage: %s MODEL.onnx HEAD_SIZE WINDOW N_TOKENS ID...\n", argv[0]);
    return 2;
  }
  const int64_t head_size = atoll(argv[2]), window = atoll(argv[3]), n_new = atoll(argv[4]), n_prompt = argc - 5;
  const int64_t max_length = n_prompt + n_new;

  hotset_options *options;
  TRY(hotset_options_create(&options));
  TRY(hotset_options_set(options, "intra_op_num_threads", "2"));
  hotset_session *session;
  TRY(hotset_session_create(&session, argv[1], options));
  hotset_options_free(options);
  hotset_binding *binding;
  TRY(hotset_binding_create(&binding, session));
  void *buffers[512];
  const size_t n_buffers = bind_caches(session, binding, head_size, window, max_length, buffers, 512);

  int64_t *ids = malloc((size_t)max_length * sizeof *ids), *ones = malloc((size_t)max_length * sizeof *ones);
  if (!ids || !ones) return 1;
  for (int64_t i = 0; i < max_length; ++i) ones[i] = 1;
  for (int64_t i = 0; i < n_prompt; ++i) ids[i] = atoll(argv[5 + i]);

  hotset_sampler *sampler;
  const hotset_sampler_config greedy = {.struct_size = sizeof greedy};
  TRY(hotset_sampler_create(&sampler, &greedy));
  TRY(hotset_binding_set_output(binding, "logits", NULL));  // the binding allocates

  int64_t done = 0;  // tokens in the caches
  for (int64_t length = n_prompt; length < max_length; ++length) {
    const hotset_tensor input = tensor_of(HOTSET_INT64, 2, (const int64_t[]){1, length - done}, ids + done);
    const hotset_tensor mask = tensor_of(HOTSET_INT64, 2, (const int64_t[]){1, length}, ones);
    TRY(hotset_binding_set_input(binding, "input_ids", &input));
    TRY(hotset_binding_set_input(binding, "attention_mask", &mask));
    TRY(hotset_binding_run(binding, NULL));
    hotset_tensor logits = {.struct_size = sizeof logits};
    TRY(hotset_binding_output(binding, "logits", &logits));
    TRY(hotset_sampler_next(sampler, &logits, &ids[length]));
    printf("%lld\n", (long long)ids[length]);
    done = length;
  }

  hotset_sampler_free(sampler);
  hotset_binding_free(binding);
  hotset_session_free(session);
  for (size_t i = 0; i < n_buffers; ++i) free(buffers[i]);
  free(ids);
  free(ones);
  return 0;
}

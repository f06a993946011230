/* SPDX-License-Identifier: Apache-2.0
 *
 * hotset: run Mixture-of-Experts ONNX models that are larger than the GPU. This header is the manual of the C interface.
 *
 * A program for a model with one input (every call below returns a hotset_status, 0 is success). An exported decoder has more
 * inputs; tests/hosts/ of the source has complete programs that generate tokens with it:
 *
 *     hotset_options *options;
 *     hotset_options_create(&options);
 *     hotset_options_set(options, "intra_op_num_threads", "4");
 *     hotset_session *session;
 *     hotset_session_create(&session, "model.onnx", options);
 *     int64_t ids[3] = {1, 2, 3};
 *     hotset_tensor x = {sizeof(hotset_tensor), HOTSET_INT64, HOTSET_CPU, 0, 2, ids, sizeof ids, {1, 3}};
 *     hotset_tensor y = {sizeof(hotset_tensor)};              // data == NULL: the library allocates
 *     const char *in[] = {"input_ids"}, *out[] = {"logits"};
 *     hotset_run(session, NULL, in, &x, 1, out, &y, 1);
 *     use((const float *)y.data, y.shape);
 *     hotset_tensor_free(&y);
 *     hotset_session_free(session);
 *     hotset_options_free(options);
 *
 * Rules that hold everywhere:
 *   - Ownership: what comes through `**out` (or is allocated into a hotset_tensor) is yours to free; what is *returned*
 *     belongs to its parent and lives as long as it. Every free function accepts NULL.
 *   - Text is UTF-8 and ends with NUL; file paths too, on every platform.
 *   - Sizes are `size_t` bytes or `int64_t` elements; the name says which.
 *   - Open structs begin with `struct_size`, set by the caller to sizeof(the struct). The library reads no more than
 *     that and newer versions only append fields. Zero-initialise them.
 *   - Threads: different objects may be used from different threads at once. One session may run from several threads
 *     at once; creating, freeing and setting options of one object is for one thread at a time.
 *   - The library never prints, exits, installs signal handlers or changes global state. It reads these environment
 *     variables only: HOTSET_CPU (cap of the CPU kernels: a tier of the machine, as hotset_doctor lists
 *     them; empty is not set, with another value no session can be created), HOTSET_LIBCUDA (path of the driver), and
 *     ORT_QMOE_* as defaults of the options session.moe.offload.* that approximate routing has.
 *   - After fork() the child has none of the library's threads: a run of a session it inherited returns
 *     HOTSET_ERROR_INVALID_STATE. It may free what no other thread was using at that moment, and create and run sessions
 *     of its own.
 */
#ifndef HOTSET_H
#define HOTSET_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32) && defined(HOTSET_BUILDING)
#define HOTSET_API __declspec(dllexport)
#elif defined(_WIN32)
#define HOTSET_API __declspec(dllimport)
#else
#define HOTSET_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- version ------------------------------------------------------------------------------------------------------ */

#define HOTSET_API_VERSION 1

/* The HOTSET_API_VERSION the library was built with. A caller whose header says another number must not go on. */
HOTSET_API uint32_t hotset_api_version(void);

/* The release, such as "0.1.0". Static text. */
HOTSET_API const char *hotset_version(void);

/* ---- status ------------------------------------------------------------------------------------------------------- */

/* What a caller would do differently. The text of hotset_last_error() says what was seen, expected, and where. */
typedef enum hotset_status {
  HOTSET_OK = 0,
  HOTSET_ERROR_INVALID_ARGUMENT = 1,   /* a wrong call: name, shape, dtype, option value, handle */
  HOTSET_ERROR_NOT_FOUND = 2,          /* a file is missing or cannot be opened */
  HOTSET_ERROR_INVALID_MODEL = 3,      /* the model file is damaged or breaks a rule of its operators on any machine */
  HOTSET_ERROR_UNSUPPORTED = 4,        /* a valid model or option that this build or machine cannot serve */
  HOTSET_ERROR_BUDGET = 5,             /* a memory budget is too small; the text says how much is needed */
  HOTSET_ERROR_OUT_OF_MEMORY = 6,      /* host memory */
  HOTSET_ERROR_OUT_OF_DEVICE_MEMORY = 7,
  HOTSET_ERROR_DEVICE = 8,             /* driver or device failure */
  HOTSET_ERROR_CANCELLED = 9,          /* hotset_cancel or a callback stopped the call; the session stays usable */
  HOTSET_ERROR_INVALID_STATE = 10,     /* object used in a state that does not allow it (after fork, while running) */
  HOTSET_ERROR_INTERNAL = 20           /* a defect of the library */
} hotset_status;

/* Text of the last failed call of the calling thread, "" if none. Valid until that thread's next hotset call. */
HOTSET_API const char *hotset_last_error(void);

/* Name of a status, such as "invalid argument". Static text; never NULL. */
HOTSET_API const char *hotset_status_name(hotset_status status);

/* ---- tensors ------------------------------------------------------------------------------------------------------ */

/* Element types; the numbers are those of ONNX TensorProto.DataType. 4-bit types are packed two a byte, low first. */
typedef enum hotset_dtype {
  HOTSET_UNDEFINED = 0,
  HOTSET_FLOAT32 = 1,
  HOTSET_UINT8 = 2,
  HOTSET_INT8 = 3,
  HOTSET_UINT16 = 4,
  HOTSET_INT16 = 5,
  HOTSET_INT32 = 6,
  HOTSET_INT64 = 7,
  HOTSET_BOOL = 9,
  HOTSET_FLOAT16 = 10,
  HOTSET_FLOAT64 = 11,
  HOTSET_UINT32 = 12,
  HOTSET_UINT64 = 13,
  HOTSET_BFLOAT16 = 16,
  HOTSET_FLOAT8E4M3FN = 17,
  HOTSET_FLOAT8E4M3FNUZ = 18,
  HOTSET_FLOAT8E5M2 = 19,
  HOTSET_FLOAT8E5M2FNUZ = 20,
  HOTSET_UINT4 = 21,
  HOTSET_INT4 = 22,
  HOTSET_FLOAT4E2M1 = 23,
  HOTSET_FLOAT8E8M0 = 24
} hotset_dtype;

typedef enum hotset_device {
  HOTSET_CPU = 1, /* host memory, pinned or not (DLPack numbers) */
  HOTSET_CUDA = 2
} hotset_device;

enum { HOTSET_MAX_RANK = 8 };

/* A view of a dense tensor, in the meaning of DLPack: no ownership, data pointer, element type, shape, strides.
 * data is aligned to its elements; in device memory (device HOTSET_CUDA, device_id) to 16 bytes. Device memory is taken by sessions
 * on that device alone, where nothing is copied; a result that is asked for there (device HOTSET_CUDA, with data or without) stays
 * there.
 * As input:  data holds shape[0] * ... * shape[rank-1] elements of dtype; `bytes` is the size of the buffer, at least that much.
 * As output: data == NULL and bytes == 0 asks the library to allocate: data, bytes and owner are set, free with hotset_tensor_free.
 *            A tensor whose owner is set (the result of an earlier run) counts as such: its old data are freed when the call
 *            is over, so they may be an input of the same call.
 *            data != NULL without owner is a caller buffer of `bytes` bytes; it must hold the result or the call fails with
 *            HOTSET_ERROR_INVALID_ARGUMENT and the text names the size needed. dtype, rank and shape are set, after a failure
 *            too if they were known by then.
 * An output buffer may be the very buffer of an input where the operator allows it (present K/V over past K/V);
 * other overlaps of outputs with inputs are errors. */
typedef struct hotset_tensor {
  uint32_t struct_size;             /* sizeof(hotset_tensor) */
  int32_t dtype;                    /* hotset_dtype */
  int32_t device;                   /* hotset_device; 0 means HOTSET_CPU */
  int32_t device_id;
  int64_t rank;                     /* 0 (scalar) ... HOTSET_MAX_RANK */
  void *data;
  size_t bytes;
  int64_t shape[HOTSET_MAX_RANK];   /* elements */
  int64_t strides[HOTSET_MAX_RANK]; /* elements; all zero means dense row-major, the only layout accepted in version 1 */
  void *owner;                      /* set when the library allocated `data` */
} hotset_tensor;

/* Frees what the library allocated into the tensor and clears data, bytes and owner. A caller buffer is left alone. Device memory
 * lives on while a DLPack structure made from it does. */
HOTSET_API void hotset_tensor_free(hotset_tensor *tensor);

/* Allocates memory for the dtype, shape, device and device_id of a tensor without data: data, bytes and owner are set, the content is
 * arbitrary. INVALID_ARGUMENT, UNSUPPORTED (no such device), OUT_OF_MEMORY, OUT_OF_DEVICE_MEMORY, DEVICE. */
HOTSET_API hotset_status hotset_tensor_allocate(hotset_tensor *tensor);

/* Copies the content of a tensor to another of the same type and shape, wherever they lie, and waits for it. On a GPU the copy comes
 * after the work in its default stream. INVALID_ARGUMENT, UNSUPPORTED, DEVICE. */
HOTSET_API hotset_status hotset_tensor_copy(const hotset_tensor *to, const hotset_tensor *from);

/* A view of a DLPack tensor (`managed` is a DLManagedTensor *), in host or device memory, which stays valid while that does. The
 * caller still calls its deleter. UNSUPPORTED for another device, element type or rank, INVALID_ARGUMENT where it is not dense. */
HOTSET_API hotset_status hotset_tensor_from_dlpack(hotset_tensor *out, const void *managed);
/* A DLManagedTensor * that shares device memory which the library allocated; its consumer calls its deleter, before or after the
 * tensor is freed. UNSUPPORTED for other memory, which needs no help: it is described by the tensor. */
HOTSET_API hotset_status hotset_tensor_to_dlpack(const hotset_tensor *tensor, void **out);

/* Bytes of a dense tensor of this type and shape, or 0 for an unknown type, a negative dimension or an overflow. */
HOTSET_API size_t hotset_tensor_bytes(int32_t dtype, const int64_t *shape, int64_t rank);

/* Name of an element type as onnxruntime writes it ("float", "int64", "bfloat16"); "undefined" if unknown. */
HOTSET_API const char *hotset_dtype_name(int32_t dtype);

/* ---- devices ------------------------------------------------------------------------------------------------------ */

typedef struct hotset_device_info {
  uint32_t struct_size;
  int32_t device;               /* hotset_device */
  int32_t device_id;
  int32_t compute_major;        /* CUDA compute capability; 0 for the CPU */
  int32_t compute_minor;
  int32_t driver_version;       /* as cuDriverGetVersion: 1000 * major + 10 * minor */
  uint64_t memory_bytes;        /* physical memory */
  char name[128];
} hotset_device_info;

/* Number of usable CUDA devices. With none, *out is 0, the status is HOTSET_OK and hotset_device_note() says why. */
HOTSET_API hotset_status hotset_device_count(int32_t *out);

/* One sentence about the driver: its version, or why no device is usable. Valid until the thread's next call. */
HOTSET_API const char *hotset_device_note(void);

/* Device `index` of hotset_device_count(); index -1 is the CPU. */
HOTSET_API hotset_status hotset_device_get_info(int32_t index, hotset_device_info *out);

/* JSON text: instruction sets found and in force, the kernel chosen for each family, build options, devices.
 * Free with hotset_text_free. */
HOTSET_API hotset_status hotset_doctor(char **out);

/* Frees text that came through a `char **out`. */
HOTSET_API void hotset_text_free(char *text);

/* ---- options ------------------------------------------------------------------------------------------------------ */

/* Options are strings over one table; hotset_option_at lists it. onnxruntime's own keys are accepted with onnxruntime's
 * values. An unknown key under "hotset." or "session.moe.offload." is an error that names the nearest known key; other
 * unknown keys are kept and reported once through the log as unused. */
typedef struct hotset_options hotset_options;

typedef struct hotset_option_info {
  uint32_t struct_size;
  int32_t reserved;
  const char *key;
  const char *type;          /* "int", "bool", "choice", "bytes", "real", "text" */
  const char *default_value; /* "" of another type than text: absent, not a value to set */
  const char *allowed;       /* "0..1024", "auto|float|int8", ""; static text like the others */
  const char *help;          /* one sentence */
} hotset_option_info;

HOTSET_API size_t hotset_option_count(void);
/* HOTSET_ERROR_INVALID_ARGUMENT when index >= hotset_option_count(). */
HOTSET_API hotset_status hotset_option_at(size_t index, hotset_option_info *out);

HOTSET_API hotset_status hotset_options_create(hotset_options **out);
HOTSET_API void hotset_options_free(hotset_options *options);
/* Checks the value at once. Both texts are copied. */
HOTSET_API hotset_status hotset_options_set(hotset_options *options, const char *key, const char *value);
/* The value in force (set or default); *out belongs to `options` and lives until the next set. An unknown key that was
 * never set gives HOTSET_ERROR_INVALID_ARGUMENT. */
HOTSET_API hotset_status hotset_options_get(const hotset_options *options, const char *key, const char **out);

typedef enum hotset_log_level {
  HOTSET_LOG_VERBOSE = 0,
  HOTSET_LOG_INFO = 1,
  HOTSET_LOG_WARNING = 2,
  HOTSET_LOG_ERROR = 3,
  HOTSET_LOG_OFF = 4
} hotset_log_level;

/* Called from the thread that runs the call in question; must not call back into the library. */
typedef void (*hotset_log_callback)(int32_t level, const char *text, void *user);
/* done and total are bytes or steps of the named stage. Return 0 to go on, anything else to cancel the load. */
typedef int32_t (*hotset_progress_callback)(const char *stage, uint64_t done, uint64_t total, void *user);

/* Messages of at least `level` of every session created with these options. Default: none. */
HOTSET_API hotset_status hotset_options_set_log(hotset_options *options, int32_t level, hotset_log_callback callback, void *user);
/* Progress of hotset_session_create. Default: none. */
HOTSET_API hotset_status hotset_options_set_progress(hotset_options *options, hotset_progress_callback callback, void *user);

/* ---- sessions ----------------------------------------------------------------------------------------------------- */

/* A loaded model. Weights are mapped from the file and never copied: do not truncate or overwrite the model's files while
 * a session lives (replace them by renaming a new file over the old name, which is safe). A run that begins while a file is too
 * short returns HOTSET_ERROR_INVALID_STATE, for models of up to 8 files; bytes that go during a run end the process. */
typedef struct hotset_session hotset_session;

/* Loads an ONNX file. `options` may be NULL (defaults), is copied, and may be freed at once.
 * On failure *out is NULL and nothing is left behind. Statuses: NOT_FOUND, INVALID_MODEL, UNSUPPORTED, INVALID_ARGUMENT,
 * BUDGET, OUT_OF_MEMORY, CANCELLED. */
HOTSET_API hotset_status hotset_session_create(hotset_session **out, const char *path, const hotset_options *options);

/* The same from the bytes of a model file, which are copied. External data is looked up in the folder given by the option
 * "session.model_external_initializers_file_folder_path" and is an error without it. */
HOTSET_API hotset_status hotset_session_create_from_memory(hotset_session **out, const void *model, size_t model_bytes,
                                                           const hotset_options *options);

/* Waits for running calls of other threads to be finished by the caller first: freeing a running session is a fault. */
HOTSET_API void hotset_session_free(hotset_session *session);

/* One graph input or output. */
typedef struct hotset_value_info {
  uint32_t struct_size;
  int32_t dtype;
  const char *name;                          /* these texts belong to the session */
  int64_t rank;                              /* -1: the model does not say */
  int64_t shape[HOTSET_MAX_RANK];            /* -1: symbolic or unknown */
  const char *dim_names[HOTSET_MAX_RANK];    /* name of a symbolic dimension, or NULL */
} hotset_value_info;

HOTSET_API size_t hotset_session_input_count(const hotset_session *session);
HOTSET_API size_t hotset_session_output_count(const hotset_session *session);
HOTSET_API hotset_status hotset_session_input(const hotset_session *session, size_t index, hotset_value_info *out);
HOTSET_API hotset_status hotset_session_output(const hotset_session *session, size_t index, hotset_value_info *out);

/* JSON text with producer, graph name, domain, description, version, opsets and custom metadata. Free with hotset_text_free. */
HOTSET_API hotset_status hotset_session_metadata(const hotset_session *session, char **out);
/* JSON text: {"memory": [{"purpose", "where", "bytes", "bound"}...], "nodes": [...], "experts": [...], "unfused_experts": [...],
 * "options": {...}, "expert_store": {"home", "reason", "total_bytes", "minimum_bytes", "bound_bytes", "fixed_bytes", "pools": [...]}}:
 * what the session holds, executes and decided, and why. "home" is "mapped", "cached" or "paged" (option hotset.file_io),
 * "minimum_bytes" the least session.moe.offload.host_expert_bytes. */
HOTSET_API hotset_status hotset_session_plan(const hotset_session *session, char **out);
/* JSON text: counters since creation: {"runs", "failed_runs", "nodes_executed", "shape_inferences", "memory_layouts",
 * "arena_bytes", "expert_store": {"home", "bound_bytes", "minimum_bytes", "resident_bytes", "hits", "misses", "fills",
 * "evictions", "bytes_read", "failures"}, "expert_tokens", "approximate", "experts": [{"node", "op", "experts", "experts_per_token", "routes": [...],
 * "routes_total", "counters": [...], "skipped", "substituted"}...]}.
 * "fills" of the store are parts that were read ahead of their first use, with a profile or when there is room for all.
 * "routes" holds for each expert of a layer how many tokens were sent to it, padding included, in runs that succeeded;
 * "counters" their recent use, 0...1 (option hotset.adapt_alpha); "skipped" and "substituted" count routes that approximate
 * routing changed, which "routes" has as the router made them; "approximate" says whether it is on. Layers whose weights are
 * constants of the model are listed, in the order of the graph. Free with hotset_text_free. */
HOTSET_API hotset_status hotset_session_stats(const hotset_session *session, char **out);
/* Writes how often each expert was chosen per token to a file, which replaces an older one in one step. A later session of the
 * model takes it as the option "session.moe.offload.popularity_file". INVALID_STATE when no run has used an expert
 * yet, NOT_FOUND when the file cannot be written. */
HOTSET_API hotset_status hotset_session_save_profile(const hotset_session *session, const char *path);
/* JSON text in Chrome trace format of the last run made with the option "hotset.trace" = 1; "[]" otherwise. */
HOTSET_API hotset_status hotset_session_trace(const hotset_session *session, char **out);

/* The same report as hotset_session_plan for a model file, without reading any weight. */
HOTSET_API hotset_status hotset_plan_file(const char *path, const hotset_options *options, char **out);

/* ---- run ---------------------------------------------------------------------------------------------------------- */

/* Per-run settings and the handle for cancelling. Reusable, for one run at a time. */
typedef struct hotset_run_options hotset_run_options;
HOTSET_API hotset_status hotset_run_options_create(hotset_run_options **out);
HOTSET_API void hotset_run_options_free(hotset_run_options *run_options);
/* Text that log messages and traces of the run carry; copied. */
HOTSET_API hotset_status hotset_run_options_set_tag(hotset_run_options *run_options, const char *tag);
/* Any thread, any time: the run that uses `run_options` returns HOTSET_ERROR_CANCELLED between two nodes. Stays set until
 * hotset_run_options_reset. Outputs of a cancelled run are unspecified; in-place K/V rows of the cancelled step too. */
HOTSET_API hotset_status hotset_cancel(hotset_run_options *run_options);
HOTSET_API hotset_status hotset_run_options_reset(hotset_run_options *run_options);

/* Runs the graph once. Inputs and outputs are matched by name; every graph input without a default must be given, any
 * subset of outputs may be asked for, each once (nodes that none of them needs are not run). `run_options` may be NULL. Buffers
 * are read and written only during the call.
 * On failure library-allocated outputs are freed again and their data is NULL. The session stays usable. */
HOTSET_API hotset_status hotset_run(hotset_session *session, hotset_run_options *run_options, const char *const *input_names,
                                    const hotset_tensor *inputs, size_t input_count, const char *const *output_names,
                                    hotset_tensor *outputs, size_t output_count);

/* The same on a GPU, in the order of a CUDA stream of the caller (a CUstream or cudaStream_t; NULL is the default stream): the run
 * comes after what the stream has to do, and what the stream gets afterwards comes after the run. Returns when all is enqueued, but
 * waits where a result is wanted in host memory or a node runs on the CPU. Until the stream has come past the run, input and output
 * buffers must stay as they are, and a failure on the device may be told by a later call. The stream must not be capturing.
 * hotset_run and hotset_binding_run come after what the default stream has to do where device memory is given to them, and wait for
 * the device. UNSUPPORTED for a session on the CPU. */
HOTSET_API hotset_status hotset_run_async(hotset_session *session, hotset_run_options *run_options, const char *const *input_names,
                                          const hotset_tensor *inputs, size_t input_count, const char *const *output_names,
                                          hotset_tensor *outputs, size_t output_count, void *cuda_stream);

/* What the stream `then` of a GPU gets from now on comes after what its stream `first` has to do. Nothing waits on the host. */
HOTSET_API hotset_status hotset_stream_order(int32_t device_id, void *first, void *then);

/* A prepared run: names are looked up once and buffers stay bound, so a decode loop only changes what changes.
 * The binding belongs to one thread at a time (a second one gets HOTSET_ERROR_INVALID_STATE) and must be freed before its session. Bound caller buffers must stay valid
 * until they are re-bound or the binding is freed. */
typedef struct hotset_binding hotset_binding;
HOTSET_API hotset_status hotset_binding_create(hotset_binding **out, hotset_session *session);
HOTSET_API void hotset_binding_free(hotset_binding *binding);
HOTSET_API hotset_status hotset_binding_set_input(hotset_binding *binding, const char *name, const hotset_tensor *tensor);
/* tensor == NULL or data == NULL: the binding allocates and re-uses a buffer of its own, read with hotset_binding_output, in device
 * memory where tensor->device says HOTSET_CUDA. */
HOTSET_API hotset_status hotset_binding_set_output(hotset_binding *binding, const char *name, const hotset_tensor *tensor);
/* Stops asking for an output. Nodes that no bound output needs are not run: a prompt can fill the K/V caches alone. */
HOTSET_API hotset_status hotset_binding_drop_output(hotset_binding *binding, const char *name);
/* Forgets all bound inputs and outputs. */
HOTSET_API hotset_status hotset_binding_clear(hotset_binding *binding);
HOTSET_API hotset_status hotset_binding_run(hotset_binding *binding, hotset_run_options *run_options);
/* As hotset_run_async. */
HOTSET_API hotset_status hotset_binding_run_async(hotset_binding *binding, hotset_run_options *run_options, void *cuda_stream);
/* View of a bound output after a run; a binding-owned buffer lives until the next run or free. */
HOTSET_API hotset_status hotset_binding_output(const hotset_binding *binding, const char *name, hotset_tensor *out);
/* The same for a binding-owned buffer in device memory, which becomes the caller's (hotset_tensor_free): the next run allocates
 * another. UNSUPPORTED for other outputs. */
HOTSET_API hotset_status hotset_binding_take_output(hotset_binding *binding, const char *name, hotset_tensor *out);

/* ---- sampling ----------------------------------------------------------------------------------------------------- */

/* Chooses the next token from logits. Steps, in this order: repetition penalty (a logit > 0 is divided, else multiplied by
 * the penalty, for every token seen); temperature; top_k largest (ties: lower id first); smallest set whose probability
 * reaches top_p (at least one); draw. Greedy (do_sample == 0) takes the largest after the penalty, lower id on ties.
 * NaN logits are never chosen; a row of only NaN is HOTSET_ERROR_INVALID_ARGUMENT. */
typedef struct hotset_sampler hotset_sampler;

/* Zero-initialised but for struct_size it is valid and greedy. */
typedef struct hotset_sampler_config {
  uint32_t struct_size;
  int32_t do_sample;          /* 0 greedy */
  int32_t top_k;              /* 0 or less: off */
  float top_p;                /* in (0, 1]; 1 or 0: off */
  float temperature;          /* > 0; 0 means greedy */
  float repetition_penalty;   /* > 0; 1 or 0: off */
  uint64_t seed;              /* same seed, same logits: same tokens, on every machine */
} hotset_sampler_config;

HOTSET_API hotset_status hotset_sampler_create(hotset_sampler **out, const hotset_sampler_config *config);
HOTSET_API void hotset_sampler_free(hotset_sampler *sampler);
/* Tells the sampler tokens it did not choose itself (the prompt), for the repetition penalty. */
HOTSET_API hotset_status hotset_sampler_accept(hotset_sampler *sampler, const int64_t *tokens, size_t token_count);
/* logits: float32, float16 or bfloat16 of shape (vocabulary); the last row of a higher-rank tensor is used.
 * The chosen token is accepted (see above) and stored in *out. Logits may lie on a GPU (device HOTSET_CUDA), written by work that
 * is through; then a few bytes come back in place of the row, but for a draw without top_k or one after a repetition penalty. */
HOTSET_API hotset_status hotset_sampler_next(hotset_sampler *sampler, const hotset_tensor *logits, int64_t *out);

#ifdef __cplusplus
}
#endif
#endif

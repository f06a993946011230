/* SPDX-License-Identifier: Apache-2.0
 * Controls of the stand-in for libcuda.so.1 (fake_cuda.c): a driver for GPUs that are not there, so that the host side of
 * GPU code is tested anywhere. Point HOTSET_LIBCUDA at libfake_cuda.so.
 *
 * What it does. Device memory has addresses that no host code can touch (bit 62 is set), copies move real bytes, kernels do
 * nothing, streams keep their order, graphs replay what was captured, and every handle and pointer is checked: a wrong
 * one is remembered (fake_cuda_misuse) and refused as the driver would. After a sticky failure (700, 719, ...) every call
 * on that device fails with it until its context has been released by all. In a forked child, every call fails with 3.
 * A call after the process has begun to end writes a line to stderr and ends it with status 70.
 *
 * Environment, read at the first call:
 *   FAKE_CUDA          "nodevice", "mismatch", "missing" (a function), "empty" (initialises, counts no device), "badcount";
 *                      this one is read at every call
 *   FAKE_CUDA_DEVICES  number of devices, 1...4; default 1
 *   FAKE_CUDA_MEMORY   bytes of each device; default 143771 MiB, as an H200 has (backed by what is used)
 *   FAKE_CUDA_COMPUTE  compute capability, "90" by default
 *   FAKE_CUDA_VERSION  of the driver, "13000" by default
 *   FAKE_CUDA_FAIL     failures to inject: "cuMemAlloc:3=2,cuLaunchKernelEx:1=719" fails the third allocation with 2 and the
 *                      first launch with 719
 *   FAKE_CUDA_LAZY     1: streams run only when somebody waits for them, so that a missing wait shows */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Forgets counters, failures to come, misuse, launches and sticky errors; objects stay. */
void fake_cuda_reset(void);
/* The nth call from now (1: the next) of `function`, of any function where it is "", returns `code`. */
void fake_cuda_fail(const char* function, int nth, int code);
/* Calls of `function` ("": of all) since the last reset, those that failed included. */
long fake_cuda_calls(const char* function);
/* Objects now alive: "context" (retained ones), "library", "memory", "pinned", "registered", "stream", "event", "graph",
 * "exec"; "": all together. */
long fake_cuda_live(const char* kind);
/* Bytes of device memory taken, now and at most since the last reset. */
size_t fake_cuda_used(int device);
size_t fake_cuda_peak(int device);
void fake_cuda_set_memory(int device, size_t total_bytes);
void fake_cuda_set_lazy(int lazy);
/* Name of the index-th kernel that ran since the last reset, replayed ones included; NULL past the last. */
const char* fake_cuda_launched(long index);
/* Calls `run(name, user)` whenever a kernel runs, which may read and write device memory as the host sees it (without bit 62) and
 * must not call the driver. NULL: kernels do nothing. */
void fake_cuda_on_launch(void (*run)(const char* kernel, void* user), void* user);
/* The first misuse since the last reset, "" if none: what, and in which call. */
const char* fake_cuda_misuse(void);

#ifdef __cplusplus
}
#endif
#endif

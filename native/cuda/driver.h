// SPDX-License-Identifier: Apache-2.0
// The NVIDIA driver, loaded at run time: the few functions we call, declared by hand so that host code builds without any
// CUDA header, and what the machine has.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#if defined(_WIN32)
#define HOTSET_CUDAAPI __stdcall
#else
#define HOTSET_CUDAAPI
#endif

namespace hotset::cuda {

using Result = int;  // CUresult
using Device = int;
using DevicePtr = std::uint64_t;
using Context = struct ContextTag*;
using Library = struct LibraryTag*;
using Kernel = struct KernelTag*;
using Function = struct FunctionTag*;
using Stream = struct StreamTag*;
using Event = struct EventTag*;
using Graph = struct GraphTag*;
using GraphExec = struct GraphExecTag*;

struct LaunchAttribute {  // CUlaunchAttribute: 4 bytes of kind, 4 of padding, 64 of value
  int id;
  int padding;
  alignas(8) unsigned char value[64];
};

struct LaunchConfig {  // CUlaunchConfig
  unsigned grid_x, grid_y, grid_z;
  unsigned block_x, block_y, block_z;
  unsigned shared_bytes;
  Stream stream;
  LaunchAttribute* attributes;
  unsigned n_attributes;
};

// X(member, exported name, CUDA version of the signature, parameters); tests/cuda/cuda_abi.cpp compares with cuda.h.
#define HOTSET_CUDA_FUNCTIONS(X)                                                                                        \
  X(init, "cuInit", 2000, (unsigned))                                                                                   \
  X(driver_get_version, "cuDriverGetVersion", 2020, (int*))                                                             \
  X(get_error_name, "cuGetErrorName", 6000, (Result, const char**))                                                     \
  X(get_error_string, "cuGetErrorString", 6000, (Result, const char**))                                                 \
  X(device_get_count, "cuDeviceGetCount", 2000, (int*))                                                                 \
  X(device_get, "cuDeviceGet", 2000, (Device*, int))                                                                    \
  X(device_get_name, "cuDeviceGetName", 2000, (char*, int, Device))                                                     \
  X(device_total_mem, "cuDeviceTotalMem", 3020, (std::size_t*, Device))                                                 \
  X(device_get_attribute, "cuDeviceGetAttribute", 2000, (int*, int, Device))                                            \
  X(primary_ctx_retain, "cuDevicePrimaryCtxRetain", 7000, (Context*, Device))                                           \
  X(primary_ctx_release, "cuDevicePrimaryCtxRelease", 11000, (Device))                                                  \
  X(ctx_push, "cuCtxPushCurrent", 4000, (Context))                                                                      \
  X(ctx_pop, "cuCtxPopCurrent", 4000, (Context*))                                                                       \
  X(library_load_data, "cuLibraryLoadData", 12000, (Library*, const void*, int*, void**, unsigned, int*, void**, unsigned)) \
  X(library_get_kernel, "cuLibraryGetKernel", 12000, (Kernel*, Library, const char*))                                   \
  X(library_unload, "cuLibraryUnload", 12000, (Library))                                                                \
  X(kernel_get_function, "cuKernelGetFunction", 12000, (Function*, Kernel))                                             \
  X(func_set_attribute, "cuFuncSetAttribute", 9000, (Function, int, int))                                               \
  X(tensor_map_encode_tiled, "cuTensorMapEncodeTiled", 12000,                                                           \
    (void*, int, std::uint32_t, void*, const std::uint64_t*, const std::uint64_t*, const std::uint32_t*, const std::uint32_t*, int, int, \
     int, int))                                                                                                         \
  X(launch_kernel_ex, "cuLaunchKernelEx", 11060, (const LaunchConfig*, Function, void**, void**))                       \
  X(mem_get_info, "cuMemGetInfo", 3020, (std::size_t*, std::size_t*))                                                   \
  X(mem_alloc, "cuMemAlloc", 3020, (DevicePtr*, std::size_t))                                                           \
  X(mem_free, "cuMemFree", 3020, (DevicePtr))                                                                           \
  X(mem_host_alloc, "cuMemHostAlloc", 2020, (void**, std::size_t, unsigned))                                            \
  X(mem_free_host, "cuMemFreeHost", 2000, (void*))                                                                      \
  X(mem_host_register, "cuMemHostRegister", 6050, (void*, std::size_t, unsigned))                                       \
  X(mem_host_unregister, "cuMemHostUnregister", 4000, (void*))                                                          \
  X(mem_host_get_device_pointer, "cuMemHostGetDevicePointer", 3020, (DevicePtr*, void*, unsigned))                      \
  X(pointer_get_attribute, "cuPointerGetAttribute", 4000, (void*, int, DevicePtr))                                      \
  X(memcpy_htod_async, "cuMemcpyHtoDAsync", 3020, (DevicePtr, const void*, std::size_t, Stream))                        \
  X(memcpy_dtoh_async, "cuMemcpyDtoHAsync", 3020, (void*, DevicePtr, std::size_t, Stream))                              \
  X(memcpy_dtod_async, "cuMemcpyDtoDAsync", 3020, (DevicePtr, DevicePtr, std::size_t, Stream))                          \
  X(memset_d8_async, "cuMemsetD8Async", 3020, (DevicePtr, unsigned char, std::size_t, Stream))                          \
  X(stream_create, "cuStreamCreate", 2000, (Stream*, unsigned))                                                         \
  X(stream_synchronize, "cuStreamSynchronize", 2000, (Stream))                                                          \
  X(stream_query, "cuStreamQuery", 2000, (Stream))                                                                      \
  X(stream_wait_event, "cuStreamWaitEvent", 3020, (Stream, Event, unsigned))                                            \
  X(stream_destroy, "cuStreamDestroy", 4000, (Stream))                                                                  \
  X(event_create, "cuEventCreate", 2000, (Event*, unsigned))                                                            \
  X(event_record, "cuEventRecord", 2000, (Event, Stream))                                                               \
  X(event_query, "cuEventQuery", 2000, (Event))                                                                         \
  X(event_synchronize, "cuEventSynchronize", 2000, (Event))                                                             \
  X(event_elapsed_time, "cuEventElapsedTime", 2000, (float*, Event, Event))                                             \
  X(event_destroy, "cuEventDestroy", 4000, (Event))                                                                     \
  X(stream_begin_capture, "cuStreamBeginCapture", 10010, (Stream, int))                                                 \
  X(stream_end_capture, "cuStreamEndCapture", 10000, (Stream, Graph*))                                                  \
  X(graph_instantiate, "cuGraphInstantiateWithFlags", 11040, (GraphExec*, Graph, unsigned long long))                   \
  X(graph_launch, "cuGraphLaunch", 10000, (GraphExec, Stream))                                                          \
  X(graph_exec_destroy, "cuGraphExecDestroy", 10000, (GraphExec))                                                       \
  X(graph_destroy, "cuGraphDestroy", 10000, (Graph))

enum class DriverState {
  kReady,
  kNoDriver,  // no library to load
  kNoDevice,  // a driver and no GPU
  kUnusable,  // too old, damaged, or not matching the kernel module
};

struct Driver {
#define X(member, symbol, version, parameters) Result(HOTSET_CUDAAPI* member) parameters = nullptr;
  HOTSET_CUDA_FUNCTIONS(X)
#undef X
  DriverState state = DriverState::kNoDriver;
  int version = 0;   // as cuDriverGetVersion: 13000 is CUDA 13.0; 0 unknown
  std::string why;   // one sentence when state is not kReady

  // "CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected" for a result of this driver.
  std::string describe(Result result) const;
};

// Loads `path`, or with nullptr the system's driver from its usual places. Functions are valid only in state kReady.
// The library is never unloaded: the driver does not survive that.
Driver load_driver(const char* path);

// The driver of this process: loaded on first use from $HOTSET_LIBCUDA or the usual places, then kept.
const Driver& driver();

// Whether the driver can still be called: false in a child made by fork() after its first use, and once the process has begun to
// end and the driver may have gone. What is given back asks this first and is silent then: the system takes everything.
bool driver_lives();

struct DeviceInfo {
  std::string name;
  int compute_major = 0;
  int compute_minor = 0;
  int driver_version = 0;
  std::uint64_t memory_bytes = 0;
};

// Number of GPUs in *n (0 without a usable driver). *note says in one sentence which driver there is or why no GPU is usable.
// Returns *n > 0.
bool device_count(int* n, std::string* note);

// False with *why set (may be nullptr) when there is no such device or the driver fails.
bool device_info(int index, DeviceInfo* out, std::string* why = nullptr);

}  // namespace hotset::cuda

// SPDX-License-Identifier: Apache-2.0
// Compile-only: our declarations of the driver against NVIDIA's cuda.h and cudaTypedefs.h, where those are installed.
#include <cuda.h>
#include <cudaTypedefs.h>

#include <cstddef>
#include <type_traits>

#include "cuda/driver.h"

namespace {

// Same shape: as many parameters, each as large, pointers where pointers are.
template <class A, class B>
struct Same;
template <class R, class... A, class S, class... B>
struct Same<R (*)(A...), S (*)(B...)> {
  static constexpr bool value = [] {
    if constexpr (sizeof...(A) != sizeof...(B)) {
      return false;
    } else {
      return ((sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B>) && ...) && sizeof(R) == sizeof(S);
    }
  }();
};

using D = hotset::cuda::Driver;
using L = hotset::cuda::LaunchConfig;

#define CHECK(member, theirs) static_assert(Same<decltype(D::member), theirs>::value, #member)
CHECK(init, PFN_cuInit_v2000);
CHECK(driver_get_version, PFN_cuDriverGetVersion_v2020);
CHECK(get_error_name, PFN_cuGetErrorName_v6000);
CHECK(get_error_string, PFN_cuGetErrorString_v6000);
CHECK(device_get_count, PFN_cuDeviceGetCount_v2000);
CHECK(device_get, PFN_cuDeviceGet_v2000);
CHECK(device_get_name, PFN_cuDeviceGetName_v2000);
CHECK(device_total_mem, PFN_cuDeviceTotalMem_v3020);
CHECK(device_get_attribute, PFN_cuDeviceGetAttribute_v2000);
CHECK(primary_ctx_retain, PFN_cuDevicePrimaryCtxRetain_v7000);
CHECK(primary_ctx_release, PFN_cuDevicePrimaryCtxRelease_v11000);
CHECK(ctx_push, PFN_cuCtxPushCurrent_v4000);
CHECK(ctx_pop, PFN_cuCtxPopCurrent_v4000);
CHECK(library_load_data, PFN_cuLibraryLoadData_v12000);
CHECK(library_get_kernel, PFN_cuLibraryGetKernel_v12000);
CHECK(library_unload, PFN_cuLibraryUnload_v12000);
CHECK(kernel_get_function, PFN_cuKernelGetFunction_v12000);
CHECK(func_set_attribute, PFN_cuFuncSetAttribute_v9000);
CHECK(tensor_map_encode_tiled, PFN_cuTensorMapEncodeTiled_v12000);
CHECK(launch_kernel_ex, PFN_cuLaunchKernelEx_v11060);
CHECK(mem_get_info, PFN_cuMemGetInfo_v3020);
CHECK(mem_alloc, PFN_cuMemAlloc_v3020);
CHECK(mem_free, PFN_cuMemFree_v3020);
CHECK(mem_host_alloc, PFN_cuMemHostAlloc_v2020);
CHECK(mem_free_host, PFN_cuMemFreeHost_v2000);
CHECK(mem_host_register, PFN_cuMemHostRegister_v6050);
CHECK(mem_host_unregister, PFN_cuMemHostUnregister_v4000);
CHECK(mem_host_get_device_pointer, PFN_cuMemHostGetDevicePointer_v3020);
CHECK(pointer_get_attribute, PFN_cuPointerGetAttribute_v4000);
CHECK(memcpy_htod_async, PFN_cuMemcpyHtoDAsync_v3020);
CHECK(memcpy_dtoh_async, PFN_cuMemcpyDtoHAsync_v3020);
CHECK(memcpy_dtod_async, PFN_cuMemcpyDtoDAsync_v3020);
CHECK(memset_d8_async, PFN_cuMemsetD8Async_v3020);
CHECK(stream_create, PFN_cuStreamCreate_v2000);
CHECK(stream_synchronize, PFN_cuStreamSynchronize_v2000);
CHECK(stream_query, PFN_cuStreamQuery_v2000);
CHECK(stream_wait_event, PFN_cuStreamWaitEvent_v3020);
CHECK(stream_destroy, PFN_cuStreamDestroy_v4000);
CHECK(event_create, PFN_cuEventCreate_v2000);
CHECK(event_record, PFN_cuEventRecord_v2000);
CHECK(event_query, PFN_cuEventQuery_v2000);
CHECK(event_synchronize, PFN_cuEventSynchronize_v2000);
CHECK(event_elapsed_time, PFN_cuEventElapsedTime_v2000);
CHECK(event_destroy, PFN_cuEventDestroy_v4000);
CHECK(stream_begin_capture, PFN_cuStreamBeginCapture_v10010);
CHECK(stream_end_capture, PFN_cuStreamEndCapture_v10000);
CHECK(graph_instantiate, PFN_cuGraphInstantiateWithFlags_v11040);
CHECK(graph_launch, PFN_cuGraphLaunch_v10000);
CHECK(graph_exec_destroy, PFN_cuGraphExecDestroy_v10000);
CHECK(graph_destroy, PFN_cuGraphDestroy_v10000);

static_assert(sizeof(L) == sizeof(CUlaunchConfig));
static_assert(offsetof(L, shared_bytes) == offsetof(CUlaunchConfig, sharedMemBytes));
static_assert(sizeof(hotset::cuda::LaunchAttribute) == sizeof(CUlaunchAttribute) &&
              offsetof(hotset::cuda::LaunchAttribute, value) == offsetof(CUlaunchAttribute, value));
static_assert(offsetof(L, stream) == offsetof(CUlaunchConfig, hStream));
static_assert(offsetof(L, n_attributes) == offsetof(CUlaunchConfig, numAttrs));
static_assert(sizeof(CUdeviceptr) == sizeof(hotset::cuda::DevicePtr) && sizeof(CUdevice) == sizeof(hotset::cuda::Device));
static_assert(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR == 75 && CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR == 76);
static_assert(CU_TENSOR_MAP_DATA_TYPE_UINT16 == 1 && CU_TENSOR_MAP_SWIZZLE_128B == 3 && CU_TENSOR_MAP_L2_PROMOTION_L2_256B == 3);
static_assert(CU_STREAM_NON_BLOCKING == 1 && CUDA_ERROR_NO_DEVICE == 100);

}  // namespace

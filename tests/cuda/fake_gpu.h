// SPDX-License-Identifier: Apache-2.0
// For C++ tests: makes the stand-in driver (fake_cuda.h) this process's driver, and its controls callable.
#pragma once
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "cuda/fake_cuda.h"

namespace fake {

inline void* library() {
  static void* const loaded = [] {
    const char* path = FAKE_CUDA_FOLDER "/libfake_cuda.so";
    setenv("HOTSET_LIBCUDA", path, 1);
    void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
      std::printf("%s\n", dlerror());
      std::exit(1);
    }
    return handle;
  }();
  return loaded;
}

#define HOTSET_FAKE(name) reinterpret_cast<decltype(&fake_cuda_##name)>(dlsym(library(), "fake_cuda_" #name))
inline void reset() { HOTSET_FAKE(reset)(); }
inline void fail(const char* function, int nth, int code) { HOTSET_FAKE(fail)(function, nth, code); }
inline long calls(const char* function) { return HOTSET_FAKE(calls)(function); }
inline long live(const char* kind = "") { return HOTSET_FAKE(live)(kind); }
inline size_t used(int device) { return HOTSET_FAKE(used)(device); }
inline size_t peak(int device) { return HOTSET_FAKE(peak)(device); }
inline void set_memory(int device, size_t bytes) { HOTSET_FAKE(set_memory)(device, bytes); }
inline void set_lazy(bool lazy) { HOTSET_FAKE(set_lazy)(lazy); }
inline const char* launched(long index) { return HOTSET_FAKE(launched)(index); }
inline void on_launch(void (*run)(const char*, void*), void* user) { HOTSET_FAKE(on_launch)(run, user); }
inline std::string misuse() { return HOTSET_FAKE(misuse)(); }
#undef HOTSET_FAKE

}  // namespace fake

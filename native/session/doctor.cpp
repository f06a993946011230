// SPDX-License-Identifier: Apache-2.0
// What `hotset doctor` says about the machine. Keys are part of the interface: they only grow.
#include "cpu_avx/cpu_features.h"
#include "cpu_avx/kernel_choices.h"
#include "cuda/code_choice.h"
#include "cuda/device.h"
#include "cuda/fatbins.h"
#include "cuda/self_test.h"
#include "session/json_text.h"
#include "session/report.h"

namespace hotset {
namespace {

void write_memory(JsonText& j, int index) {
  auto gpu = cuda::Gpu::open(index);
  size_t free = 0, total = 0;
  const Status status = gpu.ok() ? gpu.value()->free_memory(&free, &total) : gpu.take_status();
  if (!status.ok()) {
    j.field("error", status.text());
    return;
  }
  j.field("free_bytes", free).field("total_bytes", total);
  const cuda::Limits& limits = gpu.value()->limits();
  j.field("multiprocessors", limits.multiprocessors).field("l2_bytes", limits.l2_bytes);
  j.field("pins_files_in_place", limits.registers_read_only_host_memory);
}

// The target that serves, for each family of kernels, or why none does.
void write_device_code(JsonText& j, int index, const cuda::DeviceInfo& info) {
  const std::string chosen = cuda::choose_code(cuda::kFatbinArchs, info.compute_major, info.compute_minor);
  auto loaded = cuda::load_all_code(index);
  j.key("device_code").object();
  if (loaded.ok()) {
    for (const cuda::CodeChoice& choice : loaded.value())
      j.field(choice.family, !choice.status.ok() ? choice.status.text() : chosen.empty() ? "loads" : chosen);
  }
  j.end();
}

void write_gpu(JsonText& j, int index) {
  cuda::DeviceInfo info;
  std::string why;
  j.object().field("index", index);
  if (cuda::device_info(index, &info, &why)) {
    j.field("name", info.name).field("compute_capability", std::to_string(info.compute_major) + "." + std::to_string(info.compute_minor));
    j.field("memory_bytes", info.memory_bytes);
    write_memory(j, index);
    write_device_code(j, index, info);
    j.field("self_test", cuda::self_test(index, &why) ? "runs" : why);
  } else {
    j.field("error", why);
  }
  j.end();
}

}  // namespace

std::string doctor_json() {
  const cpu::CpuFeatures& f = cpu::cpu_features();
  JsonText j;
  j.object().field("version", HOTSET_BUILD_VERSION).key("cpu").object();
  j.field("level", cpu::cpu_level_name(f.level)).field("threads", available_threads()).field("avx2", f.avx2).field("avx512", f.avx512);
  j.field("avx2vnni", f.avx2vnni)
      .field("avx512vnni", f.avx512vnni)
      .field("avx512bf16", f.avx512bf16)
      .field("amx_int8", f.amx_int8)
      .field("amx_bf16", f.amx_bf16);
  j.field("neon", f.neon).field("neon_dotprod", f.neon_dotprod).field("neon_i8mm", f.neon_i8mm);
  j.key("tiers").array();
  for (int i = 0; i < cpu::kCpuLevels; ++i)
    if (cpu::cpu_machine_features().has(static_cast<cpu::CpuLevel>(i))) j.value(cpu::cpu_level_name(static_cast<cpu::CpuLevel>(i)));
  j.end();
  if (const char* problem = cpu::cpu_override_problem()) j.field("error", problem);
  j.end().key("kernels").object();
  for (const cpu::KernelChoice& choice : cpu::kernel_choices()) j.field(choice.family, choice.isa);
  j.end();
  int n = 0;
  std::string note;
  cuda::device_count(&n, &note);
  j.key("cuda").object().field("note", note).field("device_code_targets", cuda::kFatbinArchs).key("devices").array();
  for (int i = 0; i < n; ++i) write_gpu(j, i);
  j.end().end().end();
  return j.take();
}

}  // namespace hotset

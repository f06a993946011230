// SPDX-License-Identifier: Apache-2.0
// Processor time that Linux control groups leave to this process.
#pragma once
#include <string>

namespace hotset {

// Processors' worth of time that the tightest CPU quota of this process's control group and those above it allows, rounded up
// and at least 1; 0 where no quota holds or none can be read. Version 2: cpu.max; version 1: cpu.cfs_quota_us over
// cpu.cfs_period_us. `root` stands before every absolute path that is read (tests: a folder with files of their own).
//
// Rounded up, since half a processor is worth having: two threads with a quota of 1.5 pause for a quarter of each period, and
// are done before one thread would be.
int cpu_quota_threads(const std::string& root = "");

}  // namespace hotset

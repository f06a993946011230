// SPDX-License-Identifier: Apache-2.0
// What the opaque handles of the C interface hold.
#pragma once
#include <atomic>

#include "api/guard.h"
#include "session/device_sampler.h"
#include "session/sampler.h"
#include "session/session.h"

struct hotset_options {
  hotset::Options options;
  hotset::Callbacks callbacks;
};

struct hotset_session {
  std::unique_ptr<hotset::Session> session;
};

struct hotset_run_options {
  hotset::RunControl control;
};

struct hotset_binding {
  hotset::Session* session = nullptr;
  std::unique_ptr<hotset::RunState> state;
  std::atomic<bool> busy{false};  // one thread at a time: a second one gets an error instead of torn state
};

struct hotset_sampler {
  hotset::Sampler sampler;
  hotset::DeviceSampler on_gpu;
};

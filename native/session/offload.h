// SPDX-License-Identifier: Apache-2.0
// What the keys session.moe.offload.* of a session say together: environment fallbacks and keys that exclude each other.
#pragma once
#include "base/status.h"
#include "experts/expert_store.h"
#include "session/options.h"

namespace hotset {

// Fills keys that are not set from their ORT_QMOE_* variables and compares the two names of the GPU budget. Every key is
// checked in every mode. *unused: keys that were set and have no effect without a GPU.
Status settle_offload_keys(Options* options, std::vector<std::string>* unused);

// Budgets of the expert store. With `planning` what this machine has free does not matter.
experts::ExpertStore::Settings store_settings(const Options& options, bool planning);

}  // namespace hotset

// SPDX-License-Identifier: Apache-2.0
// What a session holds and decided, as JSON text.
#pragma once
#include <string>

#include "session/session.h"

namespace hotset {

std::string plan_json(const Session& session);
std::string stats_json(const Session& session);
std::string metadata_json(const Session& session);
std::string trace_json(const Session& session);
// Instruction sets, kernel choices and devices of this process.
std::string doctor_json();

}  // namespace hotset

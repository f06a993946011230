// SPDX-License-Identifier: Apache-2.0
// C entries of sessions: creation, description and reports.
#include "api/handles.h"
#include "session/report.h"

using namespace hotset;
using namespace hotset::api;

namespace {

Status describe(const hotset_session* session, bool is_input, size_t index, hotset_value_info* out) {
  HOTSET_FAIL_IF(!session, invalid_argument, "session is NULL");
  const model::Graph& graph = session->session->graph();
  const auto& ids = is_input ? graph.inputs : graph.outputs;
  HOTSET_FAIL_IF(index >= ids.size(), invalid_argument, "%s %zu of %zu", is_input ? "input" : "output", index, ids.size());
  const model::Value& v = graph.values[ids[index]];
  HOTSET_FAIL_IF(v.shape.size() > HOTSET_MAX_RANK, unsupported, "'%s' has rank %zu, allowed 0..%d", v.name.c_str(), v.shape.size(),
                 HOTSET_MAX_RANK);
  hotset_value_info info = {};
  info.dtype = static_cast<int32_t>(v.dtype);
  info.name = v.name.c_str();
  info.rank = v.has_shape ? static_cast<int64_t>(v.shape.size()) : -1;
  for (size_t d = 0; d < v.shape.size(); ++d) {
    info.shape[d] = v.shape[d].value;
    info.dim_names[d] = v.shape[d].value < 0 && !v.shape[d].name.empty() ? v.shape[d].name.c_str() : nullptr;
  }
  return copy_out(out, info);
}

template <class F>
hotset_status report(const hotset_session* session, char** out, F&& f) {
  return guard([&]() -> Status {
    HOTSET_FAIL_IF(!session, invalid_argument, "session is NULL");
    return give_text(f(*session->session), out);
  });
}

}  // namespace

extern "C" {

hotset_status hotset_session_create(hotset_session** out, const char* path, const hotset_options* options) {
  return guard([&]() -> Status {
    HOTSET_FAIL_IF(!out || !path, invalid_argument, "out or path is NULL");
    *out = nullptr;
    HOTSET_ASSIGN(auto session, Session::create(path, options ? options->options : Options(), options ? options->callbacks : Callbacks()));
    *out = new hotset_session{std::move(session)};
    return {};
  });
}

hotset_status hotset_session_create_from_memory(hotset_session** out, const void* model, size_t model_bytes,
                                                const hotset_options* options) {
  return guard([&]() -> Status {
    HOTSET_FAIL_IF(!out || !model, invalid_argument, "out or model is NULL");
    *out = nullptr;
    HOTSET_ASSIGN(auto session, Session::create_from_memory(model, model_bytes, options ? options->options : Options(),
                                                            options ? options->callbacks : Callbacks()));
    *out = new hotset_session{std::move(session)};
    return {};
  });
}

void hotset_session_free(hotset_session* session) { delete session; }

size_t hotset_session_input_count(const hotset_session* session) { return session ? session->session->graph().inputs.size() : 0; }

size_t hotset_session_output_count(const hotset_session* session) { return session ? session->session->graph().outputs.size() : 0; }

hotset_status hotset_session_input(const hotset_session* session, size_t index, hotset_value_info* out) {
  return guard([&] { return describe(session, true, index, out); });
}

hotset_status hotset_session_output(const hotset_session* session, size_t index, hotset_value_info* out) {
  return guard([&] { return describe(session, false, index, out); });
}

hotset_status hotset_session_metadata(const hotset_session* session, char** out) { return report(session, out, metadata_json); }

hotset_status hotset_session_plan(const hotset_session* session, char** out) { return report(session, out, plan_json); }

hotset_status hotset_session_stats(const hotset_session* session, char** out) { return report(session, out, stats_json); }

hotset_status hotset_session_save_profile(const hotset_session* session, const char* path) {
  return guard([&]() -> Status {
    HOTSET_FAIL_IF(!session || !path, invalid_argument, "session or path is NULL");
    HOTSET_FAIL_IF(!*path || !model::valid_text(path), invalid_argument, "the path %s is empty or not UTF-8", model::quote(path).c_str());
    return session->session->save_profile(path);
  });
}

hotset_status hotset_session_trace(const hotset_session* session, char** out) { return report(session, out, trace_json); }

hotset_status hotset_plan_file(const char* path, const hotset_options* options, char** out) {
  return guard([&]() -> Status {
    HOTSET_FAIL_IF(!path, invalid_argument, "path is NULL");
    HOTSET_ASSIGN(auto session, Session::create_for_planning(path, options ? options->options : Options()));
    return give_text(plan_json(*session), out);
  });
}

}  // extern "C"

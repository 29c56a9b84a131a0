// Reports of a process about its own state: the status, and the flight recorders in torch's form.
#include "backend/base/log.h"
#include "backend/c10d/throw_status.h"
#include "backend/sight/status_json.h"
#include "backend/sight/status_server.h"
#include "backend/sight/trace.h"
#include "python/csrc/bindings.h"

namespace shardwire::python {

void bindSight(py::module_& module) {
  const py::call_guard<GilRelease> released;
  module.def(
      "status_json", [] { return internal::statusAsJson(); }, released,
      "The state of this process in all its groups, as JSON.");
  module.def(
      "serve_status", [] { return internal::valueOrThrow(internal::serveStatus()); }, released,
      "The path of the status socket.");
  module.def(
      "stop_serving_status", [] { internal::stopServingStatus(); }, released);
  module.def(
      "trace_json", [](bool onlyActive) { return internal::traceAsJson(onlyActive); }, py::arg("only_active") = false,
      released, "The flight recorders of all groups of this process, in torch's form.");
  module.def(
      "send_log_to",
      [](int socket, const std::string& level) {
        internal::sendLogTo(socket, internal::parseLogLevel(level).value_or(internal::LogLevel::kWarn));
      },
      py::arg("socket"), py::arg("level"),
      "Lines up to the level go to the socket, as messages \"LEVEL PID TEXT\"; -1: to stderr.");
}

}  // namespace shardwire::python

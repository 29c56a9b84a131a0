#include "tests/simulate/join_store.h"

#include <fmt/format.h>

#include <algorithm>

namespace shardwire::simulate {

void SimulatedStore::delay() {
  process_.computeFor(process_.world().random().between(10 * kMicrosecond, server_.longestDelay / 2));
}

Status SimulatedStore::reach(const std::string& what) {
  if (process_.isDead()) {
    return {StatusCode::kSystem, "the simulated process died"};
  }
  const auto answered = server_.numAnswered.find(process_.rank());
  if (!isSilent_ && answered != server_.numAnswered.end() && answered->second-- <= 0) {
    process_.world().note(process_.time(), process_.rank(), "gets no answer of the store about {}", what);
    process_.computeFor(std::max<Time>(deadline_ - process_.time(), 0));
    isSilent_ = true;
  }
  if (isSilent_) {
    return {StatusCode::kSystem, fmt::format("the simulated store did not answer the request to {}", what)};
  }
  delay();
  if (server_.hasEnded || process_.isDead()) {
    return {StatusCode::kSystem, fmt::format("the connection to the simulated store broke at the request to {}", what)};
  }
  return Status::ok();
}

Status SimulatedStore::set(const std::string& key, std::string_view value) {
  SW_RETURN_IF_ERROR(reach("set " + key));
  process_.world().note(process_.time(), process_.rank(), "sets {}", key);
  server_.entries[prefix_ + key] = std::string(value);
  delay();
  return Status::ok();
}

Result<std::string> SimulatedStore::get(const std::string& key, Deadline deadline) {
  for (Time pause = kMillisecond; true; pause = std::min(2 * pause, 20 * kMillisecond)) {
    SW_RETURN_IF_ERROR(reach("get " + key));
    if (const auto found = server_.entries.find(prefix_ + key); found != server_.entries.end()) {
      std::string value = found->second;
      delay();
      process_.world().note(process_.time(), process_.rank(), "gets {}", key);
      return value;
    }
    delay();
    if (process_.time() >= timeOf(deadline)) {
      return Status{StatusCode::kTimeout, fmt::format("key '{}' did not appear in the simulated store in time", key)};
    }
    process_.computeFor(pause);
  }
}

}  // namespace shardwire::simulate

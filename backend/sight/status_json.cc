#include "backend/sight/status_json.h"

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "backend/base/host_name.h"
#include "backend/exec/engine.h"
#include "backend/exec/process_engines.h"

namespace shardwire::internal {

namespace {

using Json = nlohmann::json;
constexpr int kStatusVersion = 1;

double seconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

Json peerJson(const PeerSight& peer) {
  return {{"rank", peer.rank},
          {"host", peer.host},
          {"pid", peer.pid},
          {"gone", peer.gone},
          {"transport", peer.transport},
          {"sent_bytes", peer.sentBytes},
          {"received_bytes", peer.receivedBytes}};
}

Json operationJson(const OperationSight& operation) {
  return {{"seq", operation.seq},
          {"operation", operation.what},
          {"seconds", seconds(operation.since)},
          {"timeout_s", seconds(operation.timeout)},
          {"waits_for", operation.waitsFor},
          {"why", operation.why}};
}

Json recordedJson(const RecordedOp& op) {
  const auto now = Clock::now();
  return {{"seq", op.seq},
          {"operation", op.description.isEmpty() ? std::string(op.name) : op.description.text()},
          {"called_s_ago", seconds(now - op.called)},
          {"ended_s_ago", op.isOver() ? Json(seconds(now - op.ended)) : Json()},
          {"seconds", op.isOver() ? Json(seconds(op.ended - op.called)) : Json()},
          {"result", op.isOver() ? Json(statusCodeName(op.code)) : Json()}};
}

template <typename T, typename Write>
Json listOf(const std::vector<T>& values, Write&& write) {
  Json list = Json::array();
  for (const T& value : values) {
    list.push_back(write(value));
  }
  return list;
}

Json groupJson(const GroupSight& group) {
  return {{"id", group.id},
          {"name", group.name},
          {"rank", group.rank},
          {"world_size", group.worldSize},
          {"global_ranks", group.globalRanks},
          {"busy", group.isBusy},
          {"failure", group.failure},
          {"sequence", group.sequence},
          {"timeout_s", seconds(group.timeout)},
          {"age_s", seconds(group.age)},
          {"recorded", group.isRecorded},
          {"peers", listOf(group.peers, peerJson)},
          {"in_flight", listOf(group.inFlight, operationJson)},
          {"last_call", group.lastCall},
          {"latest", listOf(group.latest, recordedJson)}};
}

}  // namespace

std::string statusAsJson(Duration patience) {
  Json groups = Json::array();
  for (const auto& engine : processEngines()) {
    groups.push_back(groupJson(engine->reports().sight(patience)));
  }
  const Json status{
      {"version", kStatusVersion}, {"pid", ::getpid()}, {"host", hostName()}, {"groups", std::move(groups)}};
  return status.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace shardwire::internal

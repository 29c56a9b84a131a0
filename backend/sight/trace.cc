// Torch's own recorder cannot be written to: FlightRecorder<c10::Event> is a template whose one instance is hidden in
// libtorch_cpu. So shardwire keeps its own records and writes them in torch's form, for every torch version. The
// requirements of torch's tool shape the form:
//   - The tool accepts the names of some backends only, before torch 2.13 nccl and xccl. So entries say
//     "nccl:all_reduce"; "backend" and "operation" have the real names.
//   - The tool accepts c10d's collectives only. Operations that only shardwire has (compile_op and runs of compiled
//     ops) are written as "coalesced", whose sizes the tool does not compare.
//   - The tool matches entries of a group by their sequence numbers. Messages have none, so each pair of ranks that
//     exchanges messages is written as a group of two, with numbers that count messages by direction and tag.
#include "backend/sight/trace.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "backend/base/log.h"
#include "backend/base/mutex.h"
#include "backend/base/per_process.h"
#include "backend/base/whole_file.h"
#include "backend/exec/engine.h"
#include "backend/exec/process_engines.h"
#include "backend/sight/pickle.h"

namespace shardwire::internal {

namespace {

using Json = nlohmann::json;
constexpr const char* kTraceVersion = "2.10";

// c10's dtype names, as written by torch's recorder.
std::string_view torchName(DType dtype) {
  constexpr std::array<std::string_view, 16> kNames = {
      "Bool",     "Byte",  "Char",   "Short",       "Int",          "Long",         "", "", "", "Half",
      "BFloat16", "Float", "Double", "ComplexHalf", "ComplexFloat", "ComplexDouble"};
  const auto index = static_cast<std::size_t>(dtype);
  return index < kNames.size() && !kNames[index].empty() ? kNames[index] : dtypeName(dtype);
}

// Converts times of our clock to times since 1970. One conversion for a whole trace, so that differences are kept.
class UnixTime {
 public:
  std::int64_t nanoseconds(Clock::time_point time) const {
    return std::chrono::nanoseconds(offset_ + time.time_since_epoch()).count();
  }

 private:
  const std::chrono::nanoseconds offset_ =
      std::chrono::system_clock::now().time_since_epoch() - Clock::now().time_since_epoch();
};

// A group in the trace, and this rank in the group.
struct TracedGroup {
  std::string name;
  std::size_t number = 0;
  Rank rank = 0;
  std::vector<std::int64_t> globalRanks;
};

Json configOf(const std::string& name, const std::vector<std::int64_t>& ranks) {
  return {{"name", name}, {"desc", "undefined"}, {"ranks", fmt::format("[{}]", fmt::join(ranks, ", "))}};
}

void writeTensors(const std::vector<RecordedTensor>& tensors, const char* sizes, const char* dtypes, Json& entry) {
  entry[sizes] = Json::array();
  entry[dtypes] = Json::array();
  for (const RecordedTensor& tensor : tensors) {
    entry[sizes].push_back(tensor.shape);
    entry[dtypes].push_back(torchName(tensor.dtype));
  }
}

// Names the entry and puts the entry into a group: the operation's own group, or the group of the two ranks that
// exchange a message.
void placeMessage(const RecordedOp& op, const TracedGroup& group, Json& entry, Json& config) {
  const bool isMatched = op.source >= 0;
  const Rank source = isMatched ? op.source : op.destination;  // from any rank: unknown until the message comes
  const Rank low = std::min(source, op.destination);
  const Rank high = std::max(source, op.destination);
  const auto globalOf = [&](Rank rank) { return group.globalRanks[static_cast<std::size_t>(rank)]; };
  std::vector<std::int64_t> pair{globalOf(low)};
  if (high != low) {
    pair.push_back(globalOf(high));
  }
  const std::string name = isMatched ? fmt::format("{}:{}-{}", group.name, low, high) : group.name + ":any";
  const bool goesUp =
      globalOf(source) < globalOf(op.destination);  // torch's tool counts in the order of the job's ranks
  const int from = isMatched && !goesUp ? 1 : 0;
  const int to = isMatched && goesUp ? 1 : 0;
  const bool isSend = std::string_view(op.name) == "send";
  entry["profiling_name"] =
      isSend ? fmt::format("nccl:send {}->{}", from, to) : fmt::format("nccl:recv {}<-{}", to, from);
  const auto number = static_cast<std::int64_t>((static_cast<std::uint64_t>(op.tag & 0xffff) << 40) |
                                                op.messageNumber << 1 | (goesUp ? 1 : 0));
  entry["p2p_seq_id"] = number;
  entry["collective_seq_id"] = number;
  entry["process_group"] = {name, "undefined"};
  std::sort(pair.begin(), pair.end());
  config[name] = configOf(name, pair);
}

Json entryOf(const RecordedOp& op, const TracedGroup& group, const UnixTime& unixTime, Json& config) {
  Json entry{{"record_id", op.recordId},
             {"pg_id", group.number},
             {"op_id", op.number},
             {"is_p2p", op.isMessage},
             {"retired", op.isOver()},
             {"backend", "shardwire"},
             {"operation", op.description.isEmpty() ? std::string(op.name) : op.description.text()},
             {"timeout_ms", std::chrono::duration_cast<std::chrono::milliseconds>(op.timeout).count()},
             {"time_created_ns", unixTime.nanoseconds(op.called)}};
  if (op.isMessage) {
    placeMessage(op, group, entry, config);
  } else {
    const std::string_view name = op.name;
    const bool isOurs = name == "compile_op" || name == "compiled_op" || name == "agree";
    entry["profiling_name"] = fmt::format("nccl:{}", isOurs ? "coalesced" : name);
    entry["collective_seq_id"] = op.seq;
    entry["p2p_seq_id"] = 0;
    entry["process_group"] = {group.name, "undefined"};
  }
  writeTensors(op.inputs, "input_sizes", "input_dtypes", entry);
  writeTensors(op.outputs, "output_sizes", "output_dtypes", entry);
  const bool isStarted = op.started != Clock::time_point{};
  const bool isCompleted = op.isOver() && op.code == StatusCode::kOk;
  entry["state"] = isCompleted ? "completed" : isStarted ? "started" : "scheduled";
  entry["time_discovered_started_ns"] = isStarted ? Json(unixTime.nanoseconds(op.started)) : Json();
  entry["time_discovered_completed_ns"] = isCompleted ? Json(unixTime.nanoseconds(op.ended)) : Json();
  if (isCompleted) {
    entry["duration_ms"] = std::chrono::duration<double, std::milli>(op.ended - op.started).count();
  }
  if (op.isOver() && !isCompleted) {
    entry["failure"] = statusCodeName(op.code);
  }
  return entry;
}

// A C++ group, or a group outside of torch's tables, may have no name, or the name of another group.
std::string uniqueName(const std::string& name, const Json& config) {
  const std::string base = name.empty() ? "group" : name;
  std::string unique = base;
  for (int i = 2; config.contains(unique); ++i) {
    unique = fmt::format("{}#{}", base, i);
  }
  return unique;
}

// `ofRank`: for the file of this rank of the job, only the groups in which this process has this rank. A group without
// a file of its own, such as a group of two jobs, has no ranks of the job. Negative: all groups.
Json trace(bool onlyActive, std::int64_t ofRank) {
  Json config = Json::object();
  Json status = Json::object();
  std::vector<Json> entries;
  std::size_t groupNumber = 0;
  const UnixTime unixTime;
  for (const auto& engine : processEngines()) {
    const TracedGroup group{uniqueName(engine->facts().name, config), groupNumber, engine->facts().rank,
                            engine->reports().globalRanks()};
    if (ofRank >= 0 && (engine->facts().options.recordFile.empty() ||
                        group.globalRanks[static_cast<std::size_t>(group.rank)] != ofRank)) {
      continue;
    }
    config[group.name] = configOf(group.name, group.globalRanks);
    std::uint64_t called = 0;
    std::uint64_t completed = 0;
    for (const RecordedOp& op : engine->reports().recorder().latest()) {
      called = std::max(called, op.seq);
      completed = std::max(completed, op.isOver() && op.code == StatusCode::kOk ? op.seq : 0);
      if (!onlyActive || !op.isOver()) {
        entries.push_back(entryOf(op, group, unixTime, config));
      }
    }
    status[std::to_string(groupNumber++)] = {{"last_enqueued_collective", called},
                                             {"last_started_collective", called},
                                             {"last_completed_collective", completed}};
  }
  std::sort(entries.begin(), entries.end(), [](const Json& a, const Json& b) {
    return a["record_id"].get<std::uint64_t>() < b["record_id"].get<std::uint64_t>();
  });
  return {{"version", kTraceVersion},
          {"pg_config", config},
          {"pg_status", status},
          {"comm_lib_version", "shardwire"},
          {"entries", entries}};
}

void writeTrace(const std::string& prefix, std::int64_t globalRank) {
  struct Writing {
    Mutex mutex;  // groups fail together, and the file of the last must include all
  };
  const MutexLock lock(PerProcess<Writing>::get().mutex);
  const std::string path = fmt::format("{}{}", prefix, globalRank);
  if (const Status written = writeWhole(path, pickled(trace(false, globalRank)), Lasting::kWhileTheSystemRuns);
      !written.isOk()) {
    logError("the flight recorder could not be written to {} (SHARDWIRE_RECORD_FILE or TORCH_FR_DUMP_TEMP_FILE): {}",
             path, written.message());
  } else {
    logInfo("the flight recorder was written to {}", path);
  }
}

}  // namespace

std::string traceAsJson(bool onlyActive) {
  return trace(onlyActive, -1).dump(-1, ' ', false, Json::error_handler_t::replace);
}

void watch(const std::shared_ptr<Engine>& engine) {
  if (engine->facts().options.recordFile.empty()) {
    return;
  }
  engine->onFailure([self = engine.get(), prefix = engine->facts().options.recordFile] {
    writeTrace(prefix, self->reports().globalRanks()[static_cast<std::size_t>(self->facts().rank)]);
  });
}

}  // namespace shardwire::internal

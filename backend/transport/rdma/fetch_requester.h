// This rank's fetches from one peer: fetches under way, the registered memory that the fetches fill, and requests that
// wait to be sent. Owned by the connection. Threads: see Connection.
#pragma once

#include <deque>
#include <span>
#include <string>
#include <vector>

#include "backend/transport/rdma/fetch_wire.h"
#include "backend/transport/rdma/frame_lanes.h"
#include "backend/transport/rdma/rdma_fabric.h"
#include "backend/transport/transport.h"

namespace shardwire::internal {

class FetchRequester {
 public:
  // Receives on each payload queue pair. Each part of a request under way takes one receive.
  static constexpr std::uint32_t kMostParts = 240;

  // `devices`: of each payload queue pair, the index of the rail's device.
  FetchRequester(RdmaFabric& fabric, FrameLanes& lanes, std::vector<std::size_t> devices)
      : fabric_(fabric), lanes_(lanes), devices_(std::move(devices)) {}
  ~FetchRequester() { stop(); }
  FetchRequester(const FetchRequester&) = delete;
  FetchRequester& operator=(const FetchRequester&) = delete;

  // See Connection::fetch(). An error: memory could not be registered, and nothing was requested.
  Result<bool> fetch(std::uint32_t space, std::span<const MemoryRun> runs, FetchCount* count);
  // Sends waiting requests.
  void advance();
  bool hasWork() const { return !waiting_.empty(); }
  // One part of a request has arrived. False: there is no such request.
  bool onArrival(std::uint32_t id);
  // Unpins all memory; no fetch ends after this call. Precondition: the queue pairs are destroyed.
  void stop();

 private:
  struct Fetch {
    FetchCount* count = nullptr;  // null: the place is free
    std::uint32_t missing = 0;    // parts that have not arrived
    std::uint16_t generation = 0;
    std::vector<Registration*> pins;
  };

  Status pinRuns(std::span<const MemoryRun> runs, std::vector<std::pair<std::size_t, Registration*>>* groups);
  std::string encode(std::uint32_t id, std::uint32_t space, std::span<const MemoryRun> runs, const Registration& memory,
                     std::uint32_t* numParts);
  bool send(const std::string& request, std::uint32_t numParts);
  std::size_t takePlace();

  struct Waiting {
    std::string request;
    std::uint32_t numParts;
  };

  RdmaFabric& fabric_;
  FrameLanes& lanes_;
  const std::vector<std::size_t> devices_;
  std::vector<Fetch> fetches_;  // by the low half of the id
  std::vector<std::size_t> free_;
  std::deque<Waiting> waiting_;
  std::uint32_t partsUnderWay_ = 0;
  std::uint32_t nextQueue_ = 0;
};

}  // namespace shardwire::internal

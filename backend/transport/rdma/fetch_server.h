// The owner's side of fetches: memory that this rank exposes to one peer, and the peer's requests. Requests are served
// in order, by RDMA writes straight from the exposed memory into the peer's memory. Owned by the connection. Threads:
// see Connection.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "backend/transport/exposed_memory.h"
#include "backend/transport/rdma/fetch_wire.h"
#include "backend/transport/rdma/frame_lanes.h"
#include "backend/transport/rdma/queue_pair.h"
#include "backend/transport/rdma/rdma_fabric.h"

namespace shardwire::internal {

class FetchServer {
 public:
  // `queues`: the payload queue pairs; empty after fetches were stopped.
  FetchServer(RdmaFabric& fabric, FrameLanes& lanes, std::vector<std::unique_ptr<QueuePair>>& queues)
      : fabric_(fabric), lanes_(lanes), queues_(queues) {}
  ~FetchServer() { stop(); }
  FetchServer(const FetchServer&) = delete;
  FetchServer& operator=(const FetchServer&) = delete;

  // Returns the space that the peer names in requests for these bytes. Errors: see RegistrationCache::pin().
  Result<std::uint32_t> expose(const void* bytes, std::size_t size);
  void conceal(std::uint32_t space);
  // Serves the requests that have arrived, as far as the queue pairs have room. Returns the text of the peer's refusal
  // or of a malformed request; else an empty string.
  std::string advance();
  // Unpins all memory. Precondition: the queue pairs are destroyed.
  void stop();

 private:
  struct Cursor {
    std::uint32_t run = 0;
    std::uint64_t offset = 0;  // in the run
    std::uint64_t left = 0;    // of the part
  };
  // Concealed memory that a device may still read.
  struct Retired {
    Registration* memory = nullptr;
    std::array<std::uint32_t, kMaxRails> posted{};  // by queue, at the time of conceal()
  };

  // Checks the request in `frame`. Empty: the request can be served; else why not.
  std::string begin(std::span<const std::byte> frame);
  bool servePart(std::uint32_t part);
  void refuse(std::uint32_t id, const std::string& why);
  void giveBackRetired();

  RdmaFabric& fabric_;
  FrameLanes& lanes_;
  std::vector<std::unique_ptr<QueuePair>>& queues_;
  ExposedMemory exposed_;
  std::unordered_map<std::uint32_t, Registration*> registrations_;  // of exposed memory, by space
  std::vector<Retired> retired_;
  // The request being served. Its frame stays in the ring until all parts are posted, but the peer may write to the
  // ring at any time: the checked runs are copies.
  bool isServing_ = false;
  RequestHeader header_;
  std::vector<RunRecord> runs_;
  const Registration* memory_ = nullptr;
  std::array<Cursor, kMaxRails> cursors_;
};

}  // namespace shardwire::internal

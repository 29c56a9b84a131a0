// The other side of fetches: what this rank exposed to one peer, and the peer's requests, served in order by writing straight from the
// exposed memory into the peer's. Owned by the connection. Threads: see Connection.
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
  // `queues`: the payload queue pairs; empty once fetches were stopped.
  FetchServer(RdmaFabric& fabric, FrameLanes& lanes, std::vector<std::unique_ptr<QueuePair>>& queues)
      : fabric_(fabric), lanes_(lanes), queues_(queues) {}
  ~FetchServer() { stop(); }
  FetchServer(const FetchServer&) = delete;
  FetchServer& operator=(const FetchServer&) = delete;

  // The space under which the peer may ask for these bytes. Errors of RegistrationCache::pin().
  Result<std::uint32_t> expose(const void* bytes, std::size_t size);
  void conceal(std::uint32_t space);
  // Serves the requests that have arrived, as far as the queue pairs have room. A refusal by the peer is returned as its text.
  std::string advance();
  // Gives all memory back. The queue pairs must be gone.
  void stop();

 private:
  struct Cursor {
    std::uint32_t run = 0;
    std::uint64_t offset = 0;  // in the run
    std::uint64_t left = 0;    // of the part
  };
  // Memory that is no longer exposed, but that a device may still send from.
  struct Retired {
    Registration* memory = nullptr;
    std::array<std::uint32_t, kMaxRails> posted{};  // by queue, when it was concealed
  };

  // Empty: the request at hand can be served.
  std::string begin(std::span<const std::byte> frame);
  bool servePart(std::uint32_t part);
  RunRecord run(std::uint32_t index) const;
  void refuse(std::uint32_t id, const std::string& why);
  void giveBackRetired();

  RdmaFabric& fabric_;
  FrameLanes& lanes_;
  std::vector<std::unique_ptr<QueuePair>>& queues_;
  ExposedMemory exposed_;
  std::unordered_map<std::uint32_t, Registration*> registrations_;  // of what is exposed, by its number
  std::vector<Retired> retired_;
  // The request being served; its frame stays in the ring until then.
  bool isServing_ = false;
  RequestHeader header_;
  const std::byte* runs_ = nullptr;
  const Registration* memory_ = nullptr;
  std::array<Cursor, kMaxRails> cursors_;
};

}  // namespace shardwire::internal

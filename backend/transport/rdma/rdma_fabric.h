// Shared state of all RDMA connections of one rank: devices, completion queues, the descriptor to sleep on, registered
// memory. The endpoint, the wire and the connections own the fabric together. Threads: as Connection, except
// readinessFd().
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/base/fd.h"
#include "backend/transport/rdma/rdma_device.h"
#include "backend/transport/rdma/registration_cache.h"
#include "backend/transport/rdma/verbs_api.h"
#include "backend/transport/transport.h"
#include "shardwire/types.h"

namespace shardwire::internal {

// The identity of a work request: the connection and queue pair that get the completion, and the number of requests
// that the completion covers.
struct WorkId {
  std::uint32_t slot = 0;      // of the connection
  std::uint8_t queue = 0;      // of the connection's queue pairs
  bool isReceive = false;      // the opcode of a failed completion is not defined
  std::uint32_t sequence = 0;  // sends: requests posted up to this one

  std::uint64_t encode() const {
    return std::uint64_t{sequence} | std::uint64_t{queue} << 32 | std::uint64_t{isReceive} << 39 |
           std::uint64_t{slot} << 40;
  }
  static WorkId decode(std::uint64_t id) {
    return {.slot = static_cast<std::uint32_t>(id >> 40),
            .queue = static_cast<std::uint8_t>(id >> 32 & 0x7f),
            .isReceive = (id >> 39 & 1) != 0,
            .sequence = static_cast<std::uint32_t>(id)};
  }
};

// The fabric's interface to a connection.
class FabricMember {
 public:
  virtual ~FabricMember() = default;
  virtual void onCompletion(const WorkId& id, const ibv_wc& completion) = 0;
  // Continues work that had to wait for room, as far as there is room now.
  virtual void advance() = 0;
  // The link is readable: bytes, or the end of the stream.
  virtual void onLinkReadable() = 0;
  // "mlx5_0: port 1 went down"; no failure unless isFatal.
  virtual void onDeviceTrouble(const std::string& what, bool isFatal) = 0;
};

class RdmaFabric {
 public:
  static Result<std::shared_ptr<RdmaFabric>> create(const VerbsApi& api, const Options& options, int worldSize,
                                                    const StorageWatch* watch);
  ~RdmaFabric();
  RdmaFabric(const RdmaFabric&) = delete;
  RdmaFabric& operator=(const RdmaFabric&) = delete;

  const VerbsApi& api() const { return api_; }
  const std::vector<Rail>& rails() const { return ports_.rails; }
  const RdmaDevice& device(std::size_t index) const { return *ports_.devices[index]; }
  ibv_cq* completionQueue(std::size_t device) const { return queues_[device].cq; }
  RegistrationCache& registrations() { return *registrations_; }

  // A slot for the work requests of a new connection. Completions before take() are kept for the connection, since the
  // peer may finish the set-up first and send.
  std::uint32_t reserveSlot();
  // For a set-up that failed.
  void giveBackSlot(std::uint32_t slot) { members_[slot] = {}; }
  // Until leave(), `member` gets the completions of the slot, and is notified when the link's socket is readable.
  void take(std::uint32_t slot, FabricMember* member, int linkSocket);
  void leave(std::uint32_t slot, int linkSocket);
  // The next poll() calls the member's advance().
  void activate(std::uint32_t slot);

  bool poll();
  int readinessFd() const { return epoll_.get(); }
  void prepareToSleep();
  // Checks sockets and devices, at most every 2 ms, since a check costs a system call.
  void lookAround(Deadline now);

 private:
  struct CompletionQueue {
    ibv_comp_channel* channel = nullptr;
    ibv_cq* cq = nullptr;
    bool isArmed = false;
  };
  struct Member {
    FabricMember* member = nullptr;
    bool isActive = false;
    bool isReserved = false;
    std::vector<ibv_wc> early;  // completions before take()
  };

  explicit RdmaFabric(const VerbsApi& api) : api_(api) {}
  Status open(const Options& options, int worldSize, const StorageWatch* watch);
  Status watchFd(int fd, std::uint64_t tag, std::uint32_t events);
  bool pollQueue(CompletionQueue* queue);
  void drainEvents(CompletionQueue* queue);
  void readAsyncEvents(std::size_t device);
  void advanceActive();
  bool deliverEarly();

  const VerbsApi& api_;
  RdmaPorts ports_;
  std::vector<CompletionQueue> queues_;  // by device
  std::unique_ptr<RegistrationCache> registrations_;
  Fd epoll_;
  std::vector<Member> members_;           // by slot; slots are not reused, so that late completions find no member
  std::vector<std::uint32_t> withEarly_;  // members with early completions at take()
  std::vector<std::uint32_t> active_;
  std::vector<std::uint32_t> advancing_;  // active_ while it is walked
  Deadline nextLook_{};
};

}  // namespace shardwire::internal

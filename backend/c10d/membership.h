// How a group made with enable_reconfigure (torch 2.14) finds its members: by handles, without a store that may have
// ended with a rank. python/shardwire/survive/members.py implements this interface. One thread at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

namespace shardwire::internal {

class Membership {
 public:
  // Where the next members meet. The store has no other users.
  struct Place {
    c10::intrusive_ptr<::c10d::Store> store;
    int rank = 0;
    int size = 1;
  };

  virtual ~Membership() = default;
  // Other processes find this rank by the handle. Valid until the process ends.
  virtual std::string handle() const = 0;
  // Throws for malformed handles and for a used `uuid`, and the present members stay. The position of a handle is the
  // rank.
  virtual void check(std::int64_t uuid, const std::vector<std::string>& handles) = 0;
  // Blocks until the members of the last check() have come. Throws when one has ended, or after the timeout.
  virtual Place meet(std::chrono::milliseconds timeout) = 0;
  // The group has the members that met.
  virtual void isMade() = 0;
};

}  // namespace shardwire::internal

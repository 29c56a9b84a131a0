// The published address of a rank's RDMA ports, and the pairing of two ranks' ports. Pure functions; both ends compute
// the same pairs from the same two addresses.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/transport/rdma/rdma_device.h"
#include "shardwire/status.h"

namespace shardwire::internal {

inline constexpr std::uint8_t kRdmaAddressVersion = 1;

std::string encodeRailAddresses(const std::vector<RailAddress>& rails);
// kMismatch when the bytes are no RDMA address, or have another version.
Result<std::vector<RailAddress>> decodeRailAddresses(std::string_view bytes);

// (index in dialer, index in listener) of the ports to join, best pair first. Each port is used at most once, and both
// ports of a pair have the same link layer. RoCE ports whose addresses share the longest prefix come first, since ports
// of different networks seldom reach each other.
std::vector<std::pair<std::size_t, std::size_t>> pairRails(const std::vector<RailAddress>& dialer,
                                                           const std::vector<RailAddress>& listener);

// Empty when pairRails() finds a pair, else why not. The text does not depend on the order of the arguments.
std::string whyNoPair(const std::vector<RailAddress>& one, const std::vector<RailAddress>& other);

}  // namespace shardwire::internal

// What a rank publishes about its RDMA ports, and how two ranks pair theirs. Pure functions; both ends compute the same from the same two
// addresses.
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
// kMismatch when the bytes are not such an address, or of another version.
Result<std::vector<RailAddress>> decodeRailAddresses(std::string_view bytes);

// (index in dialer, index in listener) of the ports that are joined, best pair first: each port at most once, ports of one link layer, of
// RoCE those whose addresses share the longest prefix first, since ports of different networks seldom reach each other.
std::vector<std::pair<std::size_t, std::size_t>> pairRails(const std::vector<RailAddress>& dialer,
                                                           const std::vector<RailAddress>& listener);

// Empty when pairRails() finds a pair, else why not; the same words whichever comes first.
std::string whyNoPair(const std::vector<RailAddress>& one, const std::vector<RailAddress>& other);

}  // namespace shardwire::internal

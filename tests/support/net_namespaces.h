// Two hosts on one machine, as far as the network goes: two network namespaces joined by a virtual cable. Abstract Unix
// sockets, and so shared memory between ranks, do not reach from one to the other. Needs root and iproute2; ends with
// the process of the object.
#pragma once

#include <sys/types.h>

#include <array>
#include <memory>
#include <string>

#include "backend/base/fd.h"

namespace shardwire::testing {

class NetNamespaces {
 public:
  enum class Addresses { kIpv4, kIpv6, kLinkLocalOnly };
  static constexpr const char* kInterface = "sw0";

  // Null, with the reason in *whyNot, where namespaces are not permitted or not possible.
  static std::unique_ptr<NetNamespaces> create(Addresses addresses, std::string* whyNot);
  ~NetNamespaces();
  NetNamespaces(const NetNamespaces&) = delete;
  NetNamespaces& operator=(const NetNamespaces&) = delete;

  // The calling thread, and threads that it makes from now on, are on this host: 0 or 1. For forked ranks.
  void enter(int host) const;
  // Pulls the cable, or plugs the cable in. From any process that has this object.
  void setCable(bool plugged) const;

 private:
  struct Host {
    pid_t keeper = -1;  // a child that lives in the namespace, so `ip` can name the namespace
    internal::Fd stop;  // the keeper ends when this closes
    internal::Fd file;  // the namespace
  };

  NetNamespaces() = default;
  std::string setUp(Addresses addresses);
  std::string startKeeper(Host& host);
  // "" or what went wrong.
  std::string run(int host, const std::string& command) const;

  pid_t owner_ = 0;
  std::array<Host, 2> hosts_;
};

}  // namespace shardwire::testing

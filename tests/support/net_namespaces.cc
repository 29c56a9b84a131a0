#include "tests/support/net_namespaces.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/base/system_error.h"
#include "shardwire/status.h"

namespace shardwire::testing {

using internal::errnoText;
using internal::Fd;

std::unique_ptr<NetNamespaces> NetNamespaces::create(Addresses addresses, std::string* whyNot) {
  std::unique_ptr<NetNamespaces> made(new NetNamespaces);
  made->owner_ = ::getpid();
  *whyNot = made->setUp(addresses);
  return whyNot->empty() ? std::move(made) : nullptr;
}

NetNamespaces::~NetNamespaces() {
  for (Host& host : hosts_) {
    host.stop.reset();
    if (host.keeper > 0 && owner_ == ::getpid()) {
      ::kill(host.keeper, SIGKILL);
      ::waitpid(host.keeper, nullptr, 0);
    }
  }
}

std::string NetNamespaces::startKeeper(Host& host) {
  int stop[2];
  int ready[2];
  if (::pipe2(stop, O_CLOEXEC) != 0 || ::pipe2(ready, O_CLOEXEC) != 0) {
    return fmt::format("pipe: {}", errnoText(errno));
  }
  const Fd stopRead(stop[0]);
  const Fd readyRead(ready[0]);
  Fd readyWrite(ready[1]);
  host.stop.reset(stop[1]);
  host.keeper = ::fork();
  if (host.keeper == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    host.stop.reset();
    const int error = ::unshare(CLONE_NEWNET) == 0 ? 0 : errno;
    (void)!::write(readyWrite.get(), &error, sizeof(error));
    char byte;
    (void)!::read(stopRead.get(), &byte, 1);  // until the owner goes
    ::_exit(0);
  }
  readyWrite.reset();
  int error = EIO;
  if (host.keeper < 0 || ::read(readyRead.get(), &error, sizeof(error)) != sizeof(error) || error != 0) {
    return fmt::format("making a network namespace: {} (it takes root, or CAP_SYS_ADMIN in a container)",
                       errnoText(error));
  }
  host.file.reset(::open(fmt::format("/proc/{}/ns/net", host.keeper).c_str(), O_RDONLY | O_CLOEXEC));
  return host.file.isOpen() ? "" : fmt::format("opening a network namespace: {}", errnoText(errno));
}

std::string NetNamespaces::run(int host, const std::string& command) const {
  const pid_t child = ::fork();
  if (child == 0) {
    enter(host);
    ::execl("/bin/sh", "sh", "-c", ("exec 2>/dev/null; " + command).c_str(), static_cast<char*>(nullptr));
    ::_exit(127);
  }
  int status = -1;
  while (child > 0 && ::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return status == 0
             ? ""
             : fmt::format("`{}` failed (status {}): is iproute2 installed, and may this user set up interfaces?",
                           command, WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}

std::string NetNamespaces::setUp(Addresses addresses) {
  for (Host& host : hosts_) {
    if (std::string why = startKeeper(host); !why.empty()) {
      return why;
    }
  }
  if (std::string why =
          run(0, fmt::format("ip link add {0} type veth peer name {0} netns {1}", kInterface, hosts_[1].keeper));
      !why.empty()) {
    return why;
  }
  for (const int host : {0, 1}) {
    // No duplicate detection: an address counts at once. Two hosts of our own have no duplicates.
    std::string command = fmt::format(
        "echo 0 > /proc/sys/net/ipv6/conf/{0}/accept_dad && ip link set {0} address 02:77:00:00:00:0{1} && "
        "ip link set lo up && ip link set {0} up",
        kInterface, host + 1);
    // The peer's hardware address is known from the start: once, beside load, a connection found no route to the peer
    // for three seconds (EHOSTUNREACH), the time of a search for the address.
    const auto knowsPeer = [&](const char* network) {
      return fmt::format(" && ip neigh add {0}{1} lladdr 02:77:00:00:00:0{1} dev {2} nud permanent", network, 2 - host,
                         kInterface);
    };
    if (addresses == Addresses::kIpv4) {
      command += fmt::format(" && ip addr add 10.77.0.{1}/24 dev {0}", kInterface, host + 1) + knowsPeer("10.77.0.");
    } else if (addresses == Addresses::kIpv6) {
      command += fmt::format(" && ip addr add fd77::{1}/64 dev {0} nodad", kInterface, host + 1) + knowsPeer("fd77::");
    }
    if (std::string why = run(host, command); !why.empty()) {
      return why;
    }
  }
  // Some time after both ends are up the kernel notices that the cable is whole, and gives each end a link-local
  // address.
  const std::string isRunning = fmt::format("ip link show dev {} | grep -q 'state UP'", kInterface);
  const std::string hasLinkLocal =
      fmt::format("ip -6 addr show dev {} scope link -tentative | grep -q inet6", kInterface);
  for (const int host : {0, 1}) {
    const std::string all = addresses == Addresses::kLinkLocalOnly ? isRunning + " && " + hasLinkLocal : isRunning;
    if (std::string why = run(host, "for i in $(seq 500); do " + all + " && exit 0; sleep 0.01; done; exit 1");
        !why.empty()) {
      return why;
    }
  }
  return "";
}

void NetNamespaces::enter(int host) const {
  SW_CHECK(::setns(hosts_[static_cast<std::size_t>(host)].file.get(), CLONE_NEWNET) == 0);
}

void NetNamespaces::setCable(bool plugged) const {
  SW_CHECK(run(0, fmt::format("ip link set {} {}", kInterface, plugged ? "up" : "down")).empty());
}

}  // namespace shardwire::testing

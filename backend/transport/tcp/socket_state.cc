#include "backend/transport/tcp/socket_state.h"

#include <linux/mptcp.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <span>

namespace shardwire::internal {
namespace {

class Paths {
 public:
  explicit Paths(const Fd& socket) {
    if (!socket.isOpen() || readAll(socket)) {
      return;
    }
    socklen_t size = sizeof(answer_.infos[0]);
    count_ = ::getsockopt(socket.get(), IPPROTO_TCP, TCP_INFO, answer_.infos.data(), &size) == 0 ? 1 : 0;
  }
  std::span<const tcp_info> infos() const { return std::span(answer_.infos).first(count_); }

 private:
  // False for a connection of plain TCP.
  bool readAll(const Fd& socket) {
    answer_.head.size_subflow_data = sizeof(answer_.head);
    answer_.head.size_user = sizeof(tcp_info);
    socklen_t size = sizeof(answer_);
    if (::getsockopt(socket.get(), SOL_MPTCP, MPTCP_TCPINFO, &answer_, &size) != 0) {
      return false;
    }
    count_ = std::min<std::size_t>(answer_.head.num_subflows, answer_.infos.size());
    return true;
  }

  static constexpr std::size_t kMaxPaths = 8;  // the most that Linux makes
  struct {
    mptcp_subflow_data head{};
    std::array<tcp_info, kMaxPaths> infos{};
  } answer_;
  std::size_t count_ = 0;
};

bool isClosed(const tcp_info& info) {
  return info.tcpi_state == TCP_CLOSE;
}

Duration silenceOf(const tcp_info& info) {
  return info.tcpi_retransmits == 0 && info.tcpi_probes == 0 ? Duration::zero()
                                                             : std::chrono::milliseconds(info.tcpi_last_ack_recv);
}

}  // namespace

std::size_t numPathsOf(const Fd& socket) {
  const Paths paths(socket);
  return paths.infos().size() - static_cast<std::size_t>(std::ranges::count_if(paths.infos(), isClosed));
}

Duration silenceOf(const Fd& socket) {
  const Paths paths(socket);
  Duration silence = Duration::max();
  for (const tcp_info& info : paths.infos()) {
    silence = std::min(silence, isClosed(info) && paths.infos().size() > 1 ? silence : silenceOf(info));
  }
  return silence == Duration::max() ? Duration::zero() : silence;
}

Duration Silence::look(Duration silence, Deadline now) {
  constexpr Duration kClocksDiffer =
      std::chrono::seconds(1);  // the kernel's, and `now`, which is read a little earlier
  const Deadline heardAt = now - silence;
  if (!isSilent_ || heardAt > heardAt_ + kClocksDiffer) {
    since_ = now;
    heardAt_ = heardAt;
  }
  isSilent_ = silence > Duration::zero();
  return std::min(silence, now - since_);
}

int unacknowledgedOf(const Fd& socket) {
  int bytes = 0;
  return numPathsOf(socket) > 0 && ::ioctl(socket.get(), SIOCOUTQ, &bytes) == 0 ? bytes : 0;
}

}  // namespace shardwire::internal

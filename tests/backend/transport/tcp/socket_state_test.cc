#include "backend/transport/tcp/socket_state.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <tuple>
#include <utility>

#include "backend/fabric/net_socket.h"
#include "tests/backend/transport/tcp/tcp_pair.h"

namespace shardwire::internal {
namespace {

struct Connected {
  Fd near;
  Fd far;
};

// Over loopback; not open where the kernel has not the protocol.
Connected connected(int protocol) {
  Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, protocol));
  Connected made;
  const auto any = makeSocketAddress("127.0.0.1", 0, 0);
  if (!listener.isOpen() || ::bind(listener.get(), any->get(), any->size) != 0 || ::listen(listener.get(), 1) != 0) {
    return made;
  }
  const auto address = localAddress(listener);
  Fd near(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, protocol));
  if (!address.isOk() || ::connect(near.get(), address->get(), address->size) != 0) {
    return made;
  }
  made.far = Fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  made.near = std::move(near);
  return made;
}

void expectStateOf(int protocol) {
  const Connected ends = connected(protocol);
  if (!ends.near.isOpen()) {
    GTEST_SKIP() << "this kernel has no protocol " << protocol;
  }
  EXPECT_EQ(numPathsOf(ends.near), 1U);
  EXPECT_EQ(silenceOf(ends.near), Duration::zero());
  EXPECT_EQ(unacknowledgedOf(ends.near), 0);
  // Nobody reads at the far end: the last bytes stay in the buffer of the near end.
  const std::string bytes(1 << 16, 'x');
  while (::send(ends.near.get(), bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) {
  }
  EXPECT_GT(unacknowledgedOf(ends.near), 0);
  EXPECT_EQ(numPathsOf(ends.near), 1U);
}

// A link ends soon after the peer's host vanished, also without bytes under way.
TEST(NetSocket, ProbesSilentHostsOnBothEnds) {
  const auto [near, far] = testing::makeTcpPair();
  for (const Fd* socket : {&near, &far}) {
    for (const auto& [level, option, wanted] : {std::tuple{SOL_SOCKET, SO_KEEPALIVE, 1},
                                                {IPPROTO_TCP, TCP_KEEPIDLE, 3},
                                                {IPPROTO_TCP, TCP_KEEPINTVL, 1},
                                                {IPPROTO_TCP, TCP_KEEPCNT, 5}}) {
      int value = 0;
      socklen_t size = sizeof(value);
      ASSERT_EQ(::getsockopt(socket->get(), level, option, &value, &size), 0);
      EXPECT_EQ(value, wanted) << option;
    }
  }
}

TEST(SocketState, OfTcp) {
  expectStateOf(IPPROTO_TCP);
}

TEST(SocketState, OfMultipathTcp) {
  expectStateOf(IPPROTO_MPTCP);
}

constexpr Duration operator""_ms(unsigned long long number) {
  return std::chrono::milliseconds(number);
}

// The kernel's probes of a stopped peer, whose kernel answers each after 250 ms. In looks during this time the last
// acknowledgement is the answer to the probe before.
TEST(Silence, OfAPeerThatAnswersProbesIsShort) {
  for (const Duration every : {250_ms, 16000_ms}) {  // 16000: between two looks this rank waits for something else
    Silence silence;
    Deadline probe{};
    Duration longest{};
    for (Duration gap = 2000_ms; gap < 120000_ms; gap *= 2) {
      probe += gap;
      for (Duration at = every == 250_ms ? -gap + 250_ms : 0_ms; at <= 200_ms; at += every) {
        const bool isUnderWay = at >= 0_ms;
        longest = std::max(longest, silence.look(isUnderWay ? gap + at - 250_ms : 0_ms, probe + at));
      }
    }
    EXPECT_LT(longest, 300_ms);
  }
}

TEST(Silence, GrowsWhileNothingIsAcknowledged) {
  Silence silence;
  Deadline now{};
  EXPECT_EQ(silence.look(0_ms, now), 0_ms);
  now += 60000_ms;  // no byte was under way
  EXPECT_EQ(silence.look(60200_ms, now), 0_ms);
  for (Duration time = 250_ms; time <= 9000_ms; time += 250_ms) {
    EXPECT_EQ(silence.look(60200_ms + time + (time % 500_ms) / 50, now + time), time);
  }
  EXPECT_EQ(silence.look(0_ms, now + 9250_ms), 0_ms);
  EXPECT_EQ(silence.look(100_ms, now + 9500_ms), 0_ms);
  EXPECT_EQ(silence.look(350_ms, now + 9750_ms), 250_ms);
}

TEST(SocketState, OfAConnectionThatThePeerReset) {
  Connected ends = connected(IPPROTO_TCP);
  ASSERT_TRUE(ends.near.isOpen());
  const std::string bytes(1 << 16, 'x');
  ASSERT_GT(::send(ends.near.get(), bytes.data(), bytes.size(), MSG_DONTWAIT), 0);
  const linger now{1, 0};
  ASSERT_EQ(::setsockopt(ends.far.get(), SOL_SOCKET, SO_LINGER, &now, sizeof(now)), 0);
  ends.far.reset();
  while (numPathsOf(ends.near) == 1) {
  }
  EXPECT_EQ(unacknowledgedOf(ends.near), 0);
}

}  // namespace
}  // namespace shardwire::internal

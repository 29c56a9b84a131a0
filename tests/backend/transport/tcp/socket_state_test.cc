#include "backend/transport/tcp/socket_state.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <string>
#include <utility>

#include "backend/fabric/net_socket.h"

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
  EXPECT_FALSE(isAnyUnderWay(ends.near));
  // Nobody reads at the far end: the last bytes stay in the buffer of the near end.
  const std::string bytes(1 << 16, 'x');
  while (::send(ends.near.get(), bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) {
  }
  EXPECT_GT(unacknowledgedOf(ends.near), 0);
  EXPECT_EQ(numPathsOf(ends.near), 1U);
}

TEST(SocketState, OfTcp) {
  expectStateOf(IPPROTO_TCP);
}

TEST(SocketState, OfMultipathTcp) {
  expectStateOf(IPPROTO_MPTCP);
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

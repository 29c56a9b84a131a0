// Foreign processes that find the sockets of a group while the group is made: they are rejected and logged, and the
// group is made all the same. Also the rules for joining: SHARDWIRE_JOB_TOKEN, and without a token the secret of the
// ranks of one user on one host.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "backend/bootstrap/address.h"
#include "backend/bootstrap/check_addresses.h"
#include "backend/bootstrap/connect.h"
#include "backend/bootstrap/own_ends.h"
#include "backend/fabric/host_listener.h"
#include "backend/fabric/unix_socket.h"
#include "shardwire/stores.h"
#include "tests/support/dial_link.h"
#include "tests/support/fork_ranks.h"

namespace shardwire::internal {
namespace {

using std::chrono::seconds;
using testing::runRanksAsProcesses;
using testing::runRanksAsThreads;

constexpr seconds kGroupTimeout{30};

Deadline inTime() {
  return Clock::now() + kGroupTimeout;
}

Result<Peers> connectAll(Store& store, Rank rank, int worldSize, const Options& options = {}) {
  return connectPeers(store, rank, worldSize, options, inTime(), "g");
}

RankAddress addressOf(Store& store, Rank rank) {
  const auto bytes = store.get(addressKey(rank), inTime());
  EXPECT_TRUE(bytes.isOk());
  auto address = decodeAddress(*bytes);
  EXPECT_TRUE(address.isOk());
  return *address;
}

// Rank 0 of two; the foreign process does its worst before rank 1 arrives, and leaves when the group is made.
void expectGroupDespite(const std::function<std::vector<Fd>(const RankAddress& of0)>& foreign) {
  MemoryStore store;
  runRanksAsThreads(2, [&](Rank rank) {
    std::vector<Fd> held;
    if (rank == 1) {
      held = foreign(addressOf(store, 0));
    }
    const auto start = Clock::now();
    const auto peers = connectAll(store, rank, 2);
    EXPECT_TRUE(peers.isOk()) << peers.status().message();
    EXPECT_LT(Clock::now() - start, seconds(20));
  });
}

Fd dialed(const RankAddress& of) {
  auto socket = dialProcess(of.socketName, inTime());
  EXPECT_TRUE(socket.isOk()) << socket.status().message();
  return std::move(*socket);
}

void say(const Fd& socket, std::string_view bytes) {
  EXPECT_TRUE(sendUnix(socket, bytes, {}, inTime()).isOk());
}

// The hello of another process of the job.
HostHello goodHello(const RankAddress& of0) {
  return {*makeRandomId(), makeHostToken(of0.processToken, "")};
}

TEST(ForeignProcesses, WhoSayNothingHoldUpNobody) {
  expectGroupDespite([](const RankAddress& of0) {
    std::vector<Fd> silent;
    for (int i = 0; i < 200;
         ++i) {  // more than may wait at a time: five seconds for each, one after the other, would be the timeout
      silent.push_back(dialed(of0));
    }
    return silent;
  });
}

TEST(ForeignProcesses, ThatSendNonsenseAreRejected) {
  expectGroupDespite([](const RankAddress& of0) {
    const std::string hello = encodeHostHello(goodHello(of0));
    std::vector<Fd> sockets;
    const std::vector<std::string> words = {"nonsense",
                                            std::string(kMaxMessageBytes, '\xff'),
                                            hello.substr(0, hello.size() / 2),
                                            hello + "more",
                                            encodeSecret("mine"),
                                            encodeHostRefusal({StatusCode::kInternal, "no"})};
    for (const std::string& each : words) {
      sockets.push_back(dialed(of0));
      say(sockets.back(), each);
    }
    return sockets;
  });
}

TEST(ForeignProcesses, WithoutTheTokenGetTheReason) {
  expectGroupDespite([](const RankAddress& of0) {
    for (const RandomId& token : {RandomId{{1, 2}}, of0.processToken, makeHostToken(of0.processToken, "another"),
                                  makeHostToken(of0.token, "")}) {
      const Fd socket = dialed(of0);
      say(socket, encodeHostHello({*makeRandomId(), token}));
      const auto answer = receiveUnix(socket, inTime());
      EXPECT_TRUE(answer.isOk()) << answer.status().message();
      EXPECT_NE(answer->bytes.find("token is wrong"), std::string::npos) << answer->bytes;
      EXPECT_TRUE(answer->fds.empty());
    }
    return std::vector<Fd>();
  });
}

// The foreign process has the token, so the listener accepts it. No rank waits for a further message or for the end of
// the connection.
TEST(ForeignProcesses, WhoAreLetInAndDoNothingHoldUpNobody) {
  expectGroupDespite([](const RankAddress& of0) {
    std::vector<Fd> staying;
    for (int i = 0; i < 9; ++i) {
      Fd socket = dialed(of0);
      say(socket, encodeHostHello(goodHello(of0)));
      const auto answer = receiveUnix(socket, inTime());
      EXPECT_TRUE(answer.isOk() && answer->fds.size() == 3) << answer.status().message();
      if (i % 3 == 1) {
        say(socket, "and more");
      }
      if (i % 3 != 0) {
        staying.push_back(std::move(socket));
      }
    }
    return staying;
  });
}

TEST(ForeignProcesses, OfAnotherReleaseGetTheReason) {
  MemoryStore store;
  runRanksAsThreads(2, [&](Rank rank) {
    Fd foreign;
    if (rank == 1) {
      foreign = dialed(addressOf(store, 0));
      say(foreign, std::string_view("WSHM\x07\0\0\0\x01more",
                                    13));  // before rank 1, so this connection is answered before rank 1
    }
    const auto peers = connectAll(store, rank, 2);
    EXPECT_TRUE(peers.isOk()) << peers.status().message();
    if (rank == 1) {
      const auto answer = receiveUnix(foreign, inTime());
      ASSERT_TRUE(answer.isOk()) << answer.status().message();
      EXPECT_NE(answer->bytes.find("version 7"), std::string::npos);
      EXPECT_NE(answer->bytes.find("same release"), std::string::npos);
    }
  });
}

// More silent connections than the limit, again and again: the rank still gets in.
TEST(ForeignProcesses, WhoFloodInSilenceDelayTheGroupAtMost) {
  MemoryStore store;
  std::atomic<bool> isMade{false};
  runRanksAsThreads(3, [&](Rank rank) {
    if (rank == 2) {
      const RankAddress of0 = addressOf(store, 0);
      std::vector<Fd> silent;
      while (!isMade) {
        if (auto socket = tryDialUnix(of0.socketName); socket.isOk() && silent.size() < 300) {
          silent.push_back(std::move(*socket));
        }
      }
      return;
    }
    const auto peers = connectAll(store, rank, 2);
    EXPECT_TRUE(peers.isOk()) << peers.status().message();
    isMade = isMade || rank == 0;
  });
}

TEST(ForeignProcesses, WhoFloodTheSocketDelayTheGroupAtMost) {
  MemoryStore store;
  std::atomic<bool> isMade{false};
  runRanksAsThreads(3, [&](Rank rank) {
    if (rank == 2) {
      const RankAddress of0 = addressOf(store, 0);
      while (!isMade) {
        if (const auto socket = tryDialUnix(of0.socketName); socket.isOk() && socket->isOpen()) {
          static_cast<void>(sendUnix(*socket, "nonsense", {}, Clock::now()));
        }
      }
      return;
    }
    const auto peers = connectAll(store, rank, 2);
    EXPECT_TRUE(peers.isOk()) << peers.status().message();
    isMade = isMade || rank == 0;
  });
}

// Runs in a child of another user; the returned text is empty when all was as expected.
std::string asNobody(const std::function<std::string()>& function) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    std::string text = "cannot become another user";
    if (::setgid(65534) == 0 && ::setuid(65534) == 0) {
      text = function();
    }
    static_cast<void>(::write(ends[1], text.data(), text.size()) == 0);
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string text;
  char buffer[512];
  for (ssize_t size = ::read(ends[0], buffer, sizeof(buffer)); size > 0;
       size = ::read(ends[0], buffer, sizeof(buffer))) {
    text.append(buffer, static_cast<std::size_t>(size));
  }
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
  return text;
}

std::size_t count(const std::string& text, std::string_view word) {
  std::size_t found = 0;
  for (auto at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    ++found;
  }
  return found;
}

// The listener yields to the other callers, however many there are, and the log stays short.
TEST(AnotherUser, WhoFloodsTheSocketGetsFewTurnsAndFewWarnings) {
  if (::geteuid() != 0) {
    GTEST_SKIP() << "needs root, to be another user";
  }
  const std::string name = "shardwire-test-" + toString(*makeRandomId());
  auto listener = HostListener::create(name, {});
  ASSERT_TRUE(listener.isOk()) << listener.status().message();
  const std::string wrong = asNobody([&]() -> std::string {
    for (int i = 0; i < 100; ++i) {
      if (const auto socket = tryDialUnix(name); !socket.isOk() || !socket->isOpen()) {
        return "cannot dial";
      }
    }
    return "";
  });
  EXPECT_EQ(wrong, "");
  const auto isReadable = [&] {
    pollfd entry{listener->socket().get(), POLLIN, 0};
    return ::poll(&entry, 1, 0) > 0;
  };
  ::testing::internal::CaptureStderr();
  int numTurns = 0;
  for (; isReadable(); ++numTurns) {
    listener->serve();
  }
  EXPECT_EQ(count(::testing::internal::GetCapturedStderr(), "rejected"), 10U);
  EXPECT_GT(numTurns, 3);
}

TEST(ForeignProcesses, WithoutDescriptorsOneWarningIsGivenForEachCause) {
  runRanksAsProcesses(1, [](Rank) {
    const std::string name = "shardwire-test-" + toString(*makeRandomId());
    auto listener = HostListener::create(name, {});
    ASSERT_TRUE(listener.isOk()) << listener.status().message();
    ::testing::internal::CaptureStderr();
    rlimit limit{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
    const rlim_t before = std::exchange(limit.rlim_cur, 0);
    for (int cause = 1; cause <= 2; ++cause) {
      const auto caller = tryDialUnix(name);
      ASSERT_TRUE(caller.isOk() && caller->isOpen());
      limit.rlim_cur = 0;
      ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
      for (int i = 0; i < 5; ++i) {
        listener->serve();
      }
      limit.rlim_cur = before;
      ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
      listener->serve();
    }
    EXPECT_EQ(count(::testing::internal::GetCapturedStderr(), "are not accepted now"), 2U);
  });
}

// The store is open to all users of the host, and contains the token. Only ranks of the user can get the other secret
// that a foreign process would need.
TEST(AnotherUser, WhoReadsTheStoreIsNotWelcomedAsARank) {
  if (::geteuid() != 0) {
    GTEST_SKIP() << "needs root, to be another user";
  }
  MemoryStore store;
  Options options;
  options.transports = "tcp";
  runRanksAsProcesses(2, [&](Rank rank) {
    if (rank == 1) {
      // The address says that rank 1 is a process of this user; the process that connects instead is not.
      OwnEnds own;
      ASSERT_TRUE(own.prepare(1, 2, options).isOk());
      ASSERT_TRUE(store.set(addressKey(1), encodeAddress(own.address)).isOk());
      const RankAddress of0 = addressOf(store, 0);
      const std::string wrong = asNobody([&]() -> std::string {
        const LinkHello hello{1, 0, 2, static_cast<std::uint8_t>(TransportKind::kTcp), makeEndpointId(of0.token)};
        const auto link = dialLink(of0.links, of0.token, hello, options, inTime());
        if (link.isOk()) {
          return "it was welcomed as rank 1";
        }
        const auto socket = dialProcess(of0.socketName, inTime());
        if (socket.isOk() &&
            sendUnix(*socket, encodeSecretRequest(makeHostToken(of0.processToken, "")), {}, inTime()).isOk() &&
            receiveUnix(*socket, inTime()).isOk()) {
          return "it was answered over the Unix socket";
        }
        return link.status().code() == StatusCode::kMismatch ? "" : link.status().message();
      });
      EXPECT_EQ(wrong, "");
      // Rank 1's own process is accepted.
      const auto socket = dialProcess(of0.socketName, inTime());
      ASSERT_TRUE(socket.isOk());
      ASSERT_TRUE(askForSecret(*socket, makeHostToken(of0.processToken, ""), inTime()).isOk());
      const auto secret = receiveSecret(*socket, inTime());
      ASSERT_TRUE(secret.isOk()) << secret.status().message();
      const LinkHello hello{1, 0, 2, static_cast<std::uint8_t>(TransportKind::kTcp), makeEndpointId(of0.token)};
      EXPECT_TRUE(dialLink(of0.links, makeLinkKey(of0.token, *secret), hello, options, inTime()).isOk());
      return;
    }
    const auto peers = connectPeers(store, 0, 2, options, inTime(), "g");
    EXPECT_FALSE(peers.isOk());  // rank 1 went no further
  });
}

TEST(JobToken, OpensShmAndTcpToThoseWhoHaveIt) {
  for (const char* transports : {"shm", "tcp", ""}) {
    MemoryStore store;
    runRanksAsThreads(3, [&](Rank rank) {
      Options options;
      options.transports = transports;
      options.jobToken = "secret";
      const auto peers = connectAll(store, rank, 3, options);
      EXPECT_TRUE(peers.isOk()) << peers.status().message();
    });
  }
}

TEST(JobToken, ThatDiffersIsAnErrorOfAllRanks) {
  for (const char* transports : {"shm", "tcp"}) {
    MemoryStore store;
    runRanksAsThreads(3, [&](Rank rank) {
      Options options;
      options.transports = transports;
      options.jobToken = rank == 2 ? "another" : "secret";
      const auto peers = connectAll(store, rank, 3, options);
      ASSERT_FALSE(peers.isOk());
      EXPECT_EQ(peers.status().code(), StatusCode::kMismatch) << peers.status().message();
      EXPECT_NE(peers.status().message().find("SHARDWIRE_JOB_TOKEN"), std::string::npos) << peers.status().message();
    });
  }
}

// A rank that has a secret never continues without the secret.
TEST(JobToken, OfSomeRanksOnlyIsAnErrorOfAll) {
  for (const Rank without : {0, 1, 2}) {
    MemoryStore store;
    runRanksAsThreads(3, [&](Rank rank) {
      Options options;
      options.jobToken = rank == without ? "" : "secret";
      const auto peers = connectAll(store, rank, 3, options);
      ASSERT_FALSE(peers.isOk());
      EXPECT_EQ(peers.status().code(), StatusCode::kMismatch);
      EXPECT_NE(peers.status().message().find("and not for rank " + std::to_string(without) + " (pid"),
                std::string::npos)
          << peers.status().message();
    });
  }
}

TEST(ForeignProcessWarning, ComesWhereTheKernelCannotVouchForAll) {
  const auto address = makeAddress();
  ASSERT_TRUE(address.isOk());
  std::vector<RankAddress> ranks = {*address, *address, *address};
  EXPECT_EQ(foreignProcessWarning(0, ranks), "");
  for (const auto& change : std::vector<std::function<void(RankAddress&)>>{
           [](RankAddress& each) { each.kernel = "elsewhere"; }, [](RankAddress& each) { each.uid += 1; },
           [](RankAddress& each) { each.userNamespace += 1; }, [](RankAddress& each) { each.userNamespace = 0; }}) {
    ranks[2] = *address;
    change(ranks[2]);
    EXPECT_NE(foreignProcessWarning(0, ranks).find("SHARDWIRE_JOB_TOKEN is not set"), std::string::npos);
    EXPECT_EQ(foreignProcessWarning(1, ranks), "");  // rank 0 warns for both
    EXPECT_NE(foreignProcessWarning(2, ranks).find("SHARDWIRE_JOB_TOKEN is not set"), std::string::npos);
    for (RankAddress& each : ranks) {
      each.hasJobToken = true;
    }
    EXPECT_EQ(foreignProcessWarning(0, ranks), "");
    for (RankAddress& each : ranks) {
      each.hasJobToken = false;
    }
  }
  ranks.assign(2, *address);
  ranks[0].kernel = ranks[1].kernel = "";  // a kernel without an identity
  EXPECT_NE(foreignProcessWarning(0, ranks), "");
}

}  // namespace
}  // namespace shardwire::internal

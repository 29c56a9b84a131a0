// System calls of one rank of three fail, over shared memory, tcp and encrypted tcp. A failure that the kernel may
// report at any time (a short transfer, EAGAIN, EINTR) must not show: every rank has the right bytes. Any other failure
// must end the operation or the making of the group on every rank, in time, with an error that names the rank, and on
// this rank with the kernel's reason. The ranks are processes, so that each has its own calls.
#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <string.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "shardwire/communicator.h"
#include "shardwire/stores.h"
#include "tests/backend/faults/system_calls.h"
#include "tests/support/fork_ranks.h"

namespace shardwire::testing {
namespace {

constexpr int kRanks = 3;
constexpr Rank kFaulty = 1;
// Far below the timeout of the group: an error comes by itself, and not by the timeout.
constexpr auto kInTime = std::chrono::seconds(20);

enum class When { kJoin, kOperations };
enum class Expected {
  kRightBytes,
  kError,   // of all ranks
  kEither,  // of all ranks alike: another way may serve
};

struct Fault {
  const char* name;
  SystemCall call;
  CallFault fault;
  When when;
  Expected expected;
  const char* transports;  // of kTransports
};

const std::vector<Fault> kFaults = {
    {"ShortSends", SystemCall::kSend, {.error = 0, .percent = 70}, When::kJoin, Expected::kRightBytes, "tcp tls"},
    {"ShortReceives", SystemCall::kReceive, {.error = 0, .percent = 70}, When::kJoin, Expected::kRightBytes, "tcp tls"},
    {"SendsThatWouldBlock", SystemCall::kSend, {EAGAIN, 80}, When::kOperations, Expected::kRightBytes, "tcp tls"},
    {"ReceivesThatWouldBlock", SystemCall::kReceive, {EAGAIN, 80}, When::kOperations, Expected::kRightBytes, "tcp tls"},
    {"InterruptedSends", SystemCall::kSend, {EINTR, 50}, When::kJoin, Expected::kRightBytes, "tcp tls"},
    {"InterruptedReceives", SystemCall::kReceive, {EINTR, 50}, When::kJoin, Expected::kRightBytes, "tcp tls"},
    {"InterruptedEpollWaits", SystemCall::kEpollWait, {EINTR, 50}, When::kJoin, Expected::kRightBytes, "shm tcp tls"},
    {"NoRoomForSends", SystemCall::kSend, {ENOBUFS, 100, 3}, When::kOperations, Expected::kEither, "tcp tls"},
    {"ResetSends", SystemCall::kSend, {ECONNRESET}, When::kOperations, Expected::kError, "tcp tls"},
    {"BrokenPipes", SystemCall::kSend, {EPIPE}, When::kOperations, Expected::kError, "tcp tls"},
    {"ResetReceives", SystemCall::kReceive, {ECONNRESET}, When::kOperations, Expected::kError, "tcp tls"},
    {"LostHosts", SystemCall::kReceive, {ETIMEDOUT}, When::kOperations, Expected::kError, "tcp tls"},
    {"NoMemoryForReceives", SystemCall::kReceive, {ENOMEM}, When::kOperations, Expected::kError, "tcp tls"},
    {"NoSharedMemory", SystemCall::kMemfdCreate, {ENOMEM}, When::kJoin, Expected::kError, "shm"},
    {"NoDescriptorForMemory", SystemCall::kMemfdCreate, {EMFILE}, When::kJoin, Expected::kError, "shm"},
    {"NoSpaceForMemory", SystemCall::kFtruncate, {ENOSPC}, When::kJoin, Expected::kError, "shm"},
    {"NoAddressesForMemory", SystemCall::kMapFile, {ENOMEM}, When::kJoin, Expected::kError, "shm"},
    {"NoSockets", SystemCall::kSocket, {EMFILE}, When::kJoin, Expected::kError, "shm tcp"},
    {"NoSocketsInTheSystem", SystemCall::kSocket, {ENFILE}, When::kJoin, Expected::kError, "shm tcp"},
    {"SomeSocketsFail", SystemCall::kSocket, {EMFILE, 30}, When::kJoin, Expected::kEither, "shm tcp"},
    {"AcceptsWithoutDescriptors", SystemCall::kAccept, {EMFILE, 100, 5}, When::kJoin, Expected::kEither, "shm tcp"},
    {"AbortedAccepts", SystemCall::kAccept, {ECONNABORTED, 100, 2}, When::kJoin, Expected::kRightBytes, "shm tcp"},
    {"NoEventfd", SystemCall::kEventfd, {EMFILE}, When::kJoin, Expected::kError, "shm tcp"},
    {"NoThreads", SystemCall::kThread, {EAGAIN}, When::kJoin, Expected::kError, "shm tcp"},
    {"NoSecondThread", SystemCall::kThread, {.error = EAGAIN, .after = 1}, When::kJoin, Expected::kError, "shm tcp"},
};

Options optionsOf(const std::string& transport) {
  Options options;
  options.transports = transport == "shm" ? "shm" : "tcp";
  options.tcpTls = transport == "tls" ? TcpTls::kOn : TcpTls::kOff;
  options.jobToken = "a token";
  options.timeout = std::chrono::seconds(40);
  options.ringBytes = std::size_t{64} << 10;
  return options;
}

Status sumIsRight(Communicator& group, std::size_t size) {
  std::vector<std::int64_t> values(size);
  for (std::size_t i = 0; i < size; ++i) {
    values[i] = static_cast<std::int64_t>(i) * (group.rank() + 1);
  }
  auto work =
      group.allReduce(TensorView::contiguous(values.data(), DType::kInt64, {std::ssize(values)}), ReduceOp::kSum);
  SW_RETURN_IF_ERROR(work.status());
  SW_RETURN_IF_ERROR((*work)->wait());
  for (std::size_t i = 0; i < size; ++i) {
    EXPECT_EQ(values[i], static_cast<std::int64_t>(i) * 6) << "element " << i;
    if (::testing::Test::HasFailure()) {
      break;
    }
  }
  return Status::ok();
}

// Joins, and sums short and long tensors. The first error.
Status work(Store& store, Rank rank, const std::string& transport, const Fault& fault) {
  const auto isFaultyAt = [&](When when) { return rank == kFaulty && fault.when == when; };
  if (isFaultyAt(When::kJoin)) {
    failCalls(fault.call, fault.fault);
  }
  auto group = Communicator::create(store, rank, kRanks, optionsOf(transport), "faults");
  SW_RETURN_IF_ERROR(group.status());
  SW_RETURN_IF_ERROR(sumIsRight(**group, 10));
  if (isFaultyAt(When::kOperations)) {
    failCalls(fault.call, fault.fault);
  }
  for (int round = 0; round < 4; ++round) {
    SW_RETURN_IF_ERROR(sumIsRight(**group, 20));
    SW_RETURN_IF_ERROR(sumIsRight(**group, 150'000));
  }
  auto last = (*group)->barrier();
  SW_RETURN_IF_ERROR(last.status());
  return (*last)->wait();
}

void check(const Status& status, Rank rank, const Fault& fault) {
  SCOPED_TRACE(fmt::format("rank {}: {}: {}", rank, statusCodeName(status.code()), status.message()));
  if (fault.expected == Expected::kRightBytes) {
    EXPECT_TRUE(status.isOk());
  } else if (fault.expected == Expected::kError) {
    ASSERT_FALSE(status.isOk());
  }
  if (status.isOk()) {
    return;
  }
  EXPECT_NE(status.code(), StatusCode::kInternal);
  if (rank != kFaulty || fault.when == When::kJoin) {
    EXPECT_NE(status.message().find(fmt::format("rank {}", kFaulty)), std::string::npos);
  }
  if (rank == kFaulty) {
    EXPECT_NE(status.message().find(::strerror(fault.fault.error)), std::string::npos);
  }
}

// Appends a line for docs/faults.md to the file named by SHARDWIRE_FAULTS_REPORT (bench/system_calls.py).
void report(const Status& status, Rank rank, const std::string& transport, const Fault& fault) {
  const char* const path = std::getenv("SHARDWIRE_FAULTS_REPORT");
  if (path == nullptr) {
    return;
  }
  constexpr std::array<const char*, static_cast<std::size_t>(SystemCall::kCount)> kNames = {
      "sendmsg, send", "recvmsg, recv", "epoll_wait", "memfd_create", "ftruncate",
      "mmap",          "socket",        "accept4",    "eventfd",      "pthread_create"};
  const CallFault& how = fault.fault;
  const bool isLimited = how.most != CallFault{}.most;
  const std::string line =
      fmt::format("{}\t{}\t{}\t{}\t{}\t{}\t{}\n", kNames[static_cast<std::size_t>(fault.call)],
                  how.error == 0 ? "cut short" : ::strerrorname_np(how.error),
                  how.after > 0 ? "all but the first"
                  : isLimited   ? fmt::format("first {}", how.most)
                                : fmt::format("{} %", how.percent),
                  fault.when == When::kJoin ? "from the making of the group on" : "in the operations", transport, rank,
                  status.isOk() ? "success" : statusCodeName(status.code()));
  const int file = ::open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  EXPECT_EQ(::write(file, line.data(), line.size()), std::ssize(line)) << path;
  ::close(file);
}

class SystemFaults : public ::testing::TestWithParam<std::pair<Fault, std::string>> {};

TEST_P(SystemFaults, BringRightBytesOrTheNamedError) {
  const auto& [fault, transport] = GetParam();
  MemoryStore store;
  runRanksAsProcesses(kRanks, [&](Rank rank) {
    const auto begin = Clock::now();
    const Status status = work(store, rank, transport, fault);
    EXPECT_LT(Clock::now() - begin, kInTime);
    check(status, rank, fault);
    report(status, rank, transport, fault);
    EXPECT_TRUE(rank != kFaulty || numFailed(fault.call) > 0) << "no call failed";
  });
}

std::vector<std::pair<Fault, std::string>> allCases() {
  std::vector<std::pair<Fault, std::string>> cases;
  for (const Fault& fault : kFaults) {
    for (const char* const transport : {"shm", "tcp", "tls"}) {
      if (std::string(fault.transports).find(transport) != std::string::npos) {
        cases.emplace_back(fault, transport);
      }
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, SystemFaults, ::testing::ValuesIn(allCases()), [](const auto& each) {
  return fmt::format("{}_{}", each.param.first.name, each.param.second);
});

}  // namespace
}  // namespace shardwire::testing

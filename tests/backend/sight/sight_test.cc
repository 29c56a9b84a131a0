// Tests the status of a process's groups: as JSON, over the socket, in torch's form, and in a file when a group fails.
// Ranks are threads.
#include <gtest/gtest.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "backend/base/fd.h"
#include "backend/exec/engine.h"
#include "backend/exec/process_engines.h"
#include "backend/sight/pickle.h"
#include "backend/sight/status_json.h"
#include "backend/sight/status_server.h"
#include "backend/sight/trace.h"
#include "tests/backend/thread_group.h"
#include "tests/support/fork_ranks.h"

namespace shardwire::internal {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

Options recorded(int numOps = 16) {
  Options options = testOptions();
  options.recordedOps = numOps;
  return options;
}

Json groupOf(const Json& status, Rank rank) {
  for (const Json& group : status["groups"]) {
    if (group["rank"] == rank) {
      return group;
    }
  }
  ADD_FAILURE() << "rank " << rank << " is not in " << status;
  return {};
}

bool hasEnded(const Json& group) {
  return !group["latest"].empty() && group["latest"].back()["result"] == "ok";
}

Json awaitStatus(const std::function<bool(const Json&)>& isThere) {
  const Deadline until = Clock::now() + std::chrono::seconds(10);
  Json status;
  do {
    status = Json::parse(statusAsJson());
  } while (!isThere(status) && Clock::now() < until);
  EXPECT_TRUE(isThere(status)) << status;
  return status;
}

class Folder {
 public:
  Folder() {
    char name[] = "/tmp/shardwire-sight-XXXXXX";
    path_ = ::mkdtemp(name);
    ::setenv("XDG_RUNTIME_DIR", path_.c_str(), 1);
  }
  ~Folder() {
    stopServingStatus();
    fs::remove_all(path_);
    ::unsetenv("XDG_RUNTIME_DIR");
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Returns the answer of the socket; nothing when no process listens there.
std::optional<std::string> ask(const std::string& path) {
  const Fd socket(::socket(AF_UNIX, SOCK_STREAM, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return std::nullopt;
  }
  std::string text;
  char part[4096];
  for (ssize_t n = 0; (n = ::read(socket.get(), part, sizeof(part))) > 0;) {
    text.append(part, static_cast<std::size_t>(n));
  }
  return text;
}

TEST(Status, StatesWhoWaitsForWhomAndWhatWasLast) {
  std::atomic<int> seen{0};
  withGroup(
      2,
      [&](Communicator& group) {
        std::vector<std::int64_t> values(5);
        expectOk(group.broadcast(viewOf(values), 0));
        if (group.rank() == 1) {
          await(seen, 1);
        }
        auto work = group.allReduce(viewOf(values), ReduceOp::kSum);
        if (group.rank() == 0) {
          // Rank 1 may still be joining the group, or in the broadcast: the root waits for neither.
          const Json status = awaitStatus([](const Json& each) {
            return each["groups"].size() == 2 && !groupOf(each, 0)["in_flight"].empty() && hasEnded(groupOf(each, 1));
          });
          const Json mine = groupOf(status, 0);
          const Json other = groupOf(status, 1);
          EXPECT_EQ(status["pid"], ::getpid());
          EXPECT_EQ(mine["in_flight"][0]["operation"], "all_reduce(int64[5], sum)");
          EXPECT_EQ(mine["in_flight"][0]["waits_for"], Json::array({1}));
          EXPECT_EQ(mine["in_flight"][0]["why"], "rank 1 did not arrive");
          EXPECT_EQ(mine["id"], other["id"]);
          EXPECT_TRUE(other["in_flight"].empty());
          EXPECT_EQ(other["latest"].back()["operation"], "broadcast(int64[5], root 0)") << other;
          EXPECT_EQ(other["latest"].back()["result"], "ok");
          EXPECT_EQ(mine["peers"][1]["sent_bytes"], 40);
          EXPECT_EQ(other["peers"][0]["received_bytes"], 40);
          EXPECT_EQ(mine["peers"][1]["pid"], ::getpid());
          EXPECT_FALSE(mine["peers"][1]["transport"].get<std::string>().empty());
          seen = 1;
        }
        expectOk(work);
      },
      recorded());
}

// A large all_reduce has two parts, and also waits for ranks that have arrived. Users want to know the call, and the
// ranks that did not arrive.
TEST(Status, NumbersCallsAndNamesWhoDidNotCome) {
  std::atomic<int> arrived{0};
  std::atomic<int> seen{0};
  withGroup(
      3,
      [&](Communicator& group) {
        std::vector<std::int64_t> values(1 << 18);
        for (int i = 0; i < 3; ++i) {
          expectOk(group.allReduce(viewOf(values), ReduceOp::kSum));
        }
        if (group.rank() == 1) {
          await(seen, 1);
        }
        auto work = group.allReduce(viewOf(values), ReduceOp::kSum);
        ++arrived;
        if (group.rank() == 0) {
          await(arrived, 2);
          const Json status = awaitStatus([](const Json& each) {
            const Json mine = groupOf(each, 0);
            return mine["in_flight"].size() == 1 && mine["in_flight"][0]["waits_for"] == Json::array({1});
          });
          const Json mine = groupOf(status, 0);
          EXPECT_EQ(mine["in_flight"][0]["seq"], 4);
          EXPECT_EQ(mine["in_flight"][0]["why"], "rank 1 did not arrive; rank 2 arrived but did not finish") << mine;
          EXPECT_EQ(mine["sequence"], 4);
          EXPECT_EQ(mine["latest"].back()["seq"], 4);
          EXPECT_EQ(groupOf(status, 1)["sequence"], 3);
          seen = 1;
        }
        expectOk(work);
      },
      recorded());
}

TEST(Status, CountsACompilationOnce) {
  withGroup(
      2,
      [&](Communicator& group) {
        expectOk(group.barrier());
        LocalSpec spec;
        spec.whoPlans = WhoPlans::kRank0;  // which takes three exchanges
        ASSERT_TRUE(group.compileOp(spec).isOk());
        expectOk(group.barrier());
        const Json mine = groupOf(Json::parse(statusAsJson()), group.rank());
        EXPECT_EQ(mine["sequence"], 3) << mine;
        EXPECT_EQ(mine["latest"].size(), 3u) << mine;
      },
      recorded());
}

TEST(Status, WaitsForABusyGroupForAMomentOnly) {
  withGroup(
      2,
      [&](Communicator& group) {
        std::vector<std::int64_t> values(5);
        if (group.rank() == 0) {
          auto recv = group.recv(viewOf(values), 1, 3);
          for (const auto& engine : processEngines()) {
            if (engine->facts().rank != 0) {
              continue;
            }
            // Asked while this thread holds the lock for as long as the answer takes.
            engine->locked([&](const GroupState&) {
              std::string text;
              std::thread asker([&] { text = statusAsJson(std::chrono::milliseconds(5)); });
              asker.join();
              const Json mine = groupOf(Json::parse(text), 0);
              EXPECT_EQ(mine["busy"], true);
              EXPECT_EQ(mine["in_flight"][0]["operation"], "recv(int64[5], from rank 1, tag 3)") << mine;
            });
          }
          EXPECT_EQ(groupOf(awaitStatus([](const Json&) { return true; }), 0)["busy"], false);
          expectOk(group.barrier());
          expectOk(recv);
        } else {
          expectOk(group.barrier());
          expectOk(group.send(viewOf(values), 0, 3));
        }
      },
      recorded());
}

TEST(Status, WithoutARecorderStatesTheLastCallWithoutATime) {
  withGroup(
      2,
      [&](Communicator& group) {
        expectOk(group.barrier());
        const Json mine = groupOf(Json::parse(statusAsJson()), group.rank());
        EXPECT_EQ(mine["recorded"], false);
        EXPECT_TRUE(mine["latest"].empty());
        EXPECT_EQ(mine["last_call"], "barrier");
      },
      recorded(0));
}

TEST(StatusSocket, AnswersItsUserOnlyAndLeavesNothingBehind) {
  const Folder folder;
  fs::create_directory(folder.path() + "/shardwire");
  fs::permissions(folder.path() + "/shardwire", fs::perms::owner_all);
  const std::string stale = folder.path() + "/shardwire/1.sock";
  {
    const Fd dead(::socket(AF_UNIX, SOCK_STREAM, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, stale.c_str(), sizeof(address.sun_path) - 1);
    ASSERT_EQ(::bind(dead.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  }
  const Result<std::string> path = serveStatus();
  ASSERT_TRUE(path.isOk()) << path.status().message();
  EXPECT_EQ(*serveStatus(), *path);
  EXPECT_FALSE(fs::exists(stale));
  struct stat found {};
  ASSERT_EQ(::stat(path->c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600u);
  for (int i = 0; i < 3; ++i) {
    const auto text = ask(*path);
    ASSERT_TRUE(text.has_value());
    EXPECT_EQ(Json::parse(*text)["pid"], ::getpid());
  }
  stopServingStatus();
  EXPECT_FALSE(fs::exists(*path));
  EXPECT_FALSE(ask(*path).has_value());
  ASSERT_TRUE(serveStatus().isOk());  // and again
}

TEST(StatusSocket, WithoutAThreadThereIsAnErrorAndNoSocket) {
  const Folder folder;
  testing::runRanksAsProcesses(1, [&](Rank) {
    pthread_attr_t attributes;
    ASSERT_EQ(::pthread_attr_init(&attributes), 0);
    ASSERT_EQ(::pthread_attr_setstacksize(&attributes, std::size_t{1} << 50), 0);  // more than there are addresses
    ASSERT_EQ(::pthread_setattr_default_np(&attributes), 0);
    const Result<std::string> path = serveStatus();
    ASSERT_FALSE(path.isOk());
    EXPECT_EQ(path.status().code(), StatusCode::kSystem);
    EXPECT_TRUE(fs::is_empty(folder.path() + "/shardwire"));
  });
}

Fd dial(const std::string& path) {
  Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  return ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ? std::move(socket)
                                                                                                    : Fd();
}

// The answer is longer than a socket holds.
TEST(StatusSocket, WhoDoesNotReadKeepsNobodyWaiting) {
  const Folder folder;
  withGroup(
      1,
      [&](Communicator& group) {
        LocalSpec spec;
        spec.name = std::string(20000, 'n');
        for (int i = 0; i < 32; ++i) {
          ASSERT_TRUE(group.compileOp(spec).isOk());
        }
        const Result<std::string> path = serveStatus();
        ASSERT_TRUE(path.isOk());
        std::vector<Fd> silent;
        for (int i = 0; i < 10; ++i) {
          silent.push_back(dial(*path));
          ASSERT_TRUE(silent.back().isOpen());
        }
        const auto begin = Clock::now();
        const auto text = ask(*path);
        const auto waited = Clock::now() - begin;
        ASSERT_TRUE(text.has_value());
        EXPECT_GT(text->size(), 500000u);
        EXPECT_EQ(Json::parse(*text)["groups"].size(), 1u);
        EXPECT_LT(waited, std::chrono::seconds(18));  // one after the other: 20 s
      },
      recorded(32));
}

// A client that asks while there is no descriptor for an answer stays in the backlog, and poll() returns at once.
TEST(StatusSocket, SleepsWhileThereIsNoDescriptorForAnAnswer) {
  const pid_t child = ::fork();
  if (child == 0) {
    const Folder folder;
    const Result<std::string> path = serveStatus();
    const Fd first = path.isOk() ? dial(*path) : Fd();
    char byte = 0;
    while (::read(first.get(), &byte, 1) > 0) {
    }
    std::vector<Fd> held;
    rlimit few{};
    (void)::getrlimit(RLIMIT_NOFILE, &few);
    few.rlim_cur = 64;
    (void)::setrlimit(RLIMIT_NOFILE, &few);
    Fd client(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    for (int fd = ::dup(0); fd >= 0; fd = ::dup(0)) {
      held.emplace_back(fd);
    }
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path->c_str(), sizeof(address.sun_path) - 1);
    const bool isDialled = ::connect(client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
    const std::clock_t before = std::clock();
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    const double busy = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
    held.clear();
    const bool isAnswered = ::read(client.get(), &byte, 1) == 1;  // as soon as there is one
    ::_exit(!isDialled ? 2 : !isAnswered ? 3 : busy > 0.05 ? 4 : 0);
  }
  int ended = -1;
  ASSERT_EQ(::waitpid(child, &ended, 0), child);
  EXPECT_TRUE(WIFEXITED(ended) && WEXITSTATUS(ended) == 0) << "wait status " << ended;
}

// Each process removes the sockets of killed processes at its start: a socket that another process is just making does
// not count.
TEST(StatusSocket, ProcessesThatBeginAtOnceLeaveEachOthersSocket) {
  const Folder folder;
  std::vector<pid_t> children;
  for (int i = 0; i < 3; ++i) {
    children.push_back(::fork());
    if (children.back() == 0) {
      bool ok = true;
      for (int round = 0; ok && round < 200; ++round) {
        const Result<std::string> path = serveStatus();
        ok = path.isOk() && ask(*path).has_value();
        stopServingStatus();
      }
      ::_exit(ok ? 0 : 1);
    }
  }
  for (const pid_t child : children) {
    int ended = -1;
    ASSERT_EQ(::waitpid(child, &ended, 0), child);
    EXPECT_TRUE(WIFEXITED(ended) && WEXITSTATUS(ended) == 0) << "wait status " << ended;
  }
  EXPECT_TRUE(fs::is_empty(folder.path() + "/shardwire"));
}

TEST(StatusSocket, RefusesAFolderThatOthersCanEnter) {
  const Folder folder;
  fs::create_directory(folder.path() + "/shardwire");
  fs::permissions(folder.path() + "/shardwire", fs::perms::all);
  const auto path = serveStatus();
  EXPECT_EQ(path.status().code(), StatusCode::kSystem);
  EXPECT_NE(path.status().message().find("mode 0700"), std::string::npos) << path.status().message();
  // The status is not served then, and the group works all the same.
  Options options = testOptions();
  options.serveStatus = true;
  withGroup(
      2, [](Communicator& group) { expectOk(group.barrier()); }, options);
}

TEST(Trace, HasOneEntryPerOperationWithTheSameNumberOnAllRanks) {
  withGroup(
      2,
      [&](Communicator& group) {
        std::vector<std::int64_t> values(6);
        const auto view = TensorView::contiguous(values.data(), DType::kInt64, {2, 3});
        std::vector<std::int64_t> all(12);
        const std::array<TensorView, 2> pieces = {TensorView::contiguous(all.data(), DType::kInt64, {2, 3}),
                                                  TensorView::contiguous(all.data() + 6, DType::kInt64, {2, 3})};
        expectOk(group.allReduce(view, ReduceOp::kSum));
        expectOk(group.allGather(view, pieces));
        if (group.rank() == 0) {
          expectOk(group.send(view, 1, 7));
        } else {
          expectOk(group.recv(view, 0, 7));
        }
        expectOk(group.barrier());
        if (group.rank() != 0) {
          return;
        }
        const Json trace = Json::parse(traceAsJson());
        EXPECT_EQ(trace["version"], "2.10");
        std::map<std::string, std::vector<Json>> byName;
        for (const Json& entry : trace["entries"]) {
          byName[entry["profiling_name"].get<std::string>()].push_back(entry);
        }
        for (const char* name : {"nccl:all_reduce", "nccl:all_gather", "nccl:barrier"}) {
          ASSERT_GE(byName[name].size(), 2u) << trace;  // the other rank may be in the last barrier already
          EXPECT_EQ(byName[name][0]["collective_seq_id"], byName[name][1]["collective_seq_id"]);
        }
        const Json& gather = byName["nccl:all_gather"][0];
        EXPECT_EQ(gather["input_sizes"], Json::parse("[[2, 3]]"));
        EXPECT_EQ(gather["output_sizes"], Json::parse("[[2, 2, 3]]"));
        EXPECT_EQ(gather["input_dtypes"], Json::parse("[\"Long\"]"));
        EXPECT_EQ(gather["state"], "completed");
        EXPECT_EQ(gather["backend"], "shardwire");
        ASSERT_EQ(byName["nccl:send 0->1"].size(), 1u) << trace;
        ASSERT_EQ(byName["nccl:recv 1<-0"].size(), 1u) << trace;
        const Json& sent = byName["nccl:send 0->1"][0];
        EXPECT_EQ(sent["p2p_seq_id"], byName["nccl:recv 1<-0"][0]["p2p_seq_id"]);
        EXPECT_EQ(trace["pg_config"][sent["process_group"][0].get<std::string>()]["ranks"], "[0, 1]");
      },
      recorded());
}

TEST(Trace, IsWrittenWhenARankDoesNotCome) {
  const Folder folder;
  Options options = recorded(-1);  // only the option of the file enables recording
  options.recordFile = folder.path() + "/trace_";
  std::atomic<int> failed{0};
  withGroup(
      2,
      [&](Communicator& group) {
        if (group.rank() == 1) {
          await(failed, 1);
          return;
        }
        std::vector<std::int64_t> values(5);
        auto work = group.allReduce(viewOf(values), ReduceOp::kSum, {.timeout = std::chrono::milliseconds(200)});
        ASSERT_TRUE(work.isOk());
        EXPECT_EQ((*work)->wait().code(), StatusCode::kTimeout);
        std::ifstream file(options.recordFile + "0", std::ios::binary);  // before the failure is reported
        const std::string bytes((std::istreambuf_iterator<char>(file)), {});
        EXPECT_NE(bytes.find("nccl:all_reduce"), std::string::npos);
        failed = 1;
      },
      options);
}

// When a rank dies, all groups with the rank fail at once, and write one file.
TEST(Trace, IsWholeWhenGroupsFailTogether) {
  const Folder folder;
  Options options = recorded(-1);
  options.recordFile = folder.path() + "/trace_";
  const std::string victim = folder.path() + "/victim";
  std::ofstream(victim) << "mine";
  ASSERT_EQ(::symlink(victim.c_str(), (options.recordFile + "0.part").c_str()),
            0);  // by another user, where all users share the folder
  ASSERT_EQ(::symlink(victim.c_str(), (options.recordFile + "0").c_str()), 0);
  ::testing::internal::CaptureStderr();
  withGroup(
      1,
      [&](Communicator& first) {
        withGroup(
            1,
            [&](Communicator& second) {
              std::vector<std::thread> threads;
              for (const auto& engine : processEngines()) {
                threads.emplace_back([engine] { engine->abort({StatusCode::kInternal, "the test says so"}); });
              }
              for (std::thread& thread : threads) {
                thread.join();
              }
              EXPECT_FALSE(first.barrier().isOk());
              EXPECT_FALSE(second.barrier().isOk());
            },
            options);
      },
      options);
  const std::string lines = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(lines.find("could not be written"), std::string::npos) << lines;
  std::string kept;
  std::ifstream(victim) >> kept;
  EXPECT_EQ(kept, "mine");
  struct stat found {};
  ASSERT_EQ(::lstat((options.recordFile + "0").c_str(), &found), 0);
  EXPECT_TRUE(S_ISREG(found.st_mode));
}

// As a group of two jobs, whose ranks are no ranks of this job.
TEST(Trace, OfTheFileHasNoGroupWithoutAFile) {
  const Folder folder;
  Options options = recorded();
  MemoryStore store;
  auto other = Communicator::create(store, 0, 1, options, "without a file");
  ASSERT_TRUE(other.isOk());
  expectOk((*other)->barrier());
  options.recordFile = folder.path() + "/trace_";
  withGroup(
      1,
      [&](Communicator& group) {
        expectOk(group.barrier());
        for (const auto& engine : processEngines()) {
          engine->abort({StatusCode::kInternal, "the test says so"});
        }
      },
      options);
  std::ifstream file(options.recordFile + "0", std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  EXPECT_NE(bytes.find("nccl:barrier"), std::string::npos);
  EXPECT_EQ(bytes.find("without a file"), std::string::npos);
}

TEST(Trace, SaysWhereItCannotBeWritten) {
  Options options = recorded(-1);
  options.recordFile = "/nowhere/trace_";
  ::testing::internal::CaptureStderr();
  withGroup(
      1,
      [&](Communicator& group) {
        for (const auto& engine : processEngines()) {
          engine->abort({StatusCode::kInternal, "the test says so"});
        }
        EXPECT_FALSE(group.barrier().isOk());
      },
      options);
  const std::string lines = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(lines.find("could not be written to /nowhere/trace_0"), std::string::npos) << lines;
}

TEST(Pickle, IsPythons) {
  const std::string bytes =
      pickled({{"a", Json::array({1, -2, "x", true, false, nullptr, 1.5})}, {"b", Json::object()}});
  using namespace std::string_literals;
  EXPECT_EQ(bytes, "\x80\x02}(X\x01\0\0\0a]("s + "\x8a\x08\x01\0\0\0\0\0\0\0"s +
                       "\x8a\x08\xfe\xff\xff\xff\xff\xff\xff\xff"s + "X\x01\0\0\0x"s + "\x88\x89N"s +
                       "G\x3f\xf8\0\0\0\0\0\0"s + "eX\x01\0\0\0b}(uu."s);
}

TEST(Pickle, HasNoBytesThatAreNotUtf8) {
  using namespace std::string_literals;
  EXPECT_EQ(pickled("\xc3\xa4"s), "\x80\x02X\x02\0\0\0\xc3\xa4."s);
  EXPECT_EQ(pickled("a\xff"s), "\x80\x02X\x04\0\0\0a\xef\xbf\xbd."s);
  EXPECT_EQ(pickled(Json::object({{"\xff"s, 0.0}})), "\x80\x02}(X\x03\0\0\0\xef\xbf\xbdG\0\0\0\0\0\0\0\0u."s);
}

}  // namespace
}  // namespace shardwire::internal

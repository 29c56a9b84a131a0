// Runs the ranks of a test as threads or as processes. For threads: start all, wait until the limit, and collect what
// each threw. For processes: fork one child for each rank, run the function there, and send the failures of the child
// through a pipe. The parent gathers all pipes until the limit, kills what is left, and judges how each child ended.
#include "tests/support/fork_ranks.h"

#include <errno.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <exception>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "backend/base/fd.h"

#if defined(__SANITIZE_THREAD__)
// A forked rank leaves by _exit(), which skips the sanitizer's exit code for findings: so the rank stops at the first
// finding.
extern "C" const char* __tsan_default_options() {
  return "halt_on_error=1:die_after_fork=0";
}
#endif

namespace shardwire::testing {
namespace {

std::string currentTest() {
  const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
  return info == nullptr ? "a test" : fmt::format("{}.{}", info->test_suite_name(), info->name());
}

// The exception's text; empty when there was none.
std::string runRank(const RankFunction& function, Rank rank) {
  try {
    function(rank);
    return "";
  } catch (const std::exception& error) {
    return fmt::format("rank {} threw: {}", rank, error.what());
  } catch (...) {
    return fmt::format("rank {} threw something that is no std::exception", rank);
  }
}

void writeAll(int fd, const std::string& text) {
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t written = ::write(fd, text.data() + at, text.size() - at);
    if (written <= 0) {
      return;
    }
    at += static_cast<std::size_t>(written);
  }
}

// Sends a child's failed expectations to the parent.
class FailureListener final : public ::testing::EmptyTestEventListener {
 public:
  FailureListener(int fd, Rank rank) : fd_(fd), rank_(rank) {}
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (result.failed()) {
      writeAll(fd_, fmt::format("rank {}: {}:{}: {}\n", rank_, result.file_name() == nullptr ? "?" : result.file_name(),
                                result.line_number(), result.message()));
    }
  }

 private:
  int fd_;
  Rank rank_;
};

[[noreturn]] void runChild(const RankFunction& function, Rank rank, int failures) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  delete listeners.Release(listeners.default_result_printer());  // the parent prints
  listeners.Append(new FailureListener(failures, rank));
  const std::string thrown = runRank(function, rank);
  writeAll(failures, thrown);
  ::fflush(nullptr);
  ::_exit(thrown.empty() && !::testing::Test::HasFailure() ? 0 : 1);
}

struct Child {
  pid_t pid = -1;
  internal::Fd failures;  // end of file once the child (and every process that the child forked) is gone
  std::string text;
  bool overLimit = false;
};

// Reads the children's reports until all have closed, or the deadline; then the late children are killed.
void gather(std::vector<Child>& children, Deadline deadline) {
  while (true) {
    std::vector<pollfd> entries;
    std::vector<Child*> open;
    for (Child& child : children) {
      if (child.failures.isOpen()) {
        entries.push_back({child.failures.get(), POLLIN, 0});
        open.push_back(&child);
      }
    }
    if (open.empty()) {
      return;
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) {
      for (Child* child : open) {
        child->overLimit = true;
        ::kill(child->pid, SIGKILL);
        child->failures.reset();
      }
      return;
    }
    ::poll(entries.data(), entries.size(), static_cast<int>(left));
    for (std::size_t i = 0; i < open.size(); ++i) {
      char buffer[4096];
      const ssize_t size = entries[i].revents == 0 ? -1 : ::read(entries[i].fd, buffer, sizeof(buffer));
      if (size > 0) {
        open[i]->text.append(buffer, static_cast<std::size_t>(size));
      } else if (entries[i].revents != 0 && (size == 0 || errno != EINTR)) {
        open[i]->failures.reset();
      }
    }
  }
}

void judge(const Child& child, Rank rank, bool mayDie, Duration limit) {
  int status = 0;
  while (::waitpid(child.pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (child.overLimit) {
    ADD_FAILURE() << "rank " << rank << " was still running after " << std::chrono::duration<double>(limit).count()
                  << " s\n"
                  << child.text;
  } else if (WIFSIGNALED(status) && !(mayDie && WTERMSIG(status) == SIGKILL)) {
    ADD_FAILURE() << "rank " << rank << " was killed by signal " << WTERMSIG(status) << "\n" << child.text;
  } else if (!child.text.empty() || (WIFEXITED(status) && WEXITSTATUS(status) != 0)) {
    ADD_FAILURE() << "rank " << rank << " failed (exit status " << (WIFEXITED(status) ? WEXITSTATUS(status) : -1)
                  << ")\n"
                  << child.text;
  }
}

// False also while a thread comes or goes: the caller looks again.
bool areAllThreadsStopped(pid_t process) {
  std::error_code error;
  std::size_t threads = 0;
  std::filesystem::directory_iterator entries(fmt::format("/proc/{}/task", process), error);
  for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    std::ifstream file(entries->path() / "stat");
    std::string line;
    std::getline(file, line);
    if (line.find(") T ") == std::string::npos) {
      return false;
    }
    ++threads;
  }
  return !error && threads > 0;
}

}  // namespace

void runRanksAsThreads(int numRanks, const RankFunction& function, Duration limit) {
  std::mutex mutex;
  std::condition_variable ended;
  std::set<Rank> running;
  std::vector<std::string> failures;
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < numRanks; ++rank) {
    running.insert(rank);
  }
  for (Rank rank = 0; rank < numRanks; ++rank) {
    threads.emplace_back([&, rank] {
      const std::string thrown = runRank(function, rank);
      const std::lock_guard lock(mutex);
      if (!thrown.empty()) {
        failures.push_back(thrown);
      }
      running.erase(rank);
      ended.notify_all();
    });
  }
  {
    std::unique_lock lock(mutex);
    if (!ended.wait_for(lock, limit, [&] { return running.empty(); })) {
      fmt::print(stderr, "{}: {} of {} ranks were still running after {} s, the first is rank {}\n", currentTest(),
                 running.size(), numRanks, std::chrono::duration<double>(limit).count(), *running.begin());
      ::fflush(nullptr);
      ::_exit(1);
    }
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const std::string& failure : failures) {
    ADD_FAILURE() << failure;
  }
}

void runRanksAsProcesses(int numRanks, const RankFunction& function, Duration limit, const std::set<Rank>& mayDie) {
  ::fflush(nullptr);  // otherwise every child writes the bytes buffered here
  std::vector<Child> children(static_cast<std::size_t>(numRanks));
  for (Rank rank = 0; rank < numRanks; ++rank) {
    Child& child = children[static_cast<std::size_t>(rank)];
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    child.failures.reset(ends[0]);
    child.pid = ::fork();
    if (child.pid == 0) {
      for (Child& other : children) {
        other.failures.reset();
      }
      runChild(function, rank, ends[1]);
    }
    ::close(ends[1]);
    if (child.pid < 0) {
      child.failures.reset();
      ADD_FAILURE() << "fork: errno " << errno;
    }
  }
  gather(children, Clock::now() + limit);
  for (Rank rank = 0; rank < numRanks; ++rank) {
    const Child& child = children[static_cast<std::size_t>(rank)];
    if (child.pid > 0) {
      judge(child, rank, mayDie.contains(rank), limit);
    }
  }
}

bool hasCrossMemoryReads() {
  char from = 1, to = 0;
  const iovec local{&to, 1}, remote{&from, 1};
  return ::process_vm_readv(::getpid(), &local, 1, &remote, 1, 0) == 1 || errno != ENOSYS;
}

void awaitStopped(pid_t process) {
  for (const auto start = Clock::now(); !areAllThreadsStopped(process);
       std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
    ASSERT_LT(Clock::now() - start, std::chrono::seconds(20)) << "process " << process << " does not stop";
  }
}

}  // namespace shardwire::testing

// instance() looks for an MPI job (the launcher's variables, or an initialised MPI library in this process) and loads
// the module. prepare() initialises MPI if needed, and checks the thread level. pairWith() makes the communicator of a
// pair of processes once; concurrent callers wait for the first. Calls that wait for other ranks run on a separate
// thread (Call), since MPI has no deadlines. finaliseAtExit() finalises MPI at the end of the process, unless a
// peer died.
#include "backend/transport/mpi/mpi_process.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "backend/base/interruptible_wait.h"
#include "backend/base/log.h"
#include "backend/base/system_error.h"

namespace shardwire::internal {
namespace {

constexpr const char* kModuleName = "libshardwire_mpi.so";
// MPI_Finalize waits for all ranks. The wait is limited, since a dead rank would keep this process for ever.
constexpr Duration kFinaliseWithin = std::chrono::seconds(60);
constexpr Duration kLookEvery = std::chrono::milliseconds(20);
// The wait for a pair whose making was left behind. The other rank makes the same call about now, so the pair is made
// soon or never.
constexpr Duration kAwaitLeftBehind = std::chrono::seconds(5);
constexpr const char* kInitialising = "MPI_Init_thread";
constexpr const char* kMakingPair = "MPI_Comm_create_group";

Status unsupported(std::string why) {
  return {StatusCode::kUnsupported, std::move(why)};
}

// The folder of this library, which also has the module.
std::string ownFolder() {
  Dl_info self{};
  if (::dladdr(reinterpret_cast<const void*>(&ownFolder), &self) == 0 || self.dli_fname == nullptr) {
    return {};
  }
  const std::string file = self.dli_fname;
  const auto slash = file.rfind('/');
  return slash == std::string::npos ? std::string{} : file.substr(0, slash + 1);
}

// Not by dlopen() alone, which searches the disk even with RTLD_NOLOAD: 0.3 ms for every group.
std::vector<std::string> loadedMpiLibraries() {
  std::vector<std::string> paths;
  ::dl_iterate_phdr(
      [](dl_phdr_info* library, std::size_t, void* found) {
        const std::string_view path = library->dlpi_name;
        const std::string_view file = path.substr(path.rfind('/') + 1);
        if (file.starts_with("libmpi.so") || file.starts_with("libmpich.so")) {
          static_cast<std::vector<std::string>*>(found)->emplace_back(path);
        }
        return 0;
      },
      &paths);
  return paths;
}

// Whether other code in this process (mpi4py, the program) has loaded an MPI library and initialised MPI.
bool isMpiInitialisedHere() {
  for (const std::string& path : loadedMpiLibraries()) {
    void* library = ::dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr) {
      continue;
    }
    const auto initialised = reinterpret_cast<int (*)(int*)>(::dlsym(library, "MPI_Initialized"));
    int flag = 0;
    const bool isHere = initialised != nullptr && initialised(&flag) == 0 && flag != 0;
    ::dlclose(library);
    if (isHere) {
      return true;
    }
  }
  return false;
}

// Open MPI loads plug-ins that look for its symbols among the global ones, so the module's libraries must be global.
Result<MpiApi*> loadModule() {
  const std::string path = ownFolder() + kModuleName;
  if (::access(path.c_str(), R_OK) != 0) {
    return unsupported(fmt::format(
        "this build of shardwire has no MPI module ({} is missing): build it again where MPI is installed (on Debian: "
        "apt-get install libopenmpi-dev; then ./run setup, or pip install --force-reinstall --no-deps "
        "--no-build-isolation .)",
        path));
  }
  void* module = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (module == nullptr) {
    return unsupported(fmt::format("the MPI module cannot be loaded: {}", ::dlerror()));
  }
  const auto entry = reinterpret_cast<MpiModuleEntry>(::dlsym(module, kMpiModuleEntry));
  MpiApi* api = entry == nullptr ? nullptr : entry(kMpiApiVersion);
  if (api == nullptr) {
    return unsupported(fmt::format("{} is of another version of shardwire", path));
  }
  return api;
}

}  // namespace

// A function that waits for other ranks, on a thread of its own, since MPI has no deadlines. A caller that gives up
// leaves the thread behind; a later caller may wait on.
class MpiProcess::Call {
 public:
  // kSystem when the system gives no thread: then the function is not called.
  static Result<std::shared_ptr<Call>> start(const char* what, std::function<Status()> function) {
    auto call = std::make_shared<Call>();
    try {
      std::thread([call, function = std::move(function)] {
        Status status = function();
        const MutexLock lock(call->mutex_);
        call->status_ = std::move(status);
        call->isDone_ = true;
        call->changed_.notifyAll();
      }).detach();
    } catch (const std::system_error& error) {
      return threadError(fmt::format("starting a thread for {}", what), error);
    }
    return call;
  }
  bool isDone() {
    const MutexLock lock(mutex_);
    return isDone_;
  }
  // Returns early at the deadline, and when the result is no longer wanted.
  Status waitUntil(Deadline deadline, const std::function<bool()>& isWanted, const char* what) {
    InterruptibleWait wait(deadline);
    const MutexLock lock(mutex_);
    while (!isDone_) {
      if (wait.isInterrupted()) {
        return interruptedStatus(what);
      }
      if (Clock::now() >= deadline) {
        return {StatusCode::kTimeout,
                fmt::format("{} did not end in time: another rank did not make this call, or died", what)};
      }
      if (isWanted && !isWanted()) {
        return {StatusCode::kPeerFailed, fmt::format("the peer closed the connection during {}", what)};
      }
      changed_.waitUntil(mutex_, std::min(deadline, Clock::now() + kLookEvery));
    }
    return status_;
  }

 private:
  Mutex mutex_;
  ConditionVariable changed_;
  bool isDone_ SW_GUARDED_BY(mutex_) = false;
  Status status_ SW_GUARDED_BY(mutex_);
};

Result<MpiProcess*> MpiProcess::instance() {
  static Mutex mutex;
  static MpiProcess* process = nullptr;  // never destroyed: MPI cannot be unloaded
  const MutexLock lock(mutex);
  std::string whyNot;
  const auto launch = readMpiLaunch(&whyNot);
  if (!launch.has_value() && !isMpiInitialisedHere()) {
    return unsupported(std::move(whyNot));
  }
  if (process == nullptr) {
    const auto api = loadModule();
    SW_RETURN_IF_ERROR(api.status());
    process = new MpiProcess(*api, launch.has_value() && launch->isPmiOnly);
    process->owner_ = ::getpid();
  }
  return process;
}

Status MpiProcess::prepare(int groupSize, bool isAskedFor, Deadline deadline) {
  const MutexLock lock(preparing_);
  if (owner_ != ::getpid()) {
    return unsupported(
        "this process was forked from one that uses MPI, which does not survive a fork; start the ranks by mpirun");
  }
  MpiState now = state();
  if (!now.isInitialised) {
    SW_RETURN_IF_ERROR(initialise(groupSize, isAskedFor, deadline));
    now = state();
  }
  if (now.isFinalised) {
    return unsupported("MPI was finalised in this process, and cannot be initialised again");
  }
  if (!now.isThreadMultiple) {
    return unsupported(
        fmt::format("MPI was initialised with {}, and shardwire calls it from threads of its own; initialise it by "
                    "MPI_Init_thread with MPI_THREAD_MULTIPLE (mpi4py's default)",
                    now.threadLevel));
  }
  return Status::ok();
}

Status MpiProcess::initialise(int groupSize, bool isAskedFor, Deadline deadline) {
  std::string whyNot;
  const auto launch = readMpiLaunch(&whyNot);
  if (!launch.has_value()) {
    return unsupported(std::move(whyNot));
  }
  if (isPmiOnly_ && api_->library().starts_with("Open MPI")) {
    return unsupported(fmt::format(
        "another MPI's launcher started this process, while this build of shardwire is for {}", api_->library()));
  }
  if (groupSize != kWholeWorld && launch->size != groupSize) {
    return unsupported(fmt::format(
        "MPI is not initialised, and a group of {} ranks cannot do it for a job of {}: make the group of all ranks "
        "first, or initialise MPI before (MPI_Init_thread, import mpi4py.MPI)",
        groupSize, launch->size == 0 ? "unknown size" : std::to_string(launch->size)));
  }
  if (!isAskedFor && launch->localSize == launch->size) {
    return unsupported(
        "all ranks of the MPI job are on this host, and MPI is not initialised; SHARDWIRE_TRANSPORTS=mpi asks for it");
  }
  // MPI must be initialised once. If an earlier caller gave up the wait for the other ranks, this caller waits on.
  if (initialising_ == nullptr) {
    auto started = Call::start(kInitialising, [api = api_] { return api->initialise(); });
    SW_RETURN_IF_ERROR(started.status());
    initialising_ = std::move(*started);
  }
  SW_RETURN_IF_ERROR(initialising_->waitUntil(deadline, nullptr, kInitialising));
  logDebug("initialised {}", api_->library());
  static MpiProcess* const self = this;
  std::atexit([] { self->finaliseAtExit(); });
  return Status::ok();
}

void MpiProcess::finaliseAtExit() {
  if (owner_ != ::getpid() || state().isFinalised) {
    return;
  }
  if (hasFailedPeer_.load()) {
    return logInfo("a rank died, so MPI is not finalised: it would wait for that rank");
  }
  constexpr const char* kWhat = "MPI_Finalize";
  const auto finalising = Call::start(kWhat, [api = api_] {
    api->finalise();
    return Status::ok();
  });
  const Status done = finalising.isOk() ? (*finalising)->waitUntil(Clock::now() + kFinaliseWithin, nullptr, kWhat)
                                        : finalising.status();
  if (!done.isOk()) {
    logWarn("{}", done.message());
  }
}

// Rank 0's bytes are its own, so rank 0 sends again; the other ranks take the bytes that they awaited before.
Status MpiProcess::broadcast(std::string* bytes, Deadline deadline) {
  constexpr const char* kWhat = "MPI_Bcast";
  const MutexLock lock(preparing_);
  if (broadcasting_ != nullptr && state().rank == 0) {
    SW_RETURN_IF_ERROR(broadcasting_->waitUntil(deadline, nullptr, kWhat));
    broadcasting_ = nullptr;
  }
  if (broadcasting_ == nullptr) {
    broadcast_ = std::make_shared<std::string>(*bytes);
    auto started = Call::start(kWhat, [api = api_, sent = broadcast_] { return api->broadcast(sent.get()); });
    SW_RETURN_IF_ERROR(started.status());
    broadcasting_ = std::move(*started);
  }
  const Status status = broadcasting_->waitUntil(deadline, nullptr, kWhat);
  if (broadcasting_->isDone()) {
    broadcasting_ = nullptr;
    *bytes = std::move(*broadcast_);
  }
  return status;
}

std::string MpiProcess::job() const {
  std::string unused;
  const auto launch = readMpiLaunch(&unused);
  return launch.has_value() ? launch->job : std::string{};
}

Result<MpiPair*> MpiProcess::pairWith(int worldRank, const std::function<bool()>& isWanted, Deadline deadline) {
  const Deadline enough = Clock::now() + kAwaitLeftBehind;
  int attempt = 0;
  std::shared_ptr<Call> making;
  for (InterruptibleWait wait(deadline);;) {
    {
      const MutexLock lock(mutex_);
      Pair& pair = pairs_[worldRank];
      if (pair.isBeingMade) {
        changed_.waitUntil(mutex_, std::min(deadline, Clock::now() + kLookEvery));
      }
      if (pair.made != nullptr) {
        return pair.made;
      }
      if (!pair.isBeingMade) {
        auto started = Call::start(kMakingPair, [this, worldRank] { return makePair(worldRank); });
        SW_RETURN_IF_ERROR(started.status());
        making = std::move(*started);
        pair.isBeingMade = true;
        attempt = ++pair.numAttempts;
        break;
      }
      if (!pair.leftBehind.isOk() && Clock::now() >= enough) {
        return Status{codeForPeers(pair.leftBehind.code()), fmt::format("{} for an earlier group has not ended yet: {}",
                                                                        kMakingPair, pair.leftBehind.message())};
      }
    }
    if (wait.isInterrupted()) {
      return interruptedStatus(kMakingPair);
    }
    if (isWanted && !isWanted()) {
      return Status{StatusCode::kPeerFailed, fmt::format("the peer closed the connection during {}", kMakingPair)};
    }
    if (Clock::now() >= deadline) {
      return Status{StatusCode::kTimeout,
                    fmt::format("{} did not end in time: the other rank did not make this call, or died", kMakingPair)};
    }
  }
  const Status made = making->waitUntil(deadline, isWanted, kMakingPair);
  const MutexLock lock(mutex_);
  Pair& pair = pairs_[worldRank];
  if (pair.made != nullptr) {
    return pair.made;
  }
  if (pair.isBeingMade && pair.numAttempts == attempt) {
    pair.leftBehind = made;
  }
  return made;
}

// On the thread of a Call. A call that was left behind may still end later; the pair is then available to the next
// caller.
Status MpiProcess::makePair(int worldRank) {
  auto fresh = api_->makePair(worldRank);
  const MutexLock lock(mutex_);
  Pair& pair = pairs_[worldRank];
  pair.isBeingMade = false;
  pair.made = fresh.isOk() ? *fresh : nullptr;
  pair.leftBehind = Status::ok();
  changed_.notifyAll();
  return fresh.status();
}

Result<int> MpiProcess::takeTags(int worldRank) {
  const MutexLock lock(mutex_);
  const int row = pairs_[worldRank].numTagRows++;
  if (row >= api_->mostTag() / kTagsPerConnection) {
    return unsupported(
        fmt::format("MPI's tags are used up: {} groups were made with MPI rank {} in this process", row, worldRank));
  }
  return row * kTagsPerConnection;
}

}  // namespace shardwire::internal

// The server of this process: the folder and the socket are made and checked first, and sockets of killed processes are
// removed. Then one thread accepts connections and sends each client one JSON text, all clients at once, until the
// process ends or forks.
#include "backend/sight/status_server.h"

#include <dirent.h>
#include <fmt/format.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include "backend/base/fd.h"
#include "backend/base/log.h"
#include "backend/base/mutex.h"
#include "backend/base/per_process.h"
#include "backend/base/system_error.h"
#include "backend/sight/status_json.h"

namespace shardwire::internal {

namespace {

constexpr int kBacklog = 16;
constexpr std::size_t kMostClients = 64;                    // all of this user
constexpr Duration kReadsWithin = std::chrono::seconds(2);  // else the client is left
constexpr Duration kDescriptorsAgainAfter = std::chrono::milliseconds(100);

// The folder must be ours alone: another user who could put a socket there could speak in our name.
Status makeFolder(const std::string& folder) {
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return systemError(fmt::format("SHARDWIRE_STATUS: making the folder {}", folder), errno);
  }
  struct stat found {};
  if (::lstat(folder.c_str(), &found) != 0) {
    return systemError(fmt::format("SHARDWIRE_STATUS: the folder {}", folder), errno);
  }
  if (!S_ISDIR(found.st_mode) || found.st_uid != ::geteuid() || (found.st_mode & 0077) != 0) {
    return {StatusCode::kSystem,
            fmt::format("SHARDWIRE_STATUS: {} must be a folder of user {} that nobody else can enter (mode 0700); "
                        "remove it, or set XDG_RUNTIME_DIR",
                        folder, ::geteuid())};
  }
  return Status::ok();
}

std::optional<sockaddr_un> addressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return std::nullopt;
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

Fd makeSocket() {
  return Fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

// Removes sockets of killed processes, which have no listener any more.
void removeStale(const std::string& folder) {
  DIR* const listing = ::opendir(folder.c_str());
  if (listing == nullptr) {
    return;
  }
  while (const dirent* const entry = ::readdir(listing)) {
    const std::string path = folder + "/" + entry->d_name;
    const auto address = addressOf(path);
    if (!path.ends_with(".sock") || !address.has_value()) {
      continue;
    }
    const Fd probe = makeSocket();
    if (::connect(probe.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof(*address)) != 0 &&
        errno == ECONNREFUSED) {
      (void)::unlink(path.c_str());
    }
  }
  ::closedir(listing);
}

// Bound under another name first: a socket that is bound but not yet listening looks like the socket of a killed
// process, and another process might remove it.
Result<Fd> listenAt(const std::string& path) {
  const std::string unfinished = fmt::format("{}.new", path.substr(0, path.rfind('.')));
  const auto address = addressOf(unfinished);
  if (!address.has_value() || !addressOf(path).has_value()) {
    return Status(StatusCode::kSystem,
                  fmt::format("SHARDWIRE_STATUS: the path {} is too long for a socket; set XDG_RUNTIME_DIR", path));
  }
  (void)::unlink(unfinished.c_str());  // left by a process that had our pid before
  Fd socket = makeSocket();
  if (!socket.isOpen() || ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof(*address)) != 0 ||
      ::chmod(unfinished.c_str(), 0600) != 0 || ::listen(socket.get(), kBacklog) != 0 ||
      std::rename(unfinished.c_str(), path.c_str()) != 0) {
    return systemError(fmt::format("SHARDWIRE_STATUS: listening at {}", path), errno);
  }
  socket.closeInChildren();
  return socket;
}

bool isOurUser(const Fd& client) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return ::getsockopt(client.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         (peer.uid == ::geteuid() || peer.uid == 0);
}

// One connection, and the bytes left to send.
class Client {
 public:
  explicit Client(Fd socket) : socket_(std::move(socket)), text_(statusAsJson()), until_(Clock::now() + kReadsWithin) {}

  int fd() const { return socket_.get(); }
  Deadline until() const { return until_; }
  // Sends as much as there is room for. True when finished: all bytes are sent, the client has closed, or the client
  // did not read in time.
  bool send() {
    while (sent_ < text_.size()) {
      const ssize_t n = ::send(socket_.get(), text_.data() + sent_, text_.size() - sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n < 0 && errno == EAGAIN) {
        return Clock::now() >= until_;
      }
      if (n <= 0 && errno != EINTR) {
        return true;
      }
      sent_ += n > 0 ? static_cast<std::size_t>(n) : 0;
    }
    return true;
  }

 private:
  Fd socket_;
  std::string text_;
  std::size_t sent_ = 0;
  Deadline until_;
};

// For poll(2).
int millisecondsUntil(Deadline until) {
  return until == kNoDeadline ? -1
                              : static_cast<int>(std::max<std::int64_t>(
                                    0, std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count()));
}

// Serves all connections at once: a client that does not read delays no other client.
class Answering {
 public:
  Answering(const Fd& listener, int end) : listener_(listener), end_(end) {}

  void run() {
    while (!isOver_) {
      try {
        look();
      } catch (const std::exception& error) {  // no memory for an answer: the client gets none, and the job goes on
        logWarn("SHARDWIRE_STATUS: an answer could not be made: {}", error.what());
        clients_.clear();
        isShort_ = true;
      }
    }
  }

 private:
  void look() {
    const bool hasRoom = clients_.size() < kMostClients;
    std::vector<pollfd> waits = {{end_, POLLIN, 0}, {hasRoom && !isShort_ ? listener_.get() : -1, POLLIN, 0}};
    Deadline until = isShort_ ? Clock::now() + kDescriptorsAgainAfter : kNoDeadline;
    for (const Client& client : clients_) {
      waits.push_back({client.fd(), POLLOUT, 0});
      until = std::min(until, client.until());
    }
    isShort_ = false;
    if (::poll(waits.data(), waits.size(), millisecondsUntil(until)) < 0 && errno != EINTR) {
      logWarn("SHARDWIRE_STATUS: this process no longer reports its state: {}", systemError("poll", errno).message());
      isOver_ = true;
      return;
    }
    isOver_ = (waits[0].revents & POLLIN) != 0;
    if ((waits[1].revents & POLLIN) != 0) {
      accept();
    }
    std::erase_if(clients_, [](Client& client) { return client.send(); });
  }

  void accept() {
    Fd client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!client.isOpen()) {
      // The caller stays in the backlog, and poll() would return at once again and again.
      isShort_ = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
    } else if (isOurUser(client)) {
      clients_.emplace_back(std::move(client));
    }
  }

  const Fd& listener_;
  const int end_;
  std::vector<Client> clients_;
  bool isShort_ = false;  // short of descriptors or memory: connections are not accepted for a moment
  bool isOver_ = false;
};

class Server {
 public:
  ~Server() { stop(); }

  Result<std::string> serve() {
    const MutexLock lock(mutex_);
    if (thread_.joinable()) {
      return path_;
    }
    const std::string folder = statusFolder();
    SW_RETURN_IF_ERROR(makeFolder(folder));
    removeStale(folder);
    path_ = fmt::format("{}/{}.sock", folder, ::getpid());
    end_ = Fd(::eventfd(0, EFD_CLOEXEC));
    if (!end_.isOpen()) {
      return systemError("an eventfd", errno);
    }
    Result<Fd> listener = listenAt(path_);
    SW_RETURN_IF_ERROR(listener.status());
    try {
      thread_ = std::thread([listener = std::move(*listener), end = end_.get()] { Answering(listener, end).run(); });
    } catch (const std::system_error& error) {
      (void)::unlink(path_.c_str());
      return threadError("starting the thread that answers python -m shardwire.status", error);
    }
    logInfo("python -m shardwire.status reads the state of this process at {}", path_);
    return path_;
  }

  void stop() {
    const MutexLock lock(mutex_);
    if (!thread_.joinable()) {
      return;
    }
    // Unlinked while still listening. Otherwise a process that looks at the folder might take this socket for a killed
    // process's, and might remove the next socket of this name.
    (void)::unlink(path_.c_str());
    const std::uint64_t one = 1;
    while (::write(end_.get(), &one, sizeof(one)) < 0 && errno == EINTR) {
    }
    thread_.join();
  }

 private:
  Mutex mutex_;
  std::string path_ SW_GUARDED_BY(mutex_);
  Fd end_ SW_GUARDED_BY(mutex_);
  std::thread thread_ SW_GUARDED_BY(mutex_);
};

}  // namespace

std::string statusFolder() {
  const char* const runtime = ::getenv("XDG_RUNTIME_DIR");
  return runtime != nullptr && *runtime == '/' && ::access(runtime, W_OK) == 0
             ? fmt::format("{}/shardwire", runtime)
             : fmt::format("/tmp/shardwire-{}", ::geteuid());
}

Result<std::string> serveStatus() {
  return PerProcess<Server>::get().serve();
}

void stopServingStatus() {
  PerProcess<Server>::get().stop();
}

}  // namespace shardwire::internal

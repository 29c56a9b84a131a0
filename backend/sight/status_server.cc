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

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <thread>

#include "backend/base/fd.h"
#include "backend/base/log.h"
#include "backend/base/mutex.h"
#include "backend/base/per_process.h"
#include "backend/base/system_error.h"
#include "backend/sight/status_json.h"

namespace shardwire::internal {

namespace {

constexpr int kBacklog = 16;
constexpr timeval kSendWithin{.tv_sec = 2, .tv_usec = 0};  // to one who does not read

// Ours alone, or an error: whoever else could put a socket there could speak in our name.
Status makeFolder(const std::string& folder) {
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return systemError(fmt::format("SHARDWIRE_STATUS: making the folder {}", folder), errno);
  }
  struct stat found {};
  if (::lstat(folder.c_str(), &found) != 0) {
    return systemError(fmt::format("SHARDWIRE_STATUS: the folder {}", folder), errno);
  }
  if (!S_ISDIR(found.st_mode) || found.st_uid != ::geteuid() || (found.st_mode & 0077) != 0) {
    return {StatusCode::kSystem, fmt::format("SHARDWIRE_STATUS: {} must be a folder of user {} that nobody else can enter (mode 0700); "
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

// Of processes that were killed: nobody listens there any more.
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
    if (::connect(probe.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof(*address)) != 0 && errno == ECONNREFUSED) {
      (void)::unlink(path.c_str());
    }
  }
  ::closedir(listing);
}

// Made under another name: a socket that is bound and does not listen yet looks like one of a killed process to whoever looks meanwhile,
// who would remove it.
Result<Fd> listenAt(const std::string& path) {
  const std::string unfinished = fmt::format("{}.new", path.substr(0, path.rfind('.')));
  const auto address = addressOf(unfinished);
  if (!address.has_value() || !addressOf(path).has_value()) {
    return Status(StatusCode::kSystem, fmt::format("SHARDWIRE_STATUS: the path {} is too long for a socket; set XDG_RUNTIME_DIR", path));
  }
  (void)::unlink(unfinished.c_str());  // of a process that had our number before
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
  return ::getsockopt(client.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && (peer.uid == ::geteuid() || peer.uid == 0);
}

void answer(const Fd& client) {
  if (!isOurUser(client)) {
    return;
  }
  (void)::setsockopt(client.get(), SOL_SOCKET, SO_SNDTIMEO, &kSendWithin, sizeof(kSendWithin));
  const std::string text = statusAsJson();
  for (std::size_t sent = 0; sent < text.size();) {
    const ssize_t n = ::send(client.get(), text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (n <= 0 && errno != EINTR) {
      return;  // it went, or does not read
    }
    sent += n > 0 ? static_cast<std::size_t>(n) : 0;
  }
}

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
    Result<Fd> listener = listenAt(path_);
    SW_RETURN_IF_ERROR(listener.status());
    end_ = Fd(::eventfd(0, EFD_CLOEXEC));
    if (!end_.isOpen()) {
      return systemError("an eventfd", errno);
    }
    thread_ = std::thread([listener = std::move(*listener), end = end_.get()] { run(listener, end); });
    logInfo("python -m shardwire.status hears of this process at {}", path_);
    return path_;
  }

  void stop() {
    const MutexLock lock(mutex_);
    if (!thread_.joinable()) {
      return;
    }
    // While it still listens: else who looks meanwhile takes it for a killed process's, and may remove the next one of this name.
    (void)::unlink(path_.c_str());
    const std::uint64_t one = 1;
    while (::write(end_.get(), &one, sizeof(one)) < 0 && errno == EINTR) {
    }
    thread_.join();
  }

 private:
  static void run(const Fd& listener, int end) {
    while (true) {
      pollfd waits[] = {{listener.get(), POLLIN, 0}, {end, POLLIN, 0}};
      if (::poll(waits, 2, -1) < 0 && errno != EINTR) {
        return;
      }
      if ((waits[1].revents & POLLIN) != 0) {
        return;
      }
      if (const Fd client(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC)); client.isOpen()) {
        answer(client);
      }
    }
  }

  Mutex mutex_;
  std::string path_ SW_GUARDED_BY(mutex_);
  Fd end_ SW_GUARDED_BY(mutex_);
  std::thread thread_ SW_GUARDED_BY(mutex_);
};

Server& server() {
  static PerProcess<Server> current;
  return current.get();
}

}  // namespace

std::string statusFolder() {
  const char* const runtime = ::getenv("XDG_RUNTIME_DIR");
  return runtime != nullptr && *runtime == '/' && ::access(runtime, W_OK) == 0 ? fmt::format("{}/shardwire", runtime)
                                                                               : fmt::format("/tmp/shardwire-{}", ::geteuid());
}

Result<std::string> serveStatus() {
  return server().serve();
}

void stopServingStatus() {
  server().stop();
}

}  // namespace shardwire::internal

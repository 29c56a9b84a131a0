// TCP sockets between simulated processes, for the links that ranks make when first needed. The linker replaces the
// system calls (tests/CMakeLists.txt, --wrap), so the product's dials, listeners and proofs run unchanged. Bytes, ends
// and refusals arrive at simulated times. One object at a time; without one the calls go to the kernel.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backend/fabric/fabric.h"
#include "backend/fabric/link_listener.h"
#include "tests/simulate/process.h"

namespace shardwire::simulate {

class Sockets {
 public:
  // `delay`: draws the time from one process to another.
  Sockets(World& world, std::shared_ptr<internal::Fabric> fabric, std::function<Time()> delay);
  ~Sockets();
  Sockets(const Sockets&) = delete;
  Sockets& operator=(const Sockets&) = delete;

  // Null: the system calls go to the kernel.
  static Sockets* current();

  // The listener of this process for all of its groups; made if there is none.
  std::shared_ptr<internal::LinkListener> listenerOf(Process& process);
  // Where the process's listener is dialed.
  static internal::NetAddress addressOf(Rank process);
  // The process died; `isHost`: with its host, which falls silent.
  void end(Process& process, bool isHost);

  // ---- the system calls; each returns false for a descriptor of the kernel
  bool make(int domain, int type, int* fd);
  bool connect(int fd, const void* address, int* result);
  bool isConnecting(int fd) const;
  bool error(int fd, int* error) const;
  bool accept(int listener, int* fd);
  bool send(int fd, const void* bytes, std::size_t size, int* error);
  // The descriptor was closed.
  void closed(int fd);

 private:
  enum class State : unsigned char { kNew, kConnecting, kConnected, kRefused };
  // One end of a cable. The product has one descriptor of a pair, and the simulation has the other.
  struct Side {
    Process* process = nullptr;  // null: a foreign process
    int fd = -1;                 // the product's; -1: closed, or not accepted yet
    int other = -1;
    std::string arrived;  // before the connection was accepted
    Time lastArrival = 0;
    bool hasEnded = false;  // no more bytes leave this side
    bool isSilent = false;  // its host died
    bool seesEnd = false;
  };
  struct Cable {
    State state = State::kNew;
    Side dialer;
    Side listener;
    Side& across(const Side& side) { return &side == &dialer ? listener : dialer; }
  };
  struct Host {
    Process* process = nullptr;
    int port = -1;  // a descriptor that stands for the listening port
    std::weak_ptr<internal::LinkListener> listener;
    std::deque<Cable*> backlog;
    bool isDead = false;
    bool isSilent = false;
    bool isServing = false;  // a call of serve() is planned
  };

  Cable* find(int fd, Side** side);
  void openSide(Side& side);
  void arrive(Cable& cable, Host* host);
  void sendEnd(Cable& cable, Side& from);
  void deliver(Side& to, const std::string& bytes, bool isEnd);
  void notify(const Side& side);
  void serve(Host& host);
  Host* hostOf(const Process* process);
  Time arrivalOf(Side& from);

  World& world_;
  const std::shared_ptr<internal::Fabric> fabric_;
  const std::function<Time()> delay_;
  std::map<Rank, Host> hosts_;  // by process
  std::vector<std::unique_ptr<Cable>> cables_;
  std::map<int, Cable*> byFd_;
};

}  // namespace shardwire::simulate

// TCP sockets between simulated processes, for the links that ranks make when first needed. The linker replaces the
// system calls (tests/CMakeLists.txt, --wrap), so the product's dials, listeners, proofs and tcp connections run
// unchanged. Bytes, ends and refusals arrive at simulated times, in pieces. One object at a time; without one the calls
// go to the kernel.
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

// Nothing passes between two processes for a time. Bytes sent meanwhile arrive afterwards, as after TCP's repeats.
struct Partition {
  Rank a = 0;
  Rank b = 0;
  Time from = 0;
  Time until = kNever;
};

struct SocketOptions {
  std::function<Time()> delay;  // draws the time from one process to another
  std::uint64_t seed = 0;       // of the random numbers for pieces
  int piecesPercent = 0;        // of the sends, of which a part arrives later
  int shortPercent = 0;         // of the sends that the socket takes in part
  std::vector<Partition> partitions{};
  bool isBlocking = false;      // epoll takes a full socket for full
  std::size_t bufferBytes = 0;  // isBlocking: the most bytes under way to a process that reads; 0: any number
  int recordsPerKey = 0;        // a sender changes its TLS key after so many records; 0: never
};

class Sockets {
 public:
  Sockets(World& world, std::shared_ptr<internal::Fabric> fabric, SocketOptions options);
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
  // Calls `action` within the system call of the process with this number: a dial, an accepted connection, or a send.
  void atCall(const Process& process, int number, std::function<void()> action);
  // Sockets of connections that the product has not closed.
  std::size_t numOpen() const { return byFd_.size(); }

  // ---- the system calls; each returns false for a descriptor of the kernel
  bool make(int domain, int type, int* fd);
  // A socket that was neither dialed nor listens.
  bool isNew(int fd) const { return byFd_.contains(fd); }
  bool listen(int fd);
  bool connect(int fd, const void* address, int* result);
  bool isConnecting(int fd) const;
  bool error(int fd, int* error) const;
  bool accept(int listener, int* fd);
  // *taken: the bytes that the socket takes, -1 with *error. `mayBlock`: the socket may take none for a moment.
  bool send(int fd, std::string bytes, bool mayBlock, ssize_t* taken, int* error);
  // Whether a TLS sender changes the key before the next record, after so many records. Then the socket takes the next
  // bytes whole, like the kernel's writable sockets.
  bool changesKey(int fd, std::uint64_t numRecords);
  // Bytes that have not reached the other side.
  bool unacknowledged(int fd, int* bytes);
  // No more bytes leave this side.
  bool shutDown(int fd);
  // The address of this side, or of the other side.
  bool address(int fd, bool isRemote, void* address, unsigned* size) const;
  // The time since the last acknowledgement, while one is overdue.
  bool silence(int fd, Time* silent);
  // Whether a read behind the last byte finds a reset.
  bool isReset(int fd);
  // The descriptor was closed.
  void closed(int fd);

 private:
  enum class State : unsigned char { kNew, kConnecting, kConnected, kRefused };
  // One end of a cable. The product has one descriptor of a pair, and the simulation has the other.
  struct Side {
    Process* process = nullptr;  // null: a foreign process
    int fd = -1;                 // the product's; -1: closed, or not accepted yet
    int other = -1;
    int port = 0;
    std::string arrived;  // before the connection was accepted
    Time lastArrival = 0;
    Time takesFrom = 0;     // before this time the socket takes no bytes
    bool hasEnded = false;  // no more bytes leave this side
    bool isSilent = false;  // its host died
    bool seesEnd = false;
    bool isReset = false;     // the other side was closed before it had read all bytes
    bool isClosed = false;    // by the product, or with the process
    bool takesWhole = false;  // the next bytes
    std::size_t underWay = 0;
    bool isFull = false;    // until fewer bytes are under way
    bool isFilled = false;  // for epoll
  };
  struct Cable {
    State state = State::kNew;
    Side dialer;
    Side listener;
    Side& across(const Side& side) { return &side == &dialer ? listener : dialer; }
  };
  // A listening socket: of a process's listener for links, or of a set-up that waits for its second socket.
  struct Port {
    Process* process = nullptr;
    int number = 0;
    int other = -1;  // readable for the product while a connection waits; -1: the listener for links is called
    std::deque<Cable*> backlog{};
  };
  struct Host {
    Process* process = nullptr;
    std::weak_ptr<internal::LinkListener> listener;
    bool isDead = false;
    Time silentSince = kNever;
    bool isServing = false;  // a call of serve() is planned
    int numCalls = 0;
    std::map<int, std::function<void()>> atCalls;
  };

  Cable* find(int fd, Side** side);
  void openSide(Side& side);
  Port* portOf(const Process* process, int number);
  void arrive(Cable& cable, Host* host, int port);
  void sendEnd(Cable& cable, Side& from);
  void sendReset(Cable& cable, Side& from);
  void close(Cable& cable, Side& side);
  void deliver(Cable& cable, Side& to, const std::string& bytes, bool isEnd);
  void notify(const Side& side);
  void blockUntil(Side& side, Time when);
  void block(Side& side);
  void unblock(Side& side);
  void arrived(Side& from, std::size_t bytes);
  void serve(Host& host);
  Host* hostOf(const Process* process);
  void count(const Process* process);
  const Partition* partitionOf(const Process* one, const Process* other, Time now) const;
  Time arrivalOf(Side& from, const Process* to);
  void sendPiece(Cable& cable, Side& from, std::string bytes);

  World& world_;
  const std::shared_ptr<internal::Fabric> fabric_;
  const SocketOptions options_;
  Random random_;
  std::map<Rank, Host> hosts_;  // by process
  std::map<int, Port> ports_;   // by descriptor
  int lastPort_ = 20000;
  std::vector<std::unique_ptr<Cable>> cables_;
  std::map<int, Cable*> byFd_;
};

}  // namespace shardwire::simulate

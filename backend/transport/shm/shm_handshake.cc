#include "backend/transport/shm/shm_handshake.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <bit>

#include "backend/base/log.h"
#include "backend/base/wire.h"
#include "backend/transport/shm/cross_memory.h"
#include "backend/transport/shm/peer_heap.h"
#include "backend/transport/shm/shm_connection.h"
#include "backend/transport/shm/unix_socket.h"

namespace shardwire::internal {
namespace {

constexpr std::uint32_t kMagic = 0x4d485357;  // "WSHM"
constexpr std::size_t kMaxTextBytes = 2048;
// A rank says hello as soon as it is connected. Whoever does not is a stranger that must not keep others waiting.
constexpr Duration kHelloWithin = std::chrono::seconds(5);
enum class Kind : std::uint8_t { kHello = 1, kRefusal = 2, kProbeResult = 3 };

struct Hello {
  Rank from = 0;
  Rank to = 0;
  std::uint32_t worldSize = 0;
  RandomId token;
  RandomId process;
  RandomId inboxId;
  std::uint64_t heapBytes = 0;  // 0: no heap, and no descriptor of one
  std::uint64_t probeAddress = 0;
  std::uint64_t probeSecret = 0;
  std::uint8_t ordinaryPath = 0;
  std::string host;
};

// Cross-memory reads are used from this share of memcpy's rate on. Staging copies twice, but with both ranks at work and past the cache; on
// the machine this was measured on, reads at 0.33 of memcpy took 1.3 times as long as staging (docs/benchmarks.md).
constexpr double kReadsPayFrom = 0.45;

struct ProbeResult {
  double readGBps = 0;  // 0: cannot read, for the reason
  std::string reason;
};

ByteWriter startMessage(Kind kind) {
  ByteWriter writer;
  writer.u32(kMagic);
  writer.u32(kShmHandshakeVersion);
  writer.u8(static_cast<std::uint8_t>(kind));
  return writer;
}

std::string encodeHello(const ShmEndpoint& self, Rank to) {
  ByteWriter writer = startMessage(Kind::kHello);
  writer.u32(static_cast<std::uint32_t>(self.rank));
  writer.u32(static_cast<std::uint32_t>(to));
  writer.u32(static_cast<std::uint32_t>(self.worldSize));
  writer.id(self.token);
  writer.id(self.process);
  writer.id(self.inbox->id());
  writer.u64(self.heap != nullptr ? self.heap->reservedBytes() : 0);
  writer.u64(reinterpret_cast<std::uint64_t>(self.probe.data()));
  writer.u64(self.probeSecret);
  writer.u8(static_cast<std::uint8_t>(self.ordinaryPath));
  writer.text(self.host);
  return writer.bytes();
}

Status garbled(const char* what) {
  return {StatusCode::kMismatch, fmt::format("a garbled {} message during the handshake", what)};
}

// Checks the common part; the reader stands behind it. A refusal comes back as its error.
Status checkStart(ByteReader& reader, Kind wanted, const char* what) {
  const std::uint32_t magic = reader.u32();
  const std::uint32_t version = reader.u32();
  const auto kind = static_cast<Kind>(reader.u8());
  if (!reader.ok() || magic != kMagic) {
    return garbled(what);
  }
  if (version != kShmHandshakeVersion) {
    return {StatusCode::kUnsupported, fmt::format("the other side speaks version {} of the shm handshake, this rank version {}: all ranks "
                                                  "must run the same release of shardwire",
                                                  version, kShmHandshakeVersion)};
  }
  if (kind == Kind::kRefusal) {
    const auto code = static_cast<StatusCode>(reader.u8());
    const std::string text = reader.text(kMaxTextBytes);
    const bool known = code > StatusCode::kOk && code <= StatusCode::kInternal;
    return reader.isDone() && known ? Status{code, text} : garbled("refusal");
  }
  return kind == wanted ? Status::ok() : garbled(what);
}

Result<Hello> decodeHello(std::string_view bytes) {
  ByteReader reader(bytes);
  SW_RETURN_IF_ERROR(checkStart(reader, Kind::kHello, "hello"));
  Hello hello;
  hello.from = static_cast<Rank>(reader.u32());
  hello.to = static_cast<Rank>(reader.u32());
  hello.worldSize = reader.u32();
  hello.token = reader.id();
  hello.process = reader.id();
  hello.inboxId = reader.id();
  hello.heapBytes = reader.u64();
  hello.probeAddress = reader.u64();
  hello.probeSecret = reader.u64();
  hello.ordinaryPath = reader.u8();
  hello.host = reader.text(kMaxTextBytes);
  if (!reader.isDone() || hello.ordinaryPath > static_cast<std::uint8_t>(OrdinaryPath::kStaged)) {
    return garbled("hello");
  }
  return hello;
}

// Constant time, so that a token cannot be guessed word by word.
bool sameToken(const RandomId& a, const RandomId& b) {
  return ((a.words[0] ^ b.words[0]) | (a.words[1] ^ b.words[1])) == 0;
}

Status sendHello(const Fd& socket, const ShmEndpoint& self, Rank to, Deadline deadline) {
  std::vector<int> fds = {self.inbox->fd()};
  if (self.heap != nullptr) {
    fds.push_back(self.heap->fd());
  }
  return sendUnix(socket, encodeHello(self, to), fds, deadline);
}

void sendRefusal(const Fd& socket, const Status& reason, Deadline deadline) {
  ByteWriter writer = startMessage(Kind::kRefusal);
  writer.u8(static_cast<std::uint8_t>(reason.code()));
  writer.text(std::string_view(reason.message()).substr(0, kMaxTextBytes));
  const Status sent = sendUnix(socket, writer.bytes(), {}, deadline);
  if (!sent.isOk()) {
    logDebug("a refusal could not be sent: {}", sent.message());
  }
}

Result<ProbeResult> exchangeProbeResults(const Fd& socket, const ProbeResult& mine, Deadline deadline) {
  ByteWriter writer = startMessage(Kind::kProbeResult);
  writer.u64(std::bit_cast<std::uint64_t>(mine.readGBps));
  writer.text(std::string_view(mine.reason).substr(0, kMaxTextBytes));
  SW_RETURN_IF_ERROR(sendUnix(socket, writer.bytes(), {}, deadline));
  const auto message = receiveUnix(socket, deadline);
  SW_RETURN_IF_ERROR(message.status());
  ByteReader reader(message->bytes);
  SW_RETURN_IF_ERROR(checkStart(reader, Kind::kProbeResult, "probe result"));
  ProbeResult theirs;
  theirs.readGBps = std::bit_cast<double>(reader.u64());
  theirs.reason = reader.text(kMaxTextBytes);
  if (!reader.isDone() || !(theirs.readGBps >= 0)) {
    return garbled("probe result");
  }
  return theirs;
}

ProbeResult probe(const ShmEndpoint& self, const Hello& hello, const ShmLink& link) {
  const bool selfStages = self.ordinaryPath == OrdinaryPath::kStaged;
  if (selfStages || hello.ordinaryPath == static_cast<std::uint8_t>(OrdinaryPath::kStaged)) {
    return {0, fmt::format("SHARDWIRE_ORDINARY_PATH=staged on rank {}", selfStages ? self.rank : link.peer)};
  }
  if (link.pid == 0) {
    return {0, fmt::format("{} is in a pid namespace that rank {} does not see", link.who, self.rank)};
  }
  const auto speed = probeCrossMemory(link.pid, hello.probeAddress, hello.probeSecret, link.who.c_str());
  if (!speed.isOk()) {
    return {0, speed.status().message()};
  }
  const bool isForced =
      self.ordinaryPath == OrdinaryPath::kCrossMemory || hello.ordinaryPath == static_cast<std::uint8_t>(OrdinaryPath::kCrossMemory);
  if (const double copy = probeCopyGBps(); !isForced && *speed < kReadsPayFrom * copy) {
    return {0, fmt::format("reads of its memory run at {:.1f} GB/s where memcpy runs at {:.1f}: staging is faster", *speed, copy)};
  }
  return {*speed, ""};
}

// The same text on both sides.
Status checkForcedPath(const ShmEndpoint& self, const Hello& hello, const ProbeResult& mine, const ProbeResult& theirs) {
  const auto forced = static_cast<std::uint8_t>(OrdinaryPath::kCrossMemory);
  if (static_cast<std::uint8_t>(self.ordinaryPath) != forced && hello.ordinaryPath != forced) {
    return Status::ok();
  }
  const bool selfIsLower = self.rank < hello.from;
  const ProbeResult& lower = selfIsLower ? mine : theirs;
  const ProbeResult& higher = selfIsLower ? theirs : mine;
  const Rank lowerRank = std::min(self.rank, hello.from);
  const Rank higherRank = std::max(self.rank, hello.from);
  const bool lowerFails = lower.readGBps == 0;
  if (!lowerFails && higher.readGBps > 0) {
    return Status::ok();
  }
  return {StatusCode::kUnsupported,
          fmt::format("SHARDWIRE_ORDINARY_PATH=cross_memory, but rank {} cannot read the memory of rank {}: {}",
                      lowerFails ? lowerRank : higherRank, lowerFails ? higherRank : lowerRank, (lowerFails ? lower : higher).reason)};
}

// Both sides have the other's hello: map its memory, try reads, tell each other.
Result<std::unique_ptr<Connection>> finish(Fd socket, const ShmEndpoint& self, const Hello& hello, std::vector<Fd> fds, pid_t pid,
                                           Deadline deadline) {
  ShmLink link;
  link.self = self.rank;
  link.peer = hello.from;
  link.pid = pid;
  link.who = fmt::format("rank {} (pid {} on host {})", hello.from, pid, hello.host);
  link.sameProcess = hello.process == self.process && pid == ::getpid();
  link.mine = self.inbox;
  link.myHeap = self.heap;
  if (link.sameProcess) {
    link.sameProcessReach = self.ordinaryPath == OrdinaryPath::kStaged        ? Reach::kNone
                            : self.ordinaryPath == OrdinaryPath::kCrossMemory ? Reach::kCopy
                                                                              : Reach::kDirect;
    link.theirs = Inbox::findInProcess(hello.inboxId);
    if (link.theirs == nullptr) {
      return Status{StatusCode::kInternal, fmt::format("the inbox of {} is not in this process after all", link.who)};
    }
  } else {
    if (fds.size() != (hello.heapBytes > 0 ? 2U : 1U)) {
      return Status{StatusCode::kMismatch, fmt::format("{} sent {} descriptors", link.who, fds.size())};
    }
    auto inbox = Inbox::map(fds[0].get(), hello.from, self.worldSize, self.rank);
    SW_RETURN_IF_ERROR(inbox.status());
    link.theirs = std::move(*inbox);
    if (hello.heapBytes > 0) {
      auto heap = mapPeerHeap(hello.process, fds[1].get(), hello.heapBytes, hello.from);
      SW_RETURN_IF_ERROR(heap.status());
      link.peerHeap = std::move(*heap);
    }
  }
  // Exchanged in one process too: a listener that fails up to here is heard of by the dialer.
  const ProbeResult mine = link.sameProcess ? ProbeResult{} : probe(self, hello, link);
  const auto theirs = exchangeProbeResults(socket, mine, deadline);
  SW_RETURN_IF_ERROR(theirs.status());
  if (!link.sameProcess) {
    SW_RETURN_IF_ERROR(checkForcedPath(self, hello, mine, *theirs));
  }
  link.readGBps = mine.readGBps;
  link.whyNoReads = mine.reason;
  link.peerReadsMe = theirs->readGBps > 0;
  link.socket = std::move(socket);
  return std::unique_ptr<Connection>(std::make_unique<ShmConnection>(std::move(link)));
}

Status checkHello(const Hello& hello, const ShmEndpoint& self) {
  if (hello.to != self.rank) {
    return {StatusCode::kMismatch, fmt::format("rank {} looked for rank {} and found rank {}", hello.from, hello.to, self.rank)};
  }
  if (hello.worldSize != static_cast<std::uint32_t>(self.worldSize)) {
    return {StatusCode::kMismatch,
            fmt::format("rank {} was started with world size {}, rank {} with {}", hello.from, hello.worldSize, self.rank, self.worldSize)};
  }
  if (hello.from < 0 || hello.from >= self.worldSize || hello.from == self.rank) {
    return {StatusCode::kMismatch, fmt::format("a peer calls itself rank {} of {}", hello.from, self.worldSize)};
  }
  return Status::ok();
}

}  // namespace

Result<ShmEndpoint> ShmEndpoint::create(Rank rank, int worldSize, const RandomId& token, const std::string& host, const Options& options) {
  ShmEndpoint endpoint;
  endpoint.rank = rank;
  endpoint.worldSize = worldSize;
  endpoint.token = token;
  endpoint.host = host.substr(0, kMaxTextBytes);
  endpoint.ordinaryPath = options.ordinaryPath;
  const auto process = processId();
  SW_RETURN_IF_ERROR(process.status());
  endpoint.process = *process;
  auto heap = SharedHeap::instance();
  SW_RETURN_IF_ERROR(heap.status());
  endpoint.heap = *heap;
  auto inbox = Inbox::create(worldSize, options);
  SW_RETURN_IF_ERROR(inbox.status());
  endpoint.inbox = std::move(*inbox);
  const auto secret = makeRandomId();
  SW_RETURN_IF_ERROR(secret.status());
  endpoint.probeSecret = secret->words[0];
  endpoint.probe.resize(kProbeBytes);
  fillProbe(endpoint.probe, endpoint.probeSecret);
  if (options.ordinaryPath != OrdinaryPath::kStaged) {
    allowCrossMemoryReads();
  }
  return endpoint;
}

Result<std::unique_ptr<Connection>> dialShm(Fd socket, const ShmEndpoint& self, Rank peer, Deadline deadline) {
  const auto who = unixPeer(socket);
  SW_RETURN_IF_ERROR(who.status());
  if (who->uid != ::geteuid()) {
    return Status{StatusCode::kUnsupported, fmt::format("it runs as user {}, rank {} as user {}", who->uid, self.rank, ::geteuid())};
  }
  SW_RETURN_IF_ERROR(sendHello(socket, self, peer, deadline));
  auto message = receiveUnix(socket, deadline);
  SW_RETURN_IF_ERROR(message.status());
  const auto hello = decodeHello(message->bytes);
  SW_RETURN_IF_ERROR(hello.status());
  SW_RETURN_IF_ERROR(checkHello(*hello, self));
  if (hello->from != peer || !sameToken(hello->token, self.token)) {
    return Status{StatusCode::kMismatch, fmt::format("it answers as rank {} of another group", hello->from)};
  }
  return finish(std::move(socket), self, *hello, std::move(message->fds), who->pid, deadline);
}

Result<std::unique_ptr<Connection>> answerShm(Fd socket, const ShmEndpoint& self, Deadline deadline) {
  const auto who = unixPeer(socket);
  SW_RETURN_IF_ERROR(who.status());
  if (who->uid != ::geteuid()) {
    logWarn("rank {}: turned away a process of user {} (pid {})", self.rank, who->uid, who->pid);
    return std::unique_ptr<Connection>();
  }
  auto message = receiveUnix(socket, std::min(deadline, Clock::now() + kHelloWithin));
  if (!message.isOk()) {
    const StatusCode code = message.status().code();
    const bool isStranger = code == StatusCode::kPeerFailed || (code == StatusCode::kTimeout && Clock::now() < deadline);
    return isStranger ? Result(std::unique_ptr<Connection>()) : message.status();
  }
  const auto hello = decodeHello(message->bytes);
  Status verdict = hello.status();
  if (hello.isOk() && !sameToken(hello->token, self.token)) {
    verdict = {StatusCode::kMismatch, fmt::format("rank {} refused: the group token is wrong (another job, or a stale store)", self.rank)};
    logWarn("rank {}: turned away pid {}, which does not know the group's token", self.rank, who->pid);
    sendRefusal(socket, verdict, deadline);
    return std::unique_ptr<Connection>();
  }
  if (verdict.isOk()) {
    verdict = checkHello(*hello, self);
  }
  if (!verdict.isOk()) {
    sendRefusal(socket, verdict, deadline);
    return verdict;
  }
  SW_RETURN_IF_ERROR(sendHello(socket, self, hello->from, deadline));
  return finish(std::move(socket), self, *hello, std::move(message->fds), who->pid, deadline);
}

}  // namespace shardwire::internal

// One peer over two TCP sockets. create() adds the sockets to the wire's epoll set; epoll's events then call onReady(),
// which receives or sends on one of the two streams. Notes on the stream of frames carry requests to fetch, refusals,
// the stop of fetches, and the leave. The end of the stream of frames is the failure of the peer; the end of the stream
// of fetches becomes a failure only when no stop is announced within kExplainWithin. health() checks the sockets at
// intervals: for the peer's close, for unexplained ends of fetches, and for silent hosts. After a failure nothing is
// sent, and both streams end (fail()); where the stream of frames still works, its last note is the reason (giveUp()).
// The steps of leave() send all frames, then the leave, and end when the peer's kernel has these bytes.
#include "backend/transport/tcp/tcp_connection.h"

#include <errno.h>
#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <thread>

#include "backend/base/log.h"
#include "backend/base/system_error.h"
#include "backend/fabric/net_socket.h"
#include "backend/transport/endpoint.h"

namespace shardwire::internal {
namespace {

enum NoteKind : std::uint8_t {
  kRequest = 1,  // of a fetch
  kRefusal = 2,  // of a note of the other end, with the reason; the connection is over
  kStopped = 3,  // the sender has dropped its end of the fetches
  kLeaving = 4,  // the sender leaves normally; nothing follows
};

// Intervals of checks that cost a system call each; wait loops call health() far more often.
constexpr Duration kLookEvery = std::chrono::milliseconds(5);
constexpr Duration kPathLookEvery = std::chrono::milliseconds(250);
// A host that acknowledges nothing for this time is down or unreachable. While bytes wait for acknowledgement, look()
// checks the silence. While no bytes are under way, keepalive probes do (setKeepAlive()). TCP_USER_TIMEOUT could
// replace look()'s check, but would also end the stream of a live peer that is too busy to read.
constexpr Duration kSilentFor = std::chrono::seconds(8);
// A peer closes its end of the fetches after kStopped and the leave, which may arrive a little later. No kStopped
// arrives over a network that loses the packets of one direction: the frames of a peer that receives no acknowledgement
// wait, but the end of the fetches arrives.
constexpr Duration kExplainWithin = std::chrono::seconds(2);
// Of the text of a refusal, which the peer wrote.
constexpr std::size_t kMaxRefusalBytes = 1024;
// A leaving rank sends the last frames of its operations, which may be long and the network slow. The rank stays for
// kStaysAfterProgress after each byte, because TCP pauses where packets were lost, and a peer may be busy; for at most
// kMostLastWords. The rank stays only for kLastWords for a peer whose host is silent.
constexpr Duration kLastWords = std::chrono::milliseconds(200);
constexpr Duration kStaysAfterProgress = std::chrono::seconds(2);
constexpr Duration kMostLastWords = std::chrono::seconds(60);
// Shorter edges and runs arrive sooner packed into frames: a fetch costs a round trip, and each run costs an entry in a
// scatter list. On loopback (reshape_bench, SHARDWIRE_ORDINARY_PATH=staged against cross_memory) edges break even
// between 128 and 256 KiB, runs somewhere between 2 and 16 KiB.
constexpr std::size_t kMinEdgeBytes = std::size_t{256} << 10;
constexpr std::size_t kMinRunBytes = std::size_t{4} << 10;

// Bytes that are under way may have been lost, and are sent again after a pause. Where nothing is under way, the peer
// takes nothing now: it may be busy for a moment, or stopped.
Duration firstStay(const Fd& socket) {
  return silenceOf(socket) < kStaysAfterProgress ? kStaysAfterProgress : kLastWords;
}

}  // namespace

TcpConnection::TcpConnection(TcpJoint joint)
    : joint_(std::move(joint)),
      frames_(std::move(joint_.frames), joint_.capacities, joint_.hasChecksums),
      fetches_(std::move(joint_.fetches), joint_.hasChecksums) {
  frameWatch_ = {this, false, 0};
  fetchWatch_ = {this, true, 0};
}

Result<std::unique_ptr<Connection>> TcpConnection::create(TcpJoint joint) {
  std::unique_ptr<TcpConnection> made(new TcpConnection(std::move(joint)));
  made->updateWatches();
  SW_RETURN_IF_ERROR(made->failure_);
  return std::unique_ptr<Connection>(std::move(made));
}

TcpConnection::~TcpConnection() {
  constexpr Duration kNap = std::chrono::microseconds(200);
  while (!leave()) {
    std::this_thread::sleep_for(kNap);
  }
  // After the last words: the peer takes an end of the fetches for a failure if no reason comes soon.
  setEvents(fetchWatch_, fetches_.socket(), 0);
  setEvents(frameWatch_, frames_.socket(), 0);
}

bool TcpConnection::leave() {
  if (!failure_.isOk() || leaving_ == Leaving::kOver) {
    return true;
  }
  if (leaving_ == Leaving::kNotYet) {
    leaving_ = Leaving::kSending;
    staysUntil_ = Clock::now() + firstStay(frames_.socket());
    staysAtMost_ = Clock::now() + kMostLastWords;
    unacknowledged_ = unacknowledgedOf(frames_.socket());
  }
  if (leaving_ == Leaving::kSending && sayLeave()) {
    ::shutdown(frames_.socket().get(), SHUT_WR);
    leaving_ = Leaving::kAwaitsAcknowledgement;
    staysUntil_ = std::max(staysUntil_, Clock::now() + kLastWords);
  }
  if (leaving_ == Leaving::kAwaitsAcknowledgement && isAcknowledged()) {
    leaving_ = Leaving::kOver;
  }
  return !failure_.isOk() || leaving_ == Leaving::kOver;
}

// The leave follows all frames, which the peer may still read. True when the kernel has all bytes, or the time is over.
bool TcpConnection::sayLeave() {
  bool moved = flushFrames();
  if (!hasSaidLeave_ && failure_.isOk() && !frames_.isBlocked()) {
    frames_.sendNote(kLeaving, {});
    hasSaidLeave_ = true;
    moved |= flushFrames();
  }
  // The kernel takes no bytes until a third of its buffer is empty, which may take long on a slow network.
  const int left = unacknowledgedOf(frames_.socket());
  if (moved || left < unacknowledged_) {
    stayFor(kStaysAfterProgress);
  }
  unacknowledged_ = left;
  return (hasSaidLeave_ && !frames_.isBlocked()) || Clock::now() >= staysUntil_;
}

// The kernel sends on after a close, but then answers each byte of the peer, such as the credit for a frame, by a
// reset, and drops the rest. Unread bytes at the time of a close turn the close into a reset, too. True when the peer's
// kernel has all bytes, when the peer has left and so needs none, or when the time is over. Bytes that reach a socket
// after its close are never acknowledged.
bool TcpConnection::isAcknowledged() {
  bool moved = false;
  const int left = unacknowledgedOf(frames_.socket());
  if (left < unacknowledged_) {
    stayFor(kStaysAfterProgress);
  }
  unacknowledged_ = left;
  return !frames_.receive(&moved).isOk() || frames_.isEnded() || left == 0 || Clock::now() >= staysUntil_;
}

void TcpConnection::stayFor(Duration time) {
  staysUntil_ = std::min(staysAtMost_, Clock::now() + time);
}

void TcpConnection::setEvents(Watch& watch, const Fd& socket, std::uint32_t events) {
  if (events == watch.events || !socket.isOpen()) {
    return;
  }
  epoll_event event{};
  event.events = events;
  event.data.ptr = &watch;
  const int operation = events == 0 ? EPOLL_CTL_DEL : watch.events == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
  if (::epoll_ctl(joint_.poller->epoll.get(), operation, socket.get(), &event) == 0) {
    joint_.poller->numWatched += operation == EPOLL_CTL_ADD ? 1 : operation == EPOLL_CTL_DEL ? -1 : 0;
    watch.events = events;
  } else if (events != 0) {
    giveUp(systemError(fmt::format("watching the connection to {}", joint_.who), errno));
  }
}

void TcpConnection::updateWatches() {
  const std::uint32_t frames = failure_.isOk() ? EPOLLIN | EPOLLRDHUP | (frames_.isBlocked() ? EPOLLOUT : 0U) : 0U;
  const std::uint32_t fetches = failure_.isOk() && fetches_.isOpen() && fetchesBrokeAt_ == kNoDeadline
                                    ? EPOLLIN | EPOLLRDHUP | (fetches_.isBlocked() ? EPOLLOUT : 0U)
                                    : 0U;
  setEvents(frameWatch_, frames_.socket(), frames);
  setEvents(fetchWatch_, fetches_.socket(), fetches);
}

// The kernel would go on answering for this rank: without the end of the streams the peer waits until its timeout.
void TcpConnection::fail(Status why) {
  if (failure_.isOk()) {
    failure_ = std::move(why);
    updateWatches();  // otherwise epoll would report the end again in every poll
    ::shutdown(frames_.socket().get(), SHUT_WR);
    ::shutdown(fetches_.socket().get(), SHUT_WR);
  }
}

// For failures of which the peer knows nothing. Frames that come later, such as the group's reason, are not sent. So
// the peer gets this reason, or only the end of the streams if the socket takes no bytes now.
void TcpConnection::giveUp(Status why, std::string note) {
  if (failure_.isOk()) {
    frames_.sendNote(kRefusal, std::move(note));
    bool moved = false;
    static_cast<void>(frames_.flush(&moved).isOk());  // not flushFrames(), which would receive further frames
    fail(std::move(why));
  }
}

// The peer sent what cannot be, or its bytes were changed on the way. The peer's error says so, too.
void TcpConnection::refuse(const char* stream, const Status& why) {
  giveUp({StatusCode::kPeerFailed,
          fmt::format("{} {} (the stream of {}, tcp {})", joint_.who, why.message(), stream, joint_.remote)},
         fmt::format("the stream of {}: rank {} {}", stream, joint_.peer, why.message()));
}

Status TcpConnection::died(const std::string& how) const {
  return {StatusCode::kPeerFailed,
          fmt::format("{} died, or its network connection failed: tcp {}: {}", joint_.who, joint_.remote, how)};
}

// A ring is marked as broken when its bytes are used, which may be after the last bytes arrived: called by look().
void TcpConnection::checkLanes() {
  for (const Lane lane : {Lane::kControl, Lane::kBulk, Lane::kPoint}) {
    if (frames_.writer(lane).isBroken() || frames_.reader(lane).isBroken()) {
      refuse("frames",
             {StatusCode::kMismatch, "sent a malformed frame: a bug, or a foreign process wrote to this connection"});
    }
  }
}

std::span<std::byte> TcpConnection::reserve(Lane lane, std::size_t minBytes, std::size_t maxBytes) {
  return frames_.writer(lane).reserve(minBytes, maxBytes);
}

void TcpConnection::commit(Lane lane, std::size_t bytes) {
  frames_.writer(lane).commit(bytes);
  if (bytes > 0 && !frames_.isBlocked()) {
    flushFrames();
  }
}

void TcpConnection::release(Lane lane) {
  frames_.reader(lane).release();
  if (frames_.owesCredit() && !frames_.isBlocked()) {
    flushFrames();
  }
}

bool TcpConnection::flushFrames() {
  bool moved = false;
  if (!failure_.isOk()) {
    return false;
  }
  const bool wasBlocked = frames_.isBlocked();
  if (const Status sent = frames_.flush(&moved); !sent.isOk()) {
    // The peer's last frames and notes, among them perhaps the leave, are still to be received.
    bool received = true;
    while (received && failure_.isOk()) {
      received = receiveFrames();
    }
    endOfFrames(sent.message());
  } else if (frames_.isBlocked() != wasBlocked) {
    updateWatches();
  }
  return moved;
}

bool TcpConnection::receiveFrames() {
  bool moved = false;
  if (!failure_.isOk()) {
    return false;
  }
  const Status received = frames_.receive(&moved);
  if (moved && fetchesBrokeAt_ != kNoDeadline) {
    fetchesBrokeAt_ = Clock::now();  // the reason follows the frames, which may take long on a slow network
  }
  while (!frames_.notesIn().empty()) {
    const StreamNote note = std::move(frames_.notesIn().front());
    frames_.notesIn().pop_front();
    take(note);
  }
  if (received.code() == StatusCode::kMismatch) {
    refuse("frames", received);
  } else if (!received.isOk()) {
    endOfFrames(received.message());
  } else if (frames_.isEnded()) {
    endOfFrames("the peer closed the connection");
  }
  return moved;
}

void TcpConnection::take(const StreamNote& note) {
  switch (note.kind) {
    case kRequest:
      if (stopped_) {
        return;  // kStopped is on its way to the peer
      }
      if (const Status served = fetches_.serve(note.bytes); !served.isOk()) {
        giveUp({StatusCode::kPeerFailed, fmt::format("{} sent {}", joint_.who, served.message())}, served.message());
        return;
      }
      sendFetched();
      return;
    case kRefusal:
      fail({StatusCode::kPeerFailed, fmt::format("{} refused {}", joint_.who, note.bytes.substr(0, kMaxRefusalBytes))});
      return;
    case kStopped:
      peerStopped_ = true;
      return;
    case kLeaving:
      fail({StatusCode::kPeerFailed, fmt::format("{} left the group", joint_.who)});
      return;
    default:
      refuse("frames", {StatusCode::kMismatch, fmt::format("sent a note of unknown kind {}", note.kind)});
  }
}

Reach TcpConnection::expose(const void* bytes, std::size_t size, RemoteAddress* address) {
  if (stopped_ || peerStopped_ || !fetches_.isOpen() || joint_.ordinaryPath == OrdinaryPath::kStaged) {
    *address = {};
    return Reach::kNone;
  }
  *address = fetches_.expose(bytes, size);
  return Reach::kFetch;
}

void TcpConnection::conceal(const RemoteAddress& address) {
  if (!fetches_.conceal(address.space)) {
    stopFetches();
    giveUp({StatusCode::kPeerFailed, fmt::format("memory was withdrawn while {} still fetched from it", joint_.who)});
  }
}

ReadLimits TcpConnection::readLimits() const {
  return wireReadLimits(joint_.ordinaryPath, kMinEdgeBytes, kMinRunBytes);
}

Status TcpConnection::read(std::span<const MemoryRun>) {
  return {StatusCode::kUnsupported, fmt::format("the memory of {} cannot be read at once over tcp", joint_.who)};
}

bool TcpConnection::fetch(std::uint32_t space, std::span<const MemoryRun> runs, FetchCount* count) {
  if (stopped_ || peerStopped_ || !failure_.isOk() || !fetches_.isOpen()) {
    return false;
  }
  requests_.clear();
  if (!fetches_.ask(space, runs, count, &requests_)) {
    return false;
  }
  for (std::string& request : requests_) {
    frames_.sendNote(kRequest, std::move(request));
  }
  if (!frames_.isBlocked()) {
    flushFrames();
  }
  return true;
}

bool TcpConnection::stopFetches() {
  if (!stopped_) {
    stopped_ = true;
    frames_.sendNote(kStopped, {});
    flushFrames();
    setEvents(fetchWatch_, fetches_.socket(), 0);
    fetches_.drop();
  }
  return true;
}

// No failure yet: the peer may have stopped its fetches, and then sends kStopped on the other stream.
void TcpConnection::fetchesBroke(const Status& why) {
  if (fetchesBrokeAt_ == kNoDeadline) {
    fetchesBrokeAt_ = fetchesBrokeFirst_ = Clock::now();
    howFetchesBroke_ = why.message();
    updateWatches();
  }
}

bool TcpConnection::sendFetched() {
  bool moved = false;
  const bool wasBlocked = fetches_.isBlocked();
  if (!failure_.isOk() || fetchesBrokeAt_ != kNoDeadline) {
    return false;
  }
  if (const Status sent = fetches_.send(&moved); !sent.isOk()) {
    fetchesBroke(sent);
  } else if (fetches_.isBlocked() != wasBlocked) {
    updateWatches();
  }
  return moved;
}

bool TcpConnection::receiveFetched() {
  bool moved = false;
  if (!failure_.isOk()) {
    return false;
  }
  const Status received = fetches_.receive(&moved);
  if (received.code() == StatusCode::kMismatch) {
    refuse("fetches", received);
  } else if (!received.isOk()) {
    fetchesBroke(received);
  } else if (fetches_.isEnded()) {
    fetchesBroke({StatusCode::kPeerFailed, "the peer closed this stream"});
  }
  return moved;
}

bool TcpConnection::onReady(bool isFetches, std::uint32_t events) {
  const bool isIn = (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
  bool moved = isIn && (isFetches ? receiveFetched() : receiveFrames());
  if ((events & EPOLLOUT) != 0) {
    moved |= isFetches ? sendFetched() : flushFrames();
  }
  return moved;
}

// Both sockets, since a network path may lose only long packets, which fetches send.
Duration TcpConnection::silence(Deadline now) {
  return std::max(frameSilence_.look(silenceOf(frames_.socket()), now),
                  fetchSilence_.look(silenceOf(fetches_.socket()), now));
}

void TcpConnection::look() {
  const Deadline now = Clock::now();
  if (now < nextLook_) {
    return;
  }
  nextLook_ = now + kLookEvery;
  checkLanes();
  if (isHungUp(frames_.socket())) {
    while (failure_.isOk() && receiveFrames()) {  // frames before the end are still taken
    }
  }
  if (fetchesBrokeAt_ != kNoDeadline && !peerStopped_ && !stopped_ &&
      (now - fetchesBrokeAt_ > kExplainWithin || now - fetchesBrokeFirst_ > kMostLastWords)) {
    giveUp({StatusCode::kPeerFailed,
            fmt::format("the connection for fetches from {} (tcp {}) broke: {}, and no reason came on the other "
                        "connection; does a link or firewall between lose packets?",
                        joint_.who, joint_.remote, howFetchesBroke_)});
  }
  if (now < nextPathLook_) {
    return;
  }
  nextPathLook_ = now + kPathLookEvery;
  if (isMultipath() && numPathsOf(frames_.socket()) == 0) {
    giveUp(died("no network path to the peer is left; is its host down, or a link or firewall between?"));
  } else if (const Duration silent = silence(now); silent > kSilentFor) {
    giveUp(died(
        fmt::format("the peer has acknowledged nothing for {:.0f} s; is its host down, or a link or firewall between?",
                    std::chrono::duration<double>(silent).count())));
  }
}

Status TcpConnection::health() {
  if (failure_.isOk()) {
    look();
  }
  return failure_;
}

std::string TcpConnection::describe() const {
  return fmt::format("rank {}: tcp, {}{}{}{}", joint_.peer, joint_.remote, frames_.stream().protection(),
                     joint_.hasChecksums ? ", CRC-32C" : "",
                     isMultipath() ? fmt::format(", {} paths", numPathsOf(frames_.socket())) : "");
}

}  // namespace shardwire::internal

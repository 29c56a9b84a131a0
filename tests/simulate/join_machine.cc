// An end has a name, which takes the place of the socket's names and of the inbox in the published address. attach()
// asks the peer's process, which answers whatever the rank does, and leaves this rank's half at the peer's end. dial()
// leaves a call there; the peer takes the call in callers(), and connect() pairs the two. A killed process refuses, a
// stopped process is silent, and so is a dead host. If ranks are joined late over wires, the product's
// tcp joins the ranks of two hosts (join_wires.h).
#include "tests/simulate/join_machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "tests/simulate/connection.h"
#include "tests/simulate/join_watch.h"
#include "tests/simulate/join_wires.h"
#include "tests/simulate/late_links.h"

namespace shardwire::simulate {

using namespace internal;

namespace {

constexpr Time kLook = 5 * kMillisecond;

Status waitFor(Process& process, Time duration, const WaitLimit& limit) {
  const Deadline until(std::chrono::nanoseconds(process.time() + duration));
  return limit.sooner(until).poll({}).status();
}

}  // namespace

// The sign of life goes when the group is made, with the rank's other ends. Links that are made late keep the
// endpoints.
class JoinSign final : public RankBell {
 public:
  explicit JoinSign(std::function<void()> end) : end_(std::move(end)) {}
  ~JoinSign() override { end_(); }
  BellWords& words() override { return words_; }

 private:
  const std::function<void()> end_;
  BellWords words_{};
};

class JoinEndpoint final : public Endpoint {
 public:
  JoinEndpoint(JoinMachine& machine, std::string name, bool needsLink)
      : machine_(machine), name_(std::move(name)), needsLink_(needsLink) {}
  std::string address() const override { return name_; }
  std::string whyNot(std::string_view) const override { return ""; }
  bool needsLink() const override { return needsLink_; }
  std::unique_ptr<Wire> takeWire() override { return nullptr; }
  std::unique_ptr<LateLinks> joinLate(std::vector<LatePeer>) override {
    return std::make_unique<SimulatedLateLinks>(machine_.network_, machine_.self_);
  }

  Result<std::unique_ptr<Connection>> attach(Rank peer, std::string_view peerAddress, const std::string&,
                                             const WaitLimit& limit) override;
  Result<bool> isMet(Connection& connection) override;
  Result<std::unique_ptr<Connection>> connect(Link link, Rank peer, bool isDialer, std::string_view peerAddress,
                                              const std::string&, const WaitLimit& limit) override;

 private:
  Status workOnAnswer(Rank peer, const WaitLimit& limit);
  Status awaitAnswer(Dial& dial, JoinEnd& theirs, const WaitLimit& limit);
  Result<std::unique_ptr<Connection>> joined(Rank peer, const JoinEnd& theirs);

  JoinMachine& machine_;
  const std::string name_;
  const bool needsLink_;
};

Result<std::unique_ptr<Connection>> JoinEndpoint::joined(Rank peer, const JoinEnd& theirs) {
  machine_.network_.note(machine_.self_, "is joined to rank {}", peer);
  if (theirs.network != &machine_.network_ || theirs.rank != peer) {
    machine_.ends_.faults.push_back(
        fmt::format("rank {} is joined to an end of another group for rank {}", machine_.self_, peer));
  }
  return std::unique_ptr<Connection>(std::make_unique<SimulatedConnection>(machine_.network_, machine_.self_, peer));
}

Result<std::unique_ptr<Connection>> JoinEndpoint::attach(Rank peer, std::string_view peerAddress, const std::string&,
                                                         const WaitLimit& limit) {
  JoinEnd& theirs = machine_.ends_.find(peerAddress);
  SW_RETURN_IF_ERROR(machine_.awaitProcess(theirs, limit));
  if (!theirs.isOpen) {
    return Status{StatusCode::kPeerFailed, fmt::format("rank {} has left", peer)};
  }
  theirs.halves.insert(machine_.self_);  // in memory that the two ranks share
  machine_.network_.ringAt(machine_.now(), peer);
  return joined(peer, theirs);
}

Result<bool> JoinEndpoint::isMet(Connection& connection) {
  return machine_.ends_.find(name_).halves.contains(connection.peer());
}

Status JoinEndpoint::awaitAnswer(Dial& dial, JoinEnd& theirs, const WaitLimit& limit) {
  while (dial.answerArrives > machine_.now()) {
    if (dial.closedAt <= machine_.now() || machine_.isDeadFor(theirs) ||
        (!theirs.isOpen && dial.answerArrives == kNever)) {
      return {StatusCode::kPeerFailed, "the peer closed the connection"};
    }
    if (limit.isOver()) {
      return {StatusCode::kTimeout, "waiting for the peer's consent: no answer in time"};
    }
    SW_RETURN_IF_ERROR(waitFor(machine_.process_, kLook, limit));
  }
  return Status::ok();
}

// The handshake takes time: the keys of TLS, or a busy host. A failure of the group ends it, and the peer sees the end
// before the reason lies in the store.
Status JoinEndpoint::workOnAnswer(Rank peer, const WaitLimit& limit) {
  if (machine_.longestHandshake_ == 0) {
    return Status::ok();
  }
  const Time since = machine_.process_.world().elapsed(machine_.now());
  Random random(testing::mix64(static_cast<std::uint64_t>(since)) + static_cast<std::uint64_t>(peer));
  const Time until = machine_.now() + random.between(0, machine_.longestHandshake_);
  while (machine_.now() < until && !machine_.process_.isDead()) {
    SW_RETURN_IF_ERROR(waitFor(machine_.process_, kLook, limit));
    if (limit.isOver()) {
      return {StatusCode::kTimeout, "the handshake took too long"};
    }
  }
  return Status::ok();
}

Result<std::unique_ptr<Connection>> JoinEndpoint::connect(Link link, Rank peer, bool isDialer,
                                                          std::string_view peerAddress, const std::string&,
                                                          const WaitLimit& limit) {
  JoinEnd& theirs = machine_.ends_.find(peerAddress);
  const std::size_t mark = link.remote().find('#');
  JoinEnd& listener = machine_.ends_.find(link.remote().substr(0, mark));
  Dial& dial = *std::next(listener.dials.begin(), std::stol(link.remote().substr(mark + 1)));
  if (isDialer) {
    const Status answered = awaitAnswer(dial, theirs, limit);
    dial.isOver = true;
    SW_RETURN_IF_ERROR(answered);
    return joined(peer, theirs);
  }
  if (dial.isOver || machine_.process_.isDead() || machine_.isDeadFor(theirs)) {
    return Status{StatusCode::kPeerFailed, "the peer closed the connection"};
  }
  if (const Status worked = workOnAnswer(peer, limit); !worked.isOk()) {
    dial.closedAt = machine_.arrivalAt(peer);
    return worked;
  }
  dial.answerArrives = machine_.arrivalAt(peer);
  return joined(peer, theirs);
}

// ---- the machine

Status JoinMachine::prepare(OwnEnds& own, Rank rank, int worldSize, const Options& options) {
  self_ = rank;
  const std::string& name = name_ = fmt::format("end {};", ends_.byName.size());
  end_ = ends_.byName.emplace(name, std::make_unique<JoinEnd>()).first->second.get();
  *end_ = {.rank = rank, .process = &process_, .network = &network_, .bell = bell_, .halves = {}, .dials = {}};
  end_->token.words = {ends_.byName.size(), 1};
  process_.computeFor(20 * kMicrosecond);
  auto fabric = Fabric::instance();
  SW_RETURN_IF_ERROR(fabric.status());
  own.fabric = std::move(*fabric);
  RankAddress& address = own.address;
  address.worldSize = static_cast<std::uint32_t>(worldSize);
  address.bootId = fmt::format("host{}", host_);
  address.kernel = address.bootId + " 1";
  address.networkNamespace = address.userNamespace = 1;
  address.host = address.bootId;
  address.pid = static_cast<std::uint32_t>(process_.rank());
  address.process = *processId();  // one for all: a rank looks only for its own address
  address.hasJobToken = true;
  address.joinsLate = options.links == LinksWhen::kLazy;
  address.socketName = address.lifeName = name;
  address.token = end_->token;
  for (TransportAddress& each : address.transports) {
    each.whyNot = "not simulated";
  }
  if (cannotStart_) {
    address.failure = {StatusCode::kSystem, fmt::format("rank {} could not start: no room", rank)};
    return address.failure;
  }
  for (const TransportKind kind : {TransportKind::kShm, TransportKind::kTcp}) {
    const auto index = static_cast<std::size_t>(kind);
    own.endpoints[index] = std::make_unique<JoinEndpoint>(*this, name, kind == TransportKind::kTcp);
    address.transports[index] = {name, ""};
  }
  own.bell = std::make_shared<JoinSign>([this] { end_->signGoneAt = std::min(end_->signGoneAt, now()); });
  if (ends_.sockets != nullptr) {
    const Self self{rank, worldSize, address.host, &options, nullptr};
    auto& tcp = own.endpoints[static_cast<std::size_t>(TransportKind::kTcp)];
    tcp = std::make_unique<WireEndpoint>(self, [this] { return failsLateJoins_; });
    address.transports[static_cast<std::size_t>(TransportKind::kTcp)] = {tcp->address(), ""};
    address.links = openWires(own.rankLinks, *ends_.sockets, process_, bell_, address.token, worldSize, own.fabric);
  }
  return Status::ok();
}

std::unique_ptr<Doorbell> JoinMachine::makeDoorbell(const OwnEnds&) {
  return process_.makeDoorbell(bell_);
}

// A dead host is silent.
bool JoinMachine::isDeadFor(const JoinEnd& theirs) const {
  return theirs.process->isDead() && !theirs.isSilent;
}

Status JoinMachine::awaitProcess(const JoinEnd& theirs, const WaitLimit& limit) {
  SW_RETURN_IF_ERROR(waitFor(process_, 2 * network_.drawDelay(self_, theirs.rank), limit));
  while (theirs.process->isDead() || theirs.process->stoppedUntil() > now()) {
    if (process_.isDead()) {
      return {StatusCode::kSystem, "the simulated process died"};
    }
    if (isDeadFor(theirs)) {
      return {StatusCode::kPeerFailed, "no process listens at its socket any more: it ended"};
    }
    if (limit.isOver()) {
      return {StatusCode::kTimeout, "connecting: no answer in time"};
    }
    SW_RETURN_IF_ERROR(waitFor(process_, kLook, limit));
  }
  return process_.isDead() ? Status{StatusCode::kSystem, "the simulated process died"} : Status::ok();
}

Result<Link> JoinMachine::dial(OwnEnds&, Rank peer, TransportKind kind, const WaitLimit& limit) {
  JoinEnd* theirs = nullptr;
  std::string nameOfEnd;
  for (const auto& [name, end] : ends_.byName) {
    if (end->network == &network_ && end->rank == peer) {
      theirs = end.get();
      nameOfEnd = name;
    }
  }
  SW_CHECK(theirs != nullptr);
  const Status answers = awaitProcess(*theirs, limit);
  const bool isClosed = answers.isOk() && !theirs->isOpen;
  if (isClosed || answers.code() == StatusCode::kPeerFailed) {
    return Status{StatusCode::kUnsupported, fmt::format("no link to rank {} (connecting: Connection refused)", peer)};
  }
  if (!answers.isOk()) {
    return Status{answers.code(), fmt::format("no link to rank {} ({})", peer, answers.message())};
  }
  theirs->dials.push_back({.from = self_, .kind = kind, .arrives = arrivalAt(peer)});
  network_.note(self_, "dials rank {}", peer);
  network_.ringAt(theirs->dials.back().arrives, peer);
  return Link(Fd(), fmt::format("{}#{}", nameOfEnd, theirs->dials.size() - 1));
}

Result<std::vector<Caller>> JoinMachine::callers(OwnEnds&) {
  std::vector<Caller> callers;
  std::size_t number = 0;
  for (Dial& each : end_->dials) {
    if (!each.isTaken && !each.isOver && each.arrives <= now()) {
      each.isTaken = true;
      callers.push_back({each.from, each.kind, Link(Fd(), fmt::format("{}#{}", name_, number))});
    }
    ++number;
  }
  return callers;
}

void JoinMachine::close() {
  if (end_ == nullptr || process_.isDead()) {
    return;
  }
  end_->isOpen = false;
  for (Dial& each : end_->dials) {
    each.isOver |= !each.isTaken;
  }
  network_.end(self_, End::kLeft);  // peers that are joined to this rank see the end
}

void JoinMachine::complete(Peers& peers, const std::vector<std::int32_t>& hosts) {
  peers.wires.push_back(std::make_unique<SimulatedWire>(network_, self_));
  peers.hosts = hosts;
}

// ---- signs of life

std::unique_ptr<LifeWatch> JoinMachine::watch(const OwnEnds& own, const Options&) {
  return std::make_unique<JoinWatch>(ends_, process_, own.address.kernel);
}

}  // namespace shardwire::simulate

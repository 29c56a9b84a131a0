// create() meets the other ranks (bootstrap) and starts the engine over the connections. Compiled ops are in
// communicator_compile.cc, the collectives in communicator_collectives.cc. send() and recv() flatten the tensor and
// give the engine a message. An operation that fails half-way on one rank only, such as an interrupted wait, aborts the
// group, since the other ranks may be further.
#include "shardwire/communicator.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <utility>

#include "backend/base/host_name.h"
#include "backend/base/log.h"
#include "backend/bootstrap/store_rounds.h"
#include "backend/communicator/communicator_impl.h"
#include "backend/communicator/flat_tensor.h"
#include "backend/exec/point_to_point.h"
#include "backend/sight/status_server.h"
#include "backend/sight/trace.h"
#include "backend/symm/deferred_release.h"

namespace shardwire {

Result<std::unique_ptr<Communicator>> Communicator::create(Store& store, Rank rank, int worldSize,
                                                           const Options& options, std::string groupName) {
  if (worldSize < 1 || rank < 0 || rank >= worldSize) {
    return Status(StatusCode::kInvalidArgument,
                  worldSize < 1 ? fmt::format("a group needs at least one rank, but its size is {}", worldSize)
                                : fmt::format("rank {} is out of range: the group has {} ranks, 0 to {}", rank,
                                              worldSize, worldSize - 1));
  }
  Result<std::vector<internal::ForcedAlgorithm>> forced = internal::parseAlgorithms(options.algorithms);
  SW_RETURN_IF_ERROR(forced.status());
  SW_RETURN_IF_ERROR(internal::checkIsaVariable());
  Result<internal::Peers> peers =
      internal::connectPeers(store, rank, worldSize, options, deadlineAfter(options.timeout), groupName);
  SW_RETURN_IF_ERROR(peers.status());
  // After the handshakes: the ranks of a host wait for the measuring rank, so the measurement has the cores.
  internal::chooseStores();
  Options chosen = options;
  if (chosen.recordedOps < 0) {
    chosen.recordedOps = options.serveStatus || !options.recordFile.empty() ? internal::kRecordedOps : 0;
  }
  auto made = internal::Engine::create(std::move(*peers), rank, worldSize, chosen, std::move(groupName));
  if (!made.isOk()) {
    internal::noteEndOfGroup();
    return made.status();
  }
  const std::shared_ptr<internal::Engine> engine = std::move(*made);
  internal::watch(engine);
  if (options.serveStatus) {
    // The group is made, and its peers count on this rank: a missing status socket is no reason to end the group.
    if (const Status served = internal::serveStatus().status(); !served.isOk()) {
      internal::logWarn("{} goes on, but python -m shardwire.status cannot show this process: {}",
                        engine->facts().label, served.message());
    }
  }
  return std::unique_ptr<Communicator>(std::make_unique<internal::CommunicatorImpl>(engine, std::move(*forced)));
}

namespace internal {

namespace {

Selection selectionOf(const Engine& engine, std::vector<ForcedAlgorithm> forced) {
  const GroupFacts& group = engine.facts();
  const auto numHosts = static_cast<int>(std::set<std::int32_t>(group.hosts.begin(), group.hosts.end()).size());
  return {{group.worldSize, numHosts, group.hosts},
          std::min(group.options.inlineBytes, group.segmentBytes),
          std::move(forced)};
}

// The arguments that the two ends of a message compare with Options::checkAll.
std::string pointArguments(const Engine& engine, const TensorView& tensor) {
  return engine.facts().options.checkAll ? fmt::format("{}{}", dtypeName(tensor.dtype), toString(tensor.shape))
                                         : std::string();
}

}  // namespace

CommunicatorImpl::CommunicatorImpl(std::shared_ptr<Engine> engine, std::vector<ForcedAlgorithm> forced)
    : engine_(std::move(engine)), programs_(engine_->facts().rank, selectionOf(*engine_, std::move(forced))) {}

CommunicatorImpl::~CommunicatorImpl() {
  CommunicatorImpl::end();
}

void CommunicatorImpl::end() {
  if (!owner().isHere()) {
    return;
  }
  if (!endMutex_.tryLock()) {
    if (Activity::isInCallback()) {
      return;  // the other call of end() is on this thread, or may wait for this callback
    }
    endMutex_.lock();
  }
  const MutexLock lock(endMutex_, std::adopt_lock);
  if (std::exchange(hasEnded_, true)) {
    return;
  }
  engine_->shutdown();
  noteEndOfGroup();
  releaseUnheld();
}

Duration CommunicatorImpl::timeout() const {
  return owner().isHere() ? engine_->locked([](const GroupState& state) { return state.operations.timeout(); })
                          : engine_->facts().options.timeout;
}

void CommunicatorImpl::setTimeout(Duration timeout) {
  if (owner().isHere()) {
    engine_->setTimeout(timeout);
  }
}

std::uint64_t CommunicatorImpl::sequenceNumber() const {
  return owner().isHere() ? engine_->locked([](const GroupState& state) { return state.operations.numCalls(); }) : 0;
}

Status CommunicatorImpl::status() const {
  SW_RETURN_IF_ERROR(checkOwner());
  return engine_->locked([](const GroupState& state) { return state.operations.failure(); });
}

// ---- point to point

// A message has no position in the group's order at which it could fail, and the peer waits for the message: so the
// group is aborted.
Status CommunicatorImpl::checkMemory(const Call& call) const {
  if (!call.flat.status().isOk()) {
    engine_->abort({StatusCode::kSystem, fmt::format("there is no memory for the copy of a message on {}: {}",
                                                     engine_->facts().label, call.flat.status().message())});
  }
  return call.flat.status();
}

// The message is short, its memory has no gaps, and the group does not compare the ranks' tensors.
std::optional<std::span<std::byte>> CommunicatorImpl::bytesForCall(const TensorView& tensor,
                                                                   const CallOptions& options) const {
  const Options& group = engine_->facts().options;
  if (options.staging != nullptr || group.checkAll || !FlatTensors::isFlat(tensor)) {
    return std::nullopt;
  }
  const std::size_t bytes = static_cast<std::size_t>(numElements(tensor.shape)) * elementBytes(tensor.dtype);
  return bytes <= eagerBytes(group) ? std::optional(std::span(tensor.bytes, bytes)) : std::nullopt;
}

Result<WorkPtr> CommunicatorImpl::send(const TensorView& tensor, Rank peer, int tag, CallOptions options) {
  SW_RETURN_IF_ERROR(checkOwner());
  SW_RETURN_IF_ERROR(checkPeer(peer, "send"));
  const CallRecord record{.name = "send",
                          .inputs = std::span(&tensor, 1),
                          .lists = CallRecord::Lists::kJoined,
                          .isMessage = true,
                          .source = rank(),
                          .destination = peer,
                          .tag = tag};
  const Duration timeout = timeoutOf(options.timeout);
  auto ifFailed = Driving::IfFailed::kRefuse;
  if (const auto bytes = bytesForCall(tensor, options)) {
    Result<WorkPtr> sent = engine_->sendNow(*bytes, record, timeout);
    if (!sent.isOk() || *sent != nullptr) {
      return sent;
    }
    ifFailed = Driving::IfFailed::kTake;
  }
  Call call{.flat = FlatTensors("send", rank()), .options = std::move(options)};
  const Result<const TensorView*> flat = call.flat.input(tensor);
  SW_RETURN_IF_ERROR(flat.status());
  SW_RETURN_IF_ERROR(checkMemory(call));
  const std::size_t bytes = static_cast<std::size_t>(numElements((*flat)->shape)) * elementBytes(tensor.dtype);
  call.flat.pack();
  auto work = std::make_shared<PointSend>(peer, tag, std::span<const std::byte>((*flat)->bytes, bytes));
  work->description = Description::ofSend(tensor.dtype, numElements((*flat)->shape), peer, tag);
  work->timeout = timeout;
  work->keepAlive = call.keepAlive();
  work->lapses = call.options.lapses;
  work->staging = call.options.staging;
  work->arguments = pointArguments(*engine_, tensor);
  engine_->attach(call.options.staging);
  // A short message has left when submitPoint() returns.
  const bool mayWait = bytes > engine_->facts().options.inlineBytes && work->staging == nullptr;
  const Duration spin = mayWait ? sendSpin_.next() : Duration::zero();
  SW_RETURN_IF_ERROR(engine_->submitPoint(
      work, [&](PointToPoint& points) { points.start(work); }, spin, record, ifFailed));
  sendSpin_.note(spin, work->isDone());
  return WorkPtr(std::move(work));
}

Result<WorkPtr> CommunicatorImpl::recv(const TensorView& tensor, Rank peer, int tag, CallOptions options) {
  SW_RETURN_IF_ERROR(checkOwner());
  if (peer != kAnySource) {
    SW_RETURN_IF_ERROR(checkPeer(peer, "recv"));
  } else if (worldSize() == 1) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("recv from any rank on {}: the group has no other rank that could send", engine_->facts().label));
  }
  const CallRecord record{.name = "recv",
                          .outputs = std::span(&tensor, 1),
                          .lists = CallRecord::Lists::kJoined,
                          .isMessage = true,
                          .source = peer,
                          .destination = rank(),
                          .tag = tag};
  const Duration timeout = timeoutOf(options.timeout);
  const Duration spin = options.staging == nullptr ? recvSpin_.next() : Duration::zero();
  auto ifFailed = Driving::IfFailed::kRefuse;
  if (const auto bytes = peer == kAnySource ? std::nullopt : bytesForCall(tensor, options)) {
    Result<WorkPtr> received = engine_->recvNow(*bytes, record, timeout, spin > Duration::zero());
    if (!received.isOk() || *received != nullptr) {
      recvSpin_.note(spin, true);
      return received;
    }
    ifFailed = Driving::IfFailed::kTake;
  }
  Call call{.flat = FlatTensors("recv", rank()), .options = std::move(options)};
  const Result<const TensorView*> flat = call.flat.output(tensor);
  SW_RETURN_IF_ERROR(flat.status());
  SW_RETURN_IF_ERROR(checkMemory(call));
  const std::size_t bytes = static_cast<std::size_t>(numElements((*flat)->shape)) * elementBytes(tensor.dtype);
  auto work = std::make_shared<PointRecv>(peer, tag, std::span<std::byte>((*flat)->bytes, bytes));
  work->description = Description::ofRecv(tensor.dtype, numElements((*flat)->shape), peer, tag);
  work->timeout = timeout;
  work->keepAlive = call.keepAlive();
  if (call.flat.hasCopies()) {
    work->epilogue = call.flat.finish();
  }
  work->lapses = call.options.lapses && peer != kAnySource;
  work->arguments = pointArguments(*engine_, tensor);
  if (Staging* staging = call.options.staging; staging != nullptr) {
    engine_->attach(staging);
    staging->willWrite((*flat)->bytes, bytes, bytes);
  }
  SW_RETURN_IF_ERROR(engine_->submitPoint(
      work, [&](PointToPoint& points) { points.start(work); }, spin, record, ifFailed));
  recvSpin_.note(spin, work->isDone());
  return WorkPtr(std::move(work));
}

void CommunicatorImpl::setGlobalRanks(std::vector<std::int64_t> ranks) {
  if (owner().isHere()) {
    engine_->reports().setGlobalRanks(std::move(ranks));
  }
}

Status CommunicatorImpl::peerStatus(Rank peer) const {
  if (!owner().isHere() || peer < 0 || peer >= worldSize() || peer == rank()) {
    return Status::ok();
  }
  return engine_->locked([&](const GroupState& state) {
    return state.operations.failure().isOk() ? state.links.statusOf(peer) : Status::ok();
  });
}

void CommunicatorImpl::abort(const std::string& reason) {
  if (!owner().isHere()) {
    return;
  }
  engine_->abort({StatusCode::kAborted,
                  fmt::format("aborted on {}{}{}", engine_->facts().label, reason.empty() ? "" : ": ", reason)});
}

void CommunicatorImpl::revoke(const std::string& notice) {
  if (owner().isHere()) {
    const auto mine = [&] {
      return fmt::format("rank {} (pid {} on host {}) revoked the group", rank(), ::getpid(), hostName());
    };
    engine_->revoke(notice.empty() ? mine() : notice);
  }
}

std::string CommunicatorImpl::revocation() const {
  if (!owner().isHere()) {
    return "";
  }
  engine_->memory().help();
  return engine_->locked([](const GroupState& state) { return state.failure.revocation(); });
}

std::string CommunicatorImpl::describeTransports() const {
  return engine_->describeLinks() + describeKernels();
}

std::string CommunicatorImpl::describeCollectives() const {
  return describeSelection(programs_.selection());
}

}  // namespace internal
}  // namespace shardwire

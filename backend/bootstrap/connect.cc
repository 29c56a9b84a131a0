#include "backend/bootstrap/connect.h"

#include <errno.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

#include "backend/base/log.h"
#include "backend/base/system_error.h"
#include "backend/base/wire.h"
#include "backend/bootstrap/address.h"
#include "backend/bootstrap/select_transport.h"
#include "backend/transport/shm/shm_doorbell.h"
#include "backend/transport/shm/shm_handshake.h"
#include "backend/transport/shm/unix_socket.h"
#include "backend/transport/wire_doorbell.h"

namespace shardwire::internal {
namespace {

// The first failure of any rank, so that all ranks end at once and with the same words.
constexpr const char* kFailureKey = "shardwire/failed";
constexpr std::size_t kMaxTextBytes = 8192;
// How often a rank that waits for peers to dial looks whether one of them gave up.
constexpr Duration kLookForFailureEvery = std::chrono::milliseconds(200);
constexpr Duration kReasonWithin = std::chrono::seconds(1);

std::string encodeFailure(const Status& failure) {
  ByteWriter writer;
  writer.u8(static_cast<std::uint8_t>(failure.code()));
  writer.text(std::string_view(failure.message()).substr(0, kMaxTextBytes));
  return writer.bytes();
}

std::optional<Status> decodeFailure(std::string_view bytes) {
  ByteReader reader(bytes);
  const auto code = static_cast<StatusCode>(reader.u8());
  std::string text = reader.text(kMaxTextBytes);
  if (!reader.isDone() || code == StatusCode::kOk || code > StatusCode::kInternal) {
    return std::nullopt;
  }
  return Status{code, std::move(text)};
}

std::string rankList(const std::vector<Rank>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

std::string excludedText(const Options& options) {
  return fmt::format("excluded by SHARDWIRE_TRANSPORTS={}", options.transports);
}

std::string pairText(Rank a, const RankAddress& first, Rank b, const RankAddress& second) {
  return a < b ? fmt::format("rank {} (pid {} on host {}) and rank {} (pid {} on host {})", a, first.pid, first.host, b, second.pid,
                             second.host)
               : pairText(b, second, a, first);
}

// One rank's way through the bootstrap.
class Bootstrap {
 public:
  Bootstrap(Store& store, Rank rank, int worldSize, const Options& options, Deadline deadline)
      : store_(store), rank_(rank), worldSize_(worldSize), deadline_(deadline), start_(Clock::now()) {
    peers_.options = std::make_unique<const Options>(options);
  }

  Result<Peers> run();
  // Tells the others, and returns what all ranks report: the first failure.
  Status agreeOnFailure(const Status& mine);

 private:
  std::size_t index(Rank rank) const { return static_cast<std::size_t>(rank); }
  Endpoint* wire(TransportKind kind) { return wires_[static_cast<std::size_t>(kind)].get(); }
  std::string nameOf(Rank peer) const {
    return fmt::format("rank {} (pid {} on host {})", peer, addresses_[index(peer)].pid, addresses_[index(peer)].host);
  }
  // Waits until `until`; a deadline that has passed means to look once.
  std::optional<Status> failureOfAnyRank(Deadline until) {
    const auto bytes = store_.get(kFailureKey, until);
    return bytes.isOk() ? decodeFailure(*bytes) : std::nullopt;
  }
  Status lateError(const std::string& what, const std::vector<Rank>& ranks) const {
    const std::chrono::duration<double> waited = Clock::now() - start_;
    return {StatusCode::kTimeout, fmt::format("{} {} within {:.3g} s", rankList(ranks), what, waited.count())};
  }
  Status publish();
  Status prepareShm(bool isAllowed);
  Status prepareWires(const AllowedTransports& allowed);
  Status readAddresses();
  std::vector<Rank> absentRanks();
  Status checkPairs() const;
  Status choose();
  Status dialLower();
  Status dial(Rank peer);
  Result<std::unique_ptr<Connection>> dialBy(TransportKind kind, Rank peer);
  Result<std::unique_ptr<Connection>> dialByShm(Rank peer);
  Status acceptHigher();
  Status acceptOne();
  Status answerShmDialer();
  Status answerLink(LinkListener::Accepted accepted);
  std::vector<Rank> missingHigher() const;
  Status join(std::unique_ptr<Connection> connection, TransportKind kind);
  Status finish();

  Store& store_;
  const Rank rank_;
  const int worldSize_;
  const Deadline deadline_;
  const Deadline start_;
  RankAddress self_;
  Fd listener_;
  std::optional<LinkListener> linkListener_;
  std::array<std::unique_ptr<Endpoint>, kNumTransportKinds> wires_;  // by TransportKind; null: not here, or not a wire
  std::array<bool, kNumTransportKinds> used_{};
  std::vector<RankAddress> addresses_;
  std::vector<TransportChoice> choices_;  // by rank
  ShmEndpoint endpoint_;
  Peers peers_;
};

Status Bootstrap::prepareShm(bool isAllowed) {
  TransportAddress& shm = self_.transports[static_cast<std::size_t>(TransportKind::kShm)];
  if (!isAllowed) {
    shm.whyNot = excludedText(*peers_.options);
  }
  // The inbox is also this rank's bell and its sign of life, whatever joins it to others.
  auto endpoint = ShmEndpoint::create(rank_, worldSize_, RandomId{}, self_.host, *peers_.options);
  SW_RETURN_IF_ERROR(endpoint.status());
  endpoint_ = std::move(*endpoint);
  if (worldSize_ > 1 && isAllowed) {
    auto listener = listenUnix(self_.socketName, worldSize_);
    SW_RETURN_IF_ERROR(listener.status());
    listener_ = std::move(*listener);
  }
  return Status::ok();
}

// A wire that cannot be used here is no error: the peers are told why, and other transports join them.
Status Bootstrap::prepareWires(const AllowedTransports& allowed) {
  const Self self{rank_, worldSize_, self_.host, peers_.options.get(), peers_.options->storages};
  bool anyWire = false;
  for (const auto& [kind, make] : {std::pair{TransportKind::kRdma, &makeRdmaEndpoint}, std::pair{TransportKind::kMpi, &makeMpiEndpoint},
                                   std::pair{TransportKind::kTcp, &makeTcpEndpoint}}) {
    const auto k = static_cast<std::size_t>(kind);
    if (!allowed[k]) {
      self_.transports[k].whyNot = excludedText(*peers_.options);
      continue;
    }
    auto made = make(self);
    if (!made.isOk()) {
      if (made.status().code() == StatusCode::kInvalidArgument) {
        return made.status();  // a setting that cannot be followed
      }
      self_.transports[k].whyNot = made.status().message();
      continue;
    }
    wires_[k] = std::move(*made);
    self_.transports[k].bytes = wires_[k]->address();
    anyWire = true;
  }
  if (!anyWire) {
    return Status::ok();
  }
  auto listener = LinkListener::create(*peers_.options, worldSize_);
  if (listener.isOk()) {
    linkListener_ = std::move(*listener);
    self_.links = linkListener_->addresses();
    return Status::ok();
  }
  if (listener.status().code() == StatusCode::kInvalidArgument) {
    return listener.status();
  }
  for (std::size_t k = 0; k < wires_.size(); ++k) {
    if (wires_[k] != nullptr) {
      wires_[k].reset();
      self_.transports[k] = {{}, listener.status().message()};
    }
  }
  return Status::ok();
}

Status Bootstrap::publish() {
  auto prepare = [&]() -> Status {
    auto address = makeAddress();
    SW_RETURN_IF_ERROR(address.status());
    self_ = std::move(*address);
    if (!peers_.options->hostId.empty()) {
      self_.bootId = "SHARDWIRE_HOST_ID=" + peers_.options->hostId;
      self_.networkNamespace = 0;
    }
    const auto allowed = parseTransports(peers_.options->transports);
    SW_RETURN_IF_ERROR(allowed.status());
    SW_RETURN_IF_ERROR(prepareShm((*allowed)[static_cast<std::size_t>(TransportKind::kShm)]));
    return worldSize_ > 1 ? prepareWires(*allowed) : Status::ok();
  };
  const Status prepared = prepare();
  if (!prepared.isOk()) {
    self_.failure = {prepared.code(), fmt::format("rank {} could not start: {}", rank_, prepared.message())};
  }
  if (worldSize_ > 1) {
    SW_RETURN_IF_ERROR(store_.set(addressKey(rank_), encodeAddress(self_)));
  }
  return self_.failure;
}

std::vector<Rank> Bootstrap::absentRanks() {
  std::vector<Rank> absent;
  for (Rank rank = 0; rank < worldSize_; ++rank) {
    if (!store_.get(addressKey(rank), Clock::now()).isOk()) {
      absent.push_back(rank);
    }
  }
  return absent;
}

Status Bootstrap::readAddresses() {
  for (Rank rank = 0; rank < worldSize_; ++rank) {
    const auto bytes = store_.get(addressKey(rank), deadline_);
    if (bytes.status().code() == StatusCode::kTimeout) {
      std::vector<Rank> absent = absentRanks();
      return lateError("did not arrive", absent.empty() ? std::vector<Rank>{rank} : absent);
    }
    SW_RETURN_IF_ERROR(bytes.status());
    auto address = decodeAddress(*bytes);
    if (!address.isOk()) {
      return {address.status().code(), fmt::format("rank {}: {}", rank, address.status().message())};
    }
    SW_RETURN_IF_ERROR(address->failure);
    addresses_.push_back(std::move(*address));
  }
  endpoint_.token = addresses_[0].token;
  return Status::ok();
}

// Every rank sees all addresses, so all find the same pair first.
Status Bootstrap::checkPairs() const {
  const auto offers = [&](Rank rank, std::size_t kind) { return addresses_[index(rank)].transports[kind].whyNot.empty(); };
  const std::vector<std::int32_t> hosts = numberHosts(addresses_);
  for (Rank a = 0; a < worldSize_; ++a) {
    for (Rank b = a + 1; b < worldSize_; ++b) {
      bool joined =
          offers(a, 0) && offers(b, 0) && hosts[index(a)] == hosts[index(b)] && addresses_[index(a)].uid == addresses_[index(b)].uid;
      for (std::size_t kind = 1; kind < kNumTransportKinds && !joined; ++kind) {
        joined = offers(a, kind) && offers(b, kind);
      }
      if (!joined) {
        const auto choice = chooseTransports(a, addresses_[index(a)], b, addresses_[index(b)], [](TransportKind) { return std::string(); });
        return {StatusCode::kUnsupported,
                fmt::format("no transport joins {}: {}", pairText(a, addresses_[index(a)], b, addresses_[index(b)]), reasons(choice))};
      }
    }
  }
  return Status::ok();
}

Status Bootstrap::choose() {
  SW_RETURN_IF_ERROR(checkPairs());
  choices_.resize(index(worldSize_));
  for (Rank peer = 0; peer < worldSize_; ++peer) {
    if (peer == rank_) {
      continue;
    }
    const RankAddress& theirs = addresses_[index(peer)];
    TransportChoice& choice = choices_[index(peer)];
    choice = chooseTransports(rank_, addresses_[index(rank_)], peer, theirs, [&](TransportKind kind) {
      return wire(kind)->whyNot(theirs.transports[static_cast<std::size_t>(kind)].bytes);
    });
    if (choice.candidates.empty()) {
      return {StatusCode::kUnsupported,
              fmt::format("no transport joins {}: {}", pairText(rank_, addresses_[index(rank_)], peer, theirs), reasons(choice))};
    }
  }
  return Status::ok();
}

Result<std::unique_ptr<Connection>> Bootstrap::dialByShm(Rank peer) {
  const RankAddress& address = addresses_[index(peer)];
  auto socket = dialUnix(address.socketName, deadline_);
  if (socket.status().code() == StatusCode::kTimeout) {
    return socket.status();
  }
  if (!socket.isOk()) {
    return Status{StatusCode::kUnsupported,
                  fmt::format("{}; rank {} has ended, or is in another network namespace (containers of one host must share it: "
                              "--network=host or one pod)",
                              socket.status().message(), peer)};
  }
  return dialShm(std::move(*socket), endpoint_, peer, deadline_);
}

Result<std::unique_ptr<Connection>> Bootstrap::dialBy(TransportKind kind, Rank peer) {
  if (kind == TransportKind::kShm) {
    return dialByShm(peer);
  }
  const RankAddress& address = addresses_[index(peer)];
  const LinkHello hello{rank_, peer, static_cast<std::uint32_t>(worldSize_), static_cast<std::uint8_t>(kind)};
  auto link = dialLink(address.links, endpoint_.token, hello, *peers_.options, deadline_);
  SW_RETURN_IF_ERROR(link.status());
  return wire(kind)->connect(std::move(*link), peer, true, address.transports[static_cast<std::size_t>(kind)].bytes, nameOf(peer),
                             deadline_);
}

// The best transport first. One that turns out not to work, though both ranks offer it, leaves the pair to the next.
Status Bootstrap::dial(Rank peer) {
  TransportChoice& choice = choices_[index(peer)];
  Status last;
  for (const TransportKind kind : choice.candidates) {
    auto connection = dialBy(kind, peer);
    if (connection.isOk()) {
      return join(std::move(*connection), kind);
    }
    last = connection.status();
    choice.whyNot[static_cast<std::size_t>(kind)] = last.message();
    if (last.code() == StatusCode::kTimeout || last.code() == StatusCode::kMismatch) {
      return {last.code(),
              fmt::format("rank {} could not be joined by rank {} ({}): {}", peer, rank_, transportKindName(kind), last.message())};
    }
  }
  return {
      last.code() == StatusCode::kPeerFailed ? StatusCode::kPeerFailed : StatusCode::kUnsupported,
      fmt::format("no transport joins {}: {}", pairText(rank_, addresses_[index(rank_)], peer, addresses_[index(peer)]), reasons(choice))};
}

// In the order of ranks: a rank answers once it has dialed all below it, so rank 0 answers at once and the others follow.
Status Bootstrap::dialLower() {
  for (Rank peer = 0; peer < rank_; ++peer) {
    SW_RETURN_IF_ERROR(dial(peer));
  }
  return Status::ok();
}

Status Bootstrap::join(std::unique_ptr<Connection> connection, TransportKind kind) {
  const Rank peer = connection->peer();
  auto& place = peers_.connections[index(peer)];
  if (place != nullptr) {
    return {StatusCode::kMismatch, fmt::format("two processes call themselves rank {}", peer)};
  }
  place = std::move(connection);
  used_[static_cast<std::size_t>(kind)] = true;
  peers_.whyNotFaster[index(peer)] = reasons(choices_[index(peer)], static_cast<int>(kind));
  return Status::ok();
}

Status Bootstrap::answerLink(LinkListener::Accepted accepted) {
  const Rank peer = accepted.hello.from;
  TransportChoice& choice = choices_[index(peer)];
  const auto kind = static_cast<TransportKind>(accepted.hello.kind);
  if (std::find(choice.candidates.begin(), choice.candidates.end(), kind) == choice.candidates.end()) {
    return {StatusCode::kMismatch, fmt::format("rank {} dialed rank {} by transport {}, which does not join them", peer, rank_,
                                               static_cast<int>(accepted.hello.kind))};
  }
  auto connection = wire(kind)->connect(std::move(accepted.link), peer, false,
                                        addresses_[index(peer)].transports[accepted.hello.kind].bytes, nameOf(peer), deadline_);
  if (connection.isOk()) {
    return join(std::move(*connection), kind);
  }
  // The dialer learns of it too, and tries the next transport or gives up.
  choice.whyNot[accepted.hello.kind] = connection.status().message();
  logInfo("rank {}: {} to {} failed: {}", rank_, transportKindName(kind), nameOf(peer), connection.status().message());
  return Status::ok();
}

Status Bootstrap::answerShmDialer() {
  auto socket = acceptUnix(listener_, Clock::now());
  if (!socket.isOk()) {
    return socket.status().code() == StatusCode::kTimeout ? Status::ok() : socket.status();
  }
  auto connection = answerShm(std::move(*socket), endpoint_, deadline_);
  if (!connection.isOk()) {
    return {connection.status().code(), fmt::format("rank {}, answering a peer (shm): {}", rank_, connection.status().message())};
  }
  // Null: a stranger, turned away.
  return *connection == nullptr ? Status::ok() : join(std::move(*connection), TransportKind::kShm);
}

// Waits a while for somebody to dial, and answers.
Status Bootstrap::acceptOne() {
  std::vector<pollfd> waiting;
  if (listener_.isOpen()) {
    waiting.push_back({listener_.get(), POLLIN, 0});
  }
  if (linkListener_.has_value()) {
    for (const Fd& socket : linkListener_->sockets()) {
      waiting.push_back({socket.get(), POLLIN, 0});
    }
  }
  const auto until = std::min(deadline_, Clock::now() + kLookForFailureEvery);
  const auto wait = std::chrono::ceil<std::chrono::milliseconds>(std::max(until - Clock::now(), Duration::zero()));
  const int ready = ::poll(waiting.data(), waiting.size(), static_cast<int>(wait.count()));
  if (ready < 0 && errno != EINTR) {
    return systemError("waiting for peers to dial", errno);
  }
  if (ready <= 0) {
    return Status::ok();
  }
  if (listener_.isOpen() && waiting.front().revents != 0) {
    return answerShmDialer();
  }
  auto accepted = linkListener_->accept(endpoint_.token, rank_, worldSize_, deadline_);
  SW_RETURN_IF_ERROR(accepted.status());
  for (LinkListener::Accepted& each : *accepted) {
    SW_RETURN_IF_ERROR(answerLink(std::move(each)));
  }
  return Status::ok();
}

std::vector<Rank> Bootstrap::missingHigher() const {
  std::vector<Rank> missing;
  for (Rank rank = rank_ + 1; rank < worldSize_; ++rank) {
    if (peers_.connections[index(rank)] == nullptr) {
      missing.push_back(rank);
    }
  }
  return missing;
}

Status Bootstrap::acceptHigher() {
  Deadline nextLook = Clock::now() + kLookForFailureEvery;
  for (std::vector<Rank> missing = missingHigher(); !missing.empty(); missing = missingHigher()) {
    SW_RETURN_IF_ERROR(acceptOne());
    if (Clock::now() < nextLook) {
      continue;
    }
    nextLook = Clock::now() + kLookForFailureEvery;
    if (const auto failure = failureOfAnyRank(Clock::now())) {
      return *failure;
    }
    if (Clock::now() >= deadline_ && !missingHigher().empty()) {
      return lateError(fmt::format("published an address but did not connect to rank {}", rank_), missingHigher());
    }
  }
  return Status::ok();
}

Status Bootstrap::finish() {
  endpoint_.inbox->closeFd();
  peers_.hosts = worldSize_ > 1 ? numberHosts(addresses_) : std::vector<std::int32_t>{0};
  for (std::size_t kind = 0; kind < wires_.size(); ++kind) {
    if (wires_[kind] != nullptr && used_[kind]) {
      peers_.wires.push_back(wires_[kind]->takeWire());
    }
  }
  peers_.doorbell = std::make_unique<ShmDoorbell>(endpoint_.inbox);
  if (!peers_.wires.empty()) {
    auto doorbell = WireDoorbell::create(std::move(peers_.doorbell), peers_.wires);
    SW_RETURN_IF_ERROR(doorbell.status());
    peers_.doorbell = std::move(*doorbell);
  }
  return Status::ok();
}

Result<Peers> Bootstrap::run() {
  SW_RETURN_IF_ERROR(publish());
  peers_.connections.resize(index(worldSize_));
  peers_.whyNotFaster.resize(index(worldSize_));
  if (worldSize_ > 1) {
    SW_RETURN_IF_ERROR(readAddresses());
    SW_RETURN_IF_ERROR(choose());
    SW_RETURN_IF_ERROR(dialLower());
    SW_RETURN_IF_ERROR(acceptHigher());
  }
  SW_RETURN_IF_ERROR(finish());
  return std::move(peers_);
}

Status Bootstrap::agreeOnFailure(const Status& mine) {
  if (worldSize_ == 1) {
    return mine;
  }
  // A peer that hung up knows the reason better and is about to tell.
  const bool hungUp = mine.code() == StatusCode::kPeerFailed;
  if (const auto failure = failureOfAnyRank(hungUp ? std::min(deadline_, Clock::now() + kReasonWithin) : Clock::now())) {
    return *failure;
  }
  if (const Status told = store_.set(kFailureKey, encodeFailure(mine)); !told.isOk()) {
    logDebug("rank {}: the store did not take the failure: {}", rank_, told.message());
  }
  return mine;
}

// "shm to ranks 1; tcp to ranks 2, 3 (shm: they run on different hosts (a and b); rdma: rank 0: no device)"
std::string summary(const Peers& peers) {
  std::map<std::pair<std::string, std::string>, std::vector<Rank>> byTransport;
  for (std::size_t peer = 0; peer < peers.connections.size(); ++peer) {
    if (const auto& connection = peers.connections[peer]; connection != nullptr) {
      byTransport[{connection->transportName(), peers.whyNotFaster[peer]}].push_back(static_cast<Rank>(peer));
    }
  }
  std::string text;
  for (const auto& [transport, ranks] : byTransport) {
    text += fmt::format("{}{} to {}{}", text.empty() ? "" : "; ", transport.first, rankList(ranks),
                        transport.second.empty() ? "" : fmt::format(" ({})", transport.second));
  }
  return text.empty() ? "alone" : text;
}

}  // namespace

Result<Peers> connectPeers(Store& store, Rank rank, int worldSize, const Options& options, Deadline deadline,
                           const std::string& groupName) {
  if (worldSize < 1 || rank < 0 || rank >= worldSize) {
    return Status{StatusCode::kInvalidArgument, fmt::format("rank {} of {} does not exist", rank, worldSize)};
  }
  Bootstrap bootstrap(store, rank, worldSize, options, deadline);
  auto peers = bootstrap.run();
  if (peers.isOk()) {
    logInfo("group '{}', rank {} of {}: {}", groupName, rank, worldSize, summary(*peers));
    return peers;
  }
  const Status failure = bootstrap.agreeOnFailure(peers.status());
  return Status{failure.code(), fmt::format("group '{}' could not be made: {}", groupName, failure.message())};
}

}  // namespace shardwire::internal

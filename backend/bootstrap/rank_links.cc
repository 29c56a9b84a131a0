// A dial has two steps. Ranks of one user on one host have a secret that is not in the store, so the dialer first asks
// the peer's process for the secret over the process's Unix socket; other pairs use the job's token. Then LinkDial
// makes the link, and proves knowledge of the secret. Both steps go on without waiting (PeerDial::step()); dial()
// repeats the steps up to a limit, and dials again when the peer had no room. In the other direction the process's
// listener accepts connections for this rank, and callers() takes the links.
#include "backend/bootstrap/rank_links.h"

#include <fmt/format.h>
#include <poll.h>

#include <utility>

#include "backend/bootstrap/check_addresses.h"
#include "backend/fabric/host_listener.h"
#include "backend/fabric/proof.h"
#include "backend/fabric/unix_socket.h"

namespace shardwire::internal {
namespace {

// The pause before another request to a process whose listener has too many connections waiting.
constexpr Duration kFullListener = std::chrono::milliseconds(2);

}  // namespace

Result<std::vector<NetAddress>> RankLinks::openLinks(const Options& options, std::uint64_t networkNamespace,
                                                     const RandomId& token, int worldSize,
                                                     std::shared_ptr<Fabric> fabric, std::shared_ptr<RankBell> bell) {
  const auto listener = fabric->linkListener(networkNamespace, options);
  SW_RETURN_IF_ERROR(listener.status());
  const auto interfaces = fabric->interfaces(networkNamespace);
  SW_RETURN_IF_ERROR(interfaces.status());
  ProgressBell& progress = fabric->progressBell();
  return openAt(**listener, chooseInterfaces(*interfaces, options.socketIfname), token, worldSize, std::move(fabric),
                std::move(bell), progress);
}

Result<std::vector<NetAddress>> RankLinks::openAt(LinkListener& listener, std::vector<InterfaceAddress> interfaces,
                                                  const RandomId& token, int worldSize, std::shared_ptr<Fabric> fabric,
                                                  std::shared_ptr<RankBell> bell, ProgressBell& progress) {
  auto wakeup = std::make_shared<LateWakeup>(bell->words(), progress);
  auto endpoint = listener.addEndpoint(makeEndpointId(token), worldSize, [wakeup] { wakeup->ring(); });
  SW_RETURN_IF_ERROR(endpoint.status());
  open_ = std::make_unique<Open>();
  open_->interfaces = std::move(interfaces);
  open_->fabric = std::move(fabric);
  open_->bell = std::move(bell);
  open_->wakeup = std::move(wakeup);
  open_->endpoint = std::move(*endpoint);
  return open_->endpoint->addresses();
}

void RankLinks::know(Rank self, const Options* options, const std::vector<RankAddress>* addresses, std::string secret) {
  self_ = self;
  secret_ = std::move(secret);
  options_ = options;
  addresses_ = addresses;
  if (open_ == nullptr) {
    return;
  }
  LinkGuests guests;
  guests.self = self;
  guests.worldSize = worldSize();
  guests.key = makeLinkKey(addressOf(0).token, options->jobToken);
  guests.keyOfUser = makeLinkKey(addressOf(0).token, secret_);
  for (Rank rank = 0; rank < worldSize(); ++rank) {
    guests.sharesSecret.push_back(sharesSecret(rank));
  }
  open_->endpoint->open(std::move(guests));
}

// ---- dialing

PeerDial::PeerDial(const RankAddress& address, const RandomId& token, bool sharesSecret, const LinkHello& hello,
                   std::vector<NetAddress> reach, const Options& options)
    : address_(address),
      token_(token),
      sharesSecret_(sharesSecret),
      hello_(hello),
      reach_(std::move(reach)),
      options_(options) {}

std::optional<Result<Link>> PeerDial::step() {
  if (!link_.has_value()) {
    auto known = sharesSecret_ ? secret() : std::optional(Result<std::string>(options_.jobToken));
    if (!known.has_value()) {
      return std::nullopt;
    }
    if (!known->isOk()) {
      return Result<Link>(noSecret(known->status()));
    }
    link_.emplace(LinkDial(reach_, makeLinkKey(token_, **known), hello_));
  }
  return link_->step();
}

std::optional<Result<std::string>> PeerDial::secret() {
  if (!question_.isOpen()) {
    if (Clock::now() < askAgain_) {
      return std::nullopt;
    }
    auto socket = dialProcess(address_.socketName, Clock::now());
    if (socket.status().code() == StatusCode::kTimeout) {
      askAgain_ = Clock::now() + kFullListener;
      return std::nullopt;
    }
    if (!socket.isOk()) {
      const auto again = tryDialUnix(address_.socketName);
      isRefused_ = again.isOk() && !again->isOpen();
    }
    const Status asked =
        socket.isOk() ? askForSecret(*socket, makeHostToken(address_.processToken, ""), Clock::now()) : socket.status();
    if (!asked.isOk()) {
      return Result<std::string>(asked);
    }
    question_ = std::move(*socket);
  }
  pollfd entry{question_.get(), POLLIN, 0};
  if (::poll(&entry, 1, 0) <= 0) {
    return std::nullopt;
  }
  auto answer = receiveSecret(question_, Clock::now());
  question_.reset();
  // This rank was slow to speak, and counted as one of too many unknown callers.
  if (answer.status().code() == StatusCode::kTimeout) {
    askAgain_ = Clock::now() + kFullListener;
    return std::nullopt;
  }
  return answer;
}

Status PeerDial::noSecret(const Status& why) const {
  return {why.code(),
          fmt::format("rank {} gave no secret over its Unix socket, as ranks of one user on one host do ({}); "
                      "where that cannot work, set SHARDWIRE_JOB_TOKEN to one secret for all ranks",
                      hello_.to, why.message())};
}

Deadline PeerDial::appendSockets(std::vector<pollfd>* entries) const {
  if (link_.has_value()) {
    return link_->appendSockets(entries);
  }
  if (!question_.isOpen()) {
    return askAgain_;
  }
  entries->push_back({question_.get(), POLLIN, 0});
  return kNoDeadline;
}

Status PeerDial::whyNot() const {
  return link_.has_value() ? link_->whyNot() : noSecret({StatusCode::kTimeout, "it did not answer in time"});
}

// ---- the rank's link endpoint

// Ranks of one user on one host have a secret that is not in the store. The addresses read by this rank decide which
// ranks have the secret, not the caller's claim.
bool RankLinks::sharesSecret(Rank peer) const {
  return !addressOf(self_).hasJobToken && isOneUserOnOneHost(addressOf(self_), addressOf(peer));
}

// A link-local address of this host belongs to one interface, and cannot be reached through another: a dial there ends
// only by a timeout, and so delays the report of a death on this host. So this rank dials addresses of this host as
// published.
std::vector<NetAddress> RankLinks::reachOf(Rank peer) const {
  const RankAddress& to = addressOf(peer);
  const std::string& mine = addressOf(self_).kernel;
  if (to.kernel.empty() || mine.empty()) {  // not known
    return orderByReach(to.links, open_->interfaces);
  }
  return to.kernel == mine ? to.links : orderByReachElsewhere(to.links, open_->interfaces);
}

PeerDial RankLinks::begin(Rank peer, TransportKind kind) const {
  const LinkHello hello{self_, peer, static_cast<std::uint32_t>(worldSize()), static_cast<std::uint8_t>(kind),
                        makeEndpointId(addressOf(peer).token)};
  return {addressOf(peer), addressOf(0).token, sharesSecret(peer), hello, reachOf(peer), *options_};
}

Result<Link> RankLinks::dial(Rank peer, TransportKind kind, const WaitLimit& limit) const {
  std::optional<PeerDial> dial(begin(peer, kind));
  while (true) {
    if (auto link = dial->step(); link.has_value()) {
      if (link->isOk() || !dial->wasCrowdedOut() || limit.isOver()) {
        return std::move(*link);
      }
      SW_RETURN_IF_ERROR(limit.sooner(Clock::now() + kFullListener).poll({}).status());
      dial.emplace(begin(peer, kind));
      continue;
    }
    if (limit.isOver()) {
      return dial->whyNot();
    }
    std::vector<pollfd> entries;
    const Deadline next = dial->appendSockets(&entries);
    SW_RETURN_IF_ERROR(limit.sooner(next).poll(entries).status());
  }
}

Result<std::vector<Caller>> RankLinks::callers() {
  std::vector<Caller> callers;
  auto overLinks = open_->endpoint->take();
  SW_RETURN_IF_ERROR(overLinks.status());
  for (AcceptedLink& each : *overLinks) {
    callers.push_back({each.hello.from, static_cast<TransportKind>(each.hello.kind), std::move(each.link)});
  }
  return callers;
}

}  // namespace shardwire::internal

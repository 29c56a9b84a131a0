#include "backend/bootstrap/connect.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "backend/base/log.h"
#include "backend/base/wire.h"
#include "backend/bootstrap/address.h"
#include "backend/transport/shm/shm_doorbell.h"
#include "backend/transport/shm/shm_handshake.h"
#include "backend/transport/shm/unix_socket.h"

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

// One rank's way through the bootstrap.
class Bootstrap {
 public:
  Bootstrap(Store& store, Rank rank, int worldSize, const Options& options, Deadline deadline)
      : store_(store), rank_(rank), worldSize_(worldSize), options_(options), deadline_(deadline), start_(Clock::now()) {}

  Result<Peers> run();
  // Tells the others, and returns what all ranks report: the first failure.
  Status agreeOnFailure(const Status& mine);

 private:
  std::size_t index(Rank rank) const { return static_cast<std::size_t>(rank); }
  // Waits until `until`; a deadline that has passed means to look once.
  std::optional<Status> failureOfAnyRank(Deadline until) {
    const auto bytes = store_.get(kFailureKey, until);
    return bytes.isOk() ? decodeFailure(*bytes) : std::nullopt;
  }
  Status lateError(const char* what, const std::vector<Rank>& ranks) const {
    const std::chrono::duration<double> waited = Clock::now() - start_;
    return {StatusCode::kTimeout, fmt::format("{} {} within {:.3g} s", rankList(ranks), what, waited.count())};
  }
  Status publish();
  Status readAddresses();
  std::vector<Rank> absentRanks();
  Status checkOneHost() const;
  Status dialLower();
  Status dial(Rank peer);
  Status acceptHigher();

  Store& store_;
  const Rank rank_;
  const int worldSize_;
  const Options& options_;
  const Deadline deadline_;
  const Deadline start_;
  RankAddress self_;
  Fd listener_;
  std::vector<RankAddress> addresses_;
  ShmEndpoint endpoint_;
  Peers peers_;
};

Status Bootstrap::publish() {
  auto prepare = [&]() -> Status {
    auto address = makeAddress();
    SW_RETURN_IF_ERROR(address.status());
    self_ = std::move(*address);
    auto endpoint = ShmEndpoint::create(rank_, worldSize_, RandomId{}, self_.host, options_);
    SW_RETURN_IF_ERROR(endpoint.status());
    endpoint_ = std::move(*endpoint);
    if (worldSize_ > 1) {
      auto listener = listenUnix(self_.socketName, worldSize_);
      SW_RETURN_IF_ERROR(listener.status());
      listener_ = std::move(*listener);
    }
    return Status::ok();
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
Status Bootstrap::checkOneHost() const {
  const RankAddress& first = addresses_[0];
  for (Rank rank = 1; rank < worldSize_; ++rank) {
    const RankAddress& other = addresses_[index(rank)];
    if (other.bootId != first.bootId) {
      return {
          StatusCode::kUnsupported,
          fmt::format("no transport joins rank 0 (host {}) and rank {} (host {}): they run on different hosts (boot ids {} and {}), and "
                      "this release joins ranks by shared memory only",
                      first.host, rank, other.host, first.bootId, other.bootId)};
    }
    if (other.uid != first.uid) {
      return {StatusCode::kUnsupported, fmt::format("no transport joins rank 0 and rank {}: shm joins processes of one user, and they run "
                                                    "as users {} and {}",
                                                    rank, first.uid, other.uid)};
    }
  }
  return Status::ok();
}

Status Bootstrap::dial(Rank peer) {
  const RankAddress& address = addresses_[index(peer)];
  auto socket = dialUnix(address.socketName, deadline_);
  if (socket.status().code() == StatusCode::kTimeout) {
    return {StatusCode::kTimeout, fmt::format("rank {} did not reach rank {} (shm): {}", rank_, peer, socket.status().message())};
  }
  if (!socket.isOk()) {
    return {StatusCode::kUnsupported,
            fmt::format("no transport joins rank {} and rank {} (pid {} on host {}): shm: {}; rank {} has ended, or is in another network "
                        "namespace (containers of one host must share it: --network=host or one pod)",
                        peer, rank_, address.pid, address.host, socket.status().message(), peer)};
  }
  auto connection = dialShm(std::move(*socket), endpoint_, peer, deadline_);
  if (!connection.isOk()) {
    const Status& status = connection.status();
    return {status.code(), fmt::format("rank {} could not be joined by rank {} (shm): {}", peer, rank_, status.message())};
  }
  peers_.connections[index(peer)] = std::move(*connection);
  return Status::ok();
}

// In the order of ranks: a rank answers once it has dialed all below it, so rank 0 answers at once and the others follow.
Status Bootstrap::dialLower() {
  for (Rank peer = 0; peer < rank_; ++peer) {
    SW_RETURN_IF_ERROR(dial(peer));
  }
  return Status::ok();
}

Status Bootstrap::acceptHigher() {
  int missing = worldSize_ - 1 - rank_;
  while (missing > 0) {
    auto socket = acceptUnix(listener_, std::min(deadline_, Clock::now() + kLookForFailureEvery));
    if (socket.status().code() == StatusCode::kTimeout) {
      if (const auto failure = failureOfAnyRank(Clock::now())) {
        return *failure;
      }
      if (Clock::now() < deadline_) {
        continue;
      }
      std::vector<Rank> silent;
      for (Rank rank = rank_ + 1; rank < worldSize_; ++rank) {
        if (peers_.connections[index(rank)] == nullptr) {
          silent.push_back(rank);
        }
      }
      return lateError(fmt::format("published an address but did not connect to rank {}", rank_).c_str(), silent);
    }
    SW_RETURN_IF_ERROR(socket.status());
    auto connection = answerShm(std::move(*socket), endpoint_, deadline_);
    if (!connection.isOk()) {
      return {connection.status().code(), fmt::format("rank {}, answering a peer (shm): {}", rank_, connection.status().message())};
    }
    if (*connection == nullptr) {
      continue;  // a stranger, turned away
    }
    auto& place = peers_.connections[index((*connection)->peer())];
    if (place != nullptr || (*connection)->peer() < rank_) {
      return {StatusCode::kMismatch, fmt::format("two processes call themselves rank {}", (*connection)->peer())};
    }
    place = std::move(*connection);
    --missing;
  }
  return Status::ok();
}

Result<Peers> Bootstrap::run() {
  SW_RETURN_IF_ERROR(publish());
  peers_.connections.resize(index(worldSize_));
  if (worldSize_ > 1) {
    SW_RETURN_IF_ERROR(readAddresses());
    SW_RETURN_IF_ERROR(checkOneHost());
    SW_RETURN_IF_ERROR(dialLower());
    SW_RETURN_IF_ERROR(acceptHigher());
  }
  endpoint_.inbox->closeFd();
  peers_.doorbell = std::make_unique<ShmDoorbell>(endpoint_.inbox);
  peers_.hosts.assign(index(worldSize_), 0);  // checkOneHost() passed
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

}  // namespace

Result<Peers> connectPeers(Store& store, Rank rank, int worldSize, const Options& options, Deadline deadline,
                           const std::string& groupName) {
  if (worldSize < 1 || rank < 0 || rank >= worldSize) {
    return Status{StatusCode::kInvalidArgument, fmt::format("rank {} of {} does not exist", rank, worldSize)};
  }
  Bootstrap bootstrap(store, rank, worldSize, options, deadline);
  auto peers = bootstrap.run();
  if (peers.isOk()) {
    for (const auto& connection : peers->connections) {
      if (connection != nullptr) {
        logDebug("group '{}', rank {}: joined {}", groupName, rank, connection->describe());
      }
    }
    return peers;
  }
  const Status failure = bootstrap.agreeOnFailure(peers.status());
  return Status{failure.code(), fmt::format("group '{}' could not be made: {}", groupName, failure.message())};
}

}  // namespace shardwire::internal

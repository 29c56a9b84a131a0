// Prepares a rank before the other ranks are known: its address, one endpoint for each transport that the options allow
// and this machine has, the listeners for the endpoints and the peers, and the rank's bell. A machine without the means
// for a transport is no error: the transport's part of the address says why, and other transports join the rank. If
// shared memory is allowed and cannot be set up, this is an error, since a job must not become slower unnoticed. If
// shared memory is excluded, a process without a Unix socket publishes none: then the process's ranks need
// SHARDWIRE_JOB_TOKEN, and peers watch the ranks' lives over TCP.
#include "backend/bootstrap/own_ends.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "backend/base/log.h"
#include "backend/bootstrap/select_transport.h"

namespace shardwire::internal {
namespace {

// Up to this world size, operations of all ranks send to all other ranks anyway (ops/collectives/select.cc), so all
// peers are joined at once (LinksWhen::kAuto).
constexpr int kAllAtOnce = 16;

std::string excludedText(const Options& options) {
  return fmt::format("excluded by SHARDWIRE_TRANSPORTS={}", options.transports);
}

// A transport that cannot be used here is no error: the peers read the reason in the address, and other transports join
// the ranks.
Status makeEndpoints(OwnEnds& own, const Self& self, const AllowedTransports& allowed) {
  using Make = std::function<Result<std::unique_ptr<Endpoint>>(const Self&)>;
  const std::array<Make, kNumTransportKinds> makers = {makeShmEndpoint, makeRdmaEndpoint, makeMpiEndpoint,
                                                       makeTcpEndpoint};
  for (std::size_t kind = 0; kind < makers.size(); ++kind) {
    TransportAddress& address = own.address.transports[kind];
    if (!allowed[kind]) {
      address.whyNot = excludedText(*self.options);
      continue;
    }
    auto made = makers[kind](self);
    if (made.status().code() == StatusCode::kInvalidArgument) {
      return made.status();  // a setting that cannot be followed
    }
    if (made.status().code() == StatusCode::kTimeout || made.status().code() == StatusCode::kInterrupted) {
      return made.status();  // mpi: another rank does not initialise MPI; no time is left for other transports
    }
    if (made.status().code() == StatusCode::kSystem && static_cast<TransportKind>(kind) == TransportKind::kShm) {
      return {StatusCode::kSystem,
              made.status().message() + ". SHARDWIRE_TRANSPORTS=^shm on all ranks joins them without shared memory"};
    }
    if (made.isOk()) {
      own.endpoints[kind] = std::move(*made);
      own.bell = own.bell != nullptr ? own.bell : own.endpoints[kind]->bell();
      address.bytes = own.endpoints[kind]->address();
    } else {
      address.whyNot = made.status().message();
    }
  }
  return Status::ok();
}

bool needsLink(const std::unique_ptr<Endpoint>& endpoint) {
  return endpoint != nullptr && endpoint->needsLink();
}

// Without a listener for links no transport over links can be used.
Status openRankLinks(OwnEnds& own, std::uint64_t networkNamespace, int worldSize, const Options& options) {
  if (std::none_of(own.endpoints.begin(), own.endpoints.end(), needsLink)) {
    return Status::ok();
  }
  auto links = own.rankLinks.openLinks(options, networkNamespace, own.address.token, worldSize, own.fabric, own.bell);
  if (links.isOk()) {
    own.address.links = std::move(*links);
    return Status::ok();
  }
  if (links.status().code() == StatusCode::kInvalidArgument) {
    return links.status();
  }
  for (std::size_t kind = 0; kind < own.endpoints.size(); ++kind) {
    if (needsLink(own.endpoints[kind])) {
      own.endpoints[kind].reset();
      own.address.transports[kind] = {{}, links.status().message()};
    }
  }
  return Status::ok();
}

// If shared memory is allowed, its endpoint needs the socket, too, and reports the error.
Status listen(OwnEnds& own, const Options& options) {
  SW_RETURN_IF_ERROR(own.fabric->start());
  if (const Status listening = own.fabric->listen(options.jobToken); !listening.isOk()) {
    logInfo("this process has no Unix socket for other processes of its host: {}", listening.message());
    return Status::ok();
  }
  own.address.socketName = own.fabric->address().socketName;
  own.address.processToken = own.fabric->address().token;
  return Status::ok();
}

Status prepareAll(OwnEnds& own, Rank rank, int worldSize, const Options& options) {
  auto address = makeAddress();
  SW_RETURN_IF_ERROR(address.status());
  own.address = std::move(*address);
  own.address.hasJobToken = !options.jobToken.empty();
  own.address.joinsLate =
      options.links == LinksWhen::kLazy || (options.links == LinksWhen::kAuto && worldSize > kAllAtOnce);
  const std::uint64_t networkNamespace = own.address.networkNamespace;
  if (!options.hostId.empty()) {
    own.address.bootId = "SHARDWIRE_HOST_ID=" + options.hostId;
    own.address.networkNamespace = 0;
  }
  const auto allowed = parseTransports(options.transports);
  SW_RETURN_IF_ERROR(allowed.status());
  auto fabric = Fabric::instance();
  SW_RETURN_IF_ERROR(fabric.status());
  own.fabric = std::move(*fabric);
  if (worldSize == 1) {
    own.bell = std::make_shared<PrivateBell>();
    return Status::ok();
  }
  SW_RETURN_IF_ERROR(listen(own, options));
  const Self self{rank, worldSize, own.address.host, &options, options.storages};
  SW_RETURN_IF_ERROR(makeEndpoints(own, self, *allowed));
  if (own.bell == nullptr) {
    own.bell = std::make_shared<PrivateBell>();
  }
  SW_RETURN_IF_ERROR(openRankLinks(own, networkNamespace, worldSize, options));
  auto sign = LifeSign::create(options, own.rankLinks.hasLinks() ? &own.rankLinks.interfaces() : nullptr, worldSize,
                               &own.address);
  SW_RETURN_IF_ERROR(sign.status());
  own.lifeSign = std::move(*sign);
  return Status::ok();
}

}  // namespace

Status OwnEnds::prepare(Rank rank, int worldSize, const Options& options) {
  const Status prepared = prepareAll(*this, rank, worldSize, options);
  address.worldSize = static_cast<std::uint32_t>(worldSize);
  if (!prepared.isOk()) {
    address.failure = {prepared.code(), fmt::format("rank {} could not start: {}", rank, prepared.message())};
  }
  return address.failure;
}

}  // namespace shardwire::internal

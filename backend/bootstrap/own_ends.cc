#include "backend/bootstrap/own_ends.h"

#include <fmt/format.h>

#include <functional>
#include <utility>

#include "backend/bootstrap/select_transport.h"
#include "backend/transport/shm/shm_endpoint.h"
#include "backend/transport/shm/shm_fabric.h"

namespace shardwire::internal {
namespace {

// Up to here all operations of all ranks send to all others anyway (ops/collectives/select.cc), and are joined at once (LinksWhen::kAuto).
constexpr int kAllAtOnce = 16;

std::string excludedText(const Options& options) {
  return fmt::format("excluded by SHARDWIRE_TRANSPORTS={}", options.transports);
}

// A transport that cannot be used here is no error: the peers are told why, and others join them.
Status makeEndpoints(OwnEnds& own, const Self& self, const AllowedTransports& allowed) {
  using Make = std::function<Result<std::unique_ptr<Endpoint>>(const Self&)>;
  const std::array<Make, kNumTransportKinds> makers = {
      [&](const Self& me) { return makeShmEndpoint(me, own.inbox); }, [](const Self& me) { return makeRdmaEndpoint(me); },
      [](const Self& me) { return makeMpiEndpoint(me); }, [](const Self& me) { return makeTcpEndpoint(me); }};
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
    if (made.isOk()) {
      own.endpoints[kind] = std::move(*made);
      address.bytes = own.endpoints[kind]->address();
    } else {
      address.whyNot = made.status().message();
    }
  }
  return Status::ok();
}

bool needsLinks(const OwnEnds& own) {
  for (std::size_t kind = 0; kind < own.endpoints.size(); ++kind) {
    if (own.endpoints[kind] != nullptr && static_cast<TransportKind>(kind) != TransportKind::kShm) {
      return true;
    }
  }
  return false;
}

// Without a door for links no transport over them is of use.
Status openDoors(OwnEnds& own, std::uint64_t networkNamespace, int worldSize, const Options& options) {
  if (!needsLinks(own)) {
    return Status::ok();
  }
  auto links = own.doors.openLinks(options, networkNamespace, own.address.token, worldSize, own.inbox);
  if (links.isOk()) {
    own.address.links = std::move(*links);
    return Status::ok();
  }
  if (links.status().code() == StatusCode::kInvalidArgument) {
    return links.status();
  }
  for (std::size_t kind = 0; kind < own.endpoints.size(); ++kind) {
    if (own.endpoints[kind] != nullptr && static_cast<TransportKind>(kind) != TransportKind::kShm) {
      own.endpoints[kind].reset();
      own.address.transports[kind] = {{}, links.status().message()};
    }
  }
  return Status::ok();
}

Status prepareAll(OwnEnds& own, Rank rank, int worldSize, const Options& options) {
  auto address = makeAddress();
  SW_RETURN_IF_ERROR(address.status());
  own.address = std::move(*address);
  own.address.hasJobToken = !options.jobToken.empty();
  own.address.joinsLate = options.links == LinksWhen::kLazy || (options.links == LinksWhen::kAuto && worldSize > kAllAtOnce);
  const std::uint64_t networkNamespace = own.address.networkNamespace;
  if (!options.hostId.empty()) {
    own.address.bootId = "SHARDWIRE_HOST_ID=" + options.hostId;
    own.address.networkNamespace = 0;
  }
  const auto allowed = parseTransports(options.transports);
  SW_RETURN_IF_ERROR(allowed.status());
  auto fabric = ShmFabric::instance();
  SW_RETURN_IF_ERROR(fabric.status());
  own.address.socketName = (*fabric)->door().socketName;
  own.address.doorToken = (*fabric)->door().token;
  auto inbox = Inbox::create(worldSize, options, *fabric);
  SW_RETURN_IF_ERROR(inbox.status());
  own.inbox = std::move(*inbox);
  if (worldSize == 1) {
    return Status::ok();
  }
  SW_RETURN_IF_ERROR((*fabric)->welcome(options.jobToken));
  const Self self{rank, worldSize, own.address.host, &options, options.storages};
  SW_RETURN_IF_ERROR(makeEndpoints(own, self, *allowed));
  SW_RETURN_IF_ERROR(openDoors(own, networkNamespace, worldSize, options));
  auto sign = LifeSign::create(options, own.doors.hasLinks() ? &own.doors.interfaces() : nullptr, worldSize, &own.address);
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

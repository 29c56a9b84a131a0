// Communicator::exchange(), and the same as a part of another operation: each rank gives a blob, or why the rank
// cannot, and all ranks get all blobs or one error. Blocking, collective; any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "backend/exec/engine.h"
#include "shardwire/communicator.h"

namespace shardwire::internal {

// kind: in the engine, ranks with exchanges of different kinds do different operations, and the group fails. Empty: the
// kind of Communicator::exchange(). part: if not null, names this exchange after the call, for the next part of the
// same operation; part->seq is the same on all ranks, and stays as it was where the ranks did not meet. Before the call
// `part` names the part that comes before this exchange.
Result<std::vector<std::string>> exchangeAll(Engine& engine, const ExchangeRequest& mine,
                                             std::optional<Duration> timeout, CallPart* part = nullptr,
                                             const std::string& kind = "");

// Waits for an operation of all ranks. An interrupted wait aborts the group, since some ranks may have received
// everything and go on with a result that this rank does not have.
Status waitOrAbort(Engine& engine, Activity& activity, const std::string& what);

// The fingerprint by which ranks recognise an exchange of the same kind.
std::uint64_t exchangeFingerprint(const std::string& kind);

}  // namespace shardwire::internal

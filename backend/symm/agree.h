// Agreement of all ranks: each rank gives what it is about to do, or why it cannot, and all ranks get the same answer.
// Blocking, collective; any thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/exec/engine.h"

namespace shardwire::internal {

// All ranks' blobs, by rank. `what` names the operation in errors; ranks with different operations get a mismatch.
// part: if not null, names this exchange after the call, for the next part of the same operation; part->seq is the same
// on all ranks. Before the call `part` names the part that comes before this exchange.
Result<std::vector<std::string>> exchangeAll(Engine& engine, const std::string& what, std::string blob,
                                             std::optional<Duration> timeout, CallPart* part = nullptr);

// The fingerprint by which ranks recognise the same exchange.
std::uint64_t exchangeFingerprint(const std::string& what);
// The two exchanges of makeSymmetric(). Each exchange has its own name: a rank that gave up in the first may begin anew
// while its peers are in the second. The error on all ranks then says which rank is in which exchange.
inline constexpr const char* kOffersSymmetric = "symmetric memory (1 of 2: what each rank wants)";
inline constexpr const char* kSettlesSymmetric = "symmetric memory (2 of 2: whether each rank has it)";

// One rank's part of an agreement; comes first in the blob.
struct Saying {
  std::string text;
  std::string error;
};
// Ok when no rank has an error and all texts are equal. Otherwise one Status, the same on all ranks: kInvalidArgument
// with the first rank's error, or kMismatch with the texts and their ranks.
Status judge(const std::string& what, const std::vector<Saying>& sayings);

// exchangeAll() and judge(), for exchanges without other data.
Status agree(Engine& engine, const std::string& what, const std::string& text, const std::string& error,
             std::optional<Duration> timeout, CallPart* part = nullptr);

}  // namespace shardwire::internal

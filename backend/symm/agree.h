// What is done by all ranks at once is agreed on: each says what it is about to do, or why it cannot, and all find the same answer.
// Blocking, collective; any thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/exec/engine.h"

namespace shardwire::internal {

// All ranks' blobs, by rank. `what` names the operation in errors, and ranks that come with another one find a mismatch. part: when not
// null, names this exchange when it is over, for the next part of the same call; its seq is the same on all ranks. What it names before is
// the part that this one follows.
Result<std::vector<std::string>> exchangeAll(Engine& engine, const std::string& what, std::string blob, std::optional<Duration> timeout,
                                             CallPart* part = nullptr);

// By which the ranks know that they mean the same exchange.
std::uint64_t exchangeFingerprint(const std::string& what);
// The two exchanges of makeSymmetric(). Each has a name of its own: a rank that gave up in the first may begin anew while its peers are in
// the second, and then all are told who is in which.
inline constexpr const char* kOffersSymmetric = "symmetric memory (1 of 2: what each rank wants)";
inline constexpr const char* kSettlesSymmetric = "symmetric memory (2 of 2: whether each rank has it)";

// What one rank says; its place in the blob is first.
struct Saying {
  std::string text;
  std::string error;
};
// Ok when no rank has an error and all texts are equal; else one Status, the same on all ranks: kInvalidArgument with the first rank's
// error, kMismatch with who said what.
Status judge(const std::string& what, const std::vector<Saying>& sayings);

// Both in one, where there is nothing else to tell.
Status agree(Engine& engine, const std::string& what, const std::string& text, const std::string& error, std::optional<Duration> timeout,
             CallPart* part = nullptr);

}  // namespace shardwire::internal

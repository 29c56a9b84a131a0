#include "backend/symm/agree.h"

#include <fmt/format.h>

#include "backend/exec/exchange.h"
#include "ops/plan/hash.h"
#include "ops/wire/byte_codec.h"

namespace shardwire::internal {
namespace {

// "0, 2 to 5"
std::string listOf(const std::vector<std::size_t>& ranks) {
  std::string list;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) {
      ++last;
    }
    list += fmt::format("{}{}", list.empty() ? "" : ", ", ranks[i]);
    if (last > i + 1) {
      list += fmt::format(" to {}", ranks[last]);
      i = last;
    }
  }
  return list;
}

}  // namespace

std::uint64_t exchangeFingerprint(const std::string& what) {
  Hasher hash;
  hash.add(std::string_view(what));
  return hash.value();
}

Result<std::vector<std::string>> exchangeAll(Engine& engine, const std::string& what, std::string blob,
                                             std::optional<Duration> timeout, CallPart* part) {
  SW_RETURN_IF_ERROR(engine.owner().check(engine.groupLabel()));
  auto exchange = std::make_shared<Exchange>(std::move(blob), engine.worldSize(), engine.rank());
  exchange->description = std::make_shared<const std::string>(what);
  exchange->fingerprint = exchangeFingerprint(what);
  exchange->timeout = timeout.value_or(Duration{0});
  const std::shared_ptr<Activity> activity = exchange;
  SW_RETURN_IF_ERROR(
      engine.submit(std::span(&activity, 1), Duration::zero(), {.continues = part == nullptr ? CallPart{} : *part}));
  if (Status met = exchange->wait(kNoDeadline); !met.isOk()) {
    if (met.code() == StatusCode::kInterrupted) {
      // Some ranks may have received all blobs and go on with a result that this rank does not have.
      engine.abort({StatusCode::kAborted,
                    fmt::format("aborted on {}: {} was interrupted by a signal (Ctrl-C?)", engine.groupLabel(), what)});
    }
    return met;
  }
  if (part != nullptr) {
    *part = partOf(*exchange);
  }
  return exchange->blobs();
}

Status judge(const std::string& what, const std::vector<Saying>& sayings) {
  bool areEqual = true;
  for (std::size_t rank = 0; rank < sayings.size(); ++rank) {
    if (!sayings[rank].error.empty()) {
      return {StatusCode::kInvalidArgument, fmt::format("{}: rank {}: {}", what, rank, sayings[rank].error)};
    }
    areEqual = areEqual && sayings[rank].text == sayings[0].text;
  }
  if (areEqual) {
    return Status::ok();
  }
  std::string text;
  std::vector<bool> isTold(sayings.size());
  for (std::size_t rank = 0; rank < sayings.size(); ++rank) {
    std::vector<std::size_t> alike;
    for (std::size_t other = rank; other < sayings.size() && !isTold[rank]; ++other) {
      if (sayings[other].text == sayings[rank].text) {
        alike.push_back(other);
      }
    }
    for (const std::size_t other : alike) {
      isTold[other] = true;
    }
    if (!alike.empty()) {
      text += fmt::format("{}rank{} {} gave {}", text.empty() ? "" : ", ", alike.size() > 1 ? "s" : "", listOf(alike),
                          sayings[rank].text);
    }
  }
  return {StatusCode::kMismatch, fmt::format("{}: all ranks must give the same, but {}", what, text)};
}

Status agree(Engine& engine, const std::string& what, const std::string& text, const std::string& error,
             std::optional<Duration> timeout, CallPart* part) {
  ByteWriter writer;
  writer.varintText(text);
  writer.varintText(error);
  const auto blobs = exchangeAll(engine, what, writer.take(), timeout, part);
  SW_RETURN_IF_ERROR(blobs.status());
  std::vector<Saying> sayings;
  for (const std::string& blob : *blobs) {
    ByteReader reader(blob);
    Saying saying{reader.varintText(), reader.varintText()};
    if (!reader.isDone()) {
      return {StatusCode::kInternal, fmt::format("{}: the message of rank {} cannot be read", what, sayings.size())};
    }
    sayings.push_back(std::move(saying));
  }
  return judge(what, sayings);
}

}  // namespace shardwire::internal

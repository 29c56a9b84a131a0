#include "backend/exec/exchange_all.h"

#include <fmt/format.h>

#include <algorithm>

#include "backend/bootstrap/summary.h"
#include "backend/exec/exchange.h"
#include "ops/plan/hash.h"
#include "ops/wire/byte_codec.h"

namespace shardwire::internal {
namespace {

// "rank 0 gave A, ranks 1, 3 to 5 gave B"; empty: all values are equal.
std::string differences(const std::vector<ExchangeRequest>& all, std::string ExchangeRequest::*value,
                        std::string_view verb) {
  std::string text;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const auto isAlike = [&](const ExchangeRequest& one) { return one.*value == all[rank].*value; };
    if (std::any_of(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(rank), isAlike)) {
      continue;
    }
    std::vector<Rank> alike;
    for (std::size_t other = rank; other < all.size(); ++other) {
      if (isAlike(all[other])) {
        alike.push_back(static_cast<Rank>(other));
      }
    }
    if (alike.size() == all.size()) {
      return "";
    }
    text += fmt::format("{}{} {} {}", text.empty() ? "" : ", ", rankRanges(alike), verb, all[rank].*value);
  }
  return text;
}

// Every rank has equal requests here, and finds the same error.
Status judge(const std::vector<ExchangeRequest>& all) {
  if (const std::string calls = differences(all, &ExchangeRequest::what, "called"); !calls.empty()) {
    return {StatusCode::kMismatch,
            fmt::format("ranks are doing different things: {}; every rank of the group makes the same calls in the "
                        "same order",
                        calls)};
  }
  const auto fails = [](const ExchangeRequest& one) { return !one.error.isOk(); };
  if (const auto first = std::find_if(all.begin(), all.end(), fails); first != all.end()) {
    const auto more = std::count_if(first + 1, all.end(), fails);
    const std::string others = more == 0 ? "" : fmt::format(" ({} more of {} ranks have errors too)", more, all.size());
    return {first->error.code(),
            fmt::format("{}: rank {}: {}{}", first->what, first - all.begin(), first->error.message(), others)};
  }
  const std::string texts = differences(all, &ExchangeRequest::text, "gave");
  return texts.empty() ? Status::ok()
                       : Status(StatusCode::kMismatch,
                                fmt::format("{}: all ranks must give the same, but {}", all[0].what, texts));
}

std::string encode(const ExchangeRequest& mine) {
  ByteWriter writer;
  writer.varintText(mine.what);
  writer.fixed(static_cast<std::uint8_t>(mine.error.code()));
  writer.varintText(mine.error.isOk() ? mine.text : mine.error.message());
  writer.varintText(mine.error.isOk() ? mine.blob : "");
  return writer.take();
}

ExchangeRequest decode(ByteReader& reader) {
  ExchangeRequest one{.what = reader.varintText()};
  const auto code = reader.enumerator<StatusCode>(kNumStatusCodes);
  std::string text = reader.varintText();
  if (code == StatusCode::kOk) {
    one.text = std::move(text);
  } else {
    one.error = Status(code, std::move(text));
  }
  one.blob = reader.varintText();
  return one;
}

}  // namespace

std::uint64_t exchangeFingerprint(const std::string& kind) {
  Hasher hash;
  hash.add(std::string_view(kind));
  return hash.value();
}

Status waitOrAbort(Engine& engine, Activity& activity, const std::string& what) {
  Status met = activity.wait(kNoDeadline);
  if (met.code() == StatusCode::kInterrupted) {
    engine.abort({StatusCode::kAborted,
                  fmt::format("aborted on {}: {} was interrupted by a signal (Ctrl-C?)", engine.facts().label, what)});
  }
  return met;
}

Result<std::vector<std::string>> exchangeAll(Engine& engine, const ExchangeRequest& mine,
                                             std::optional<Duration> timeout, CallPart* part, const std::string& kind) {
  SW_RETURN_IF_ERROR(engine.facts().owner.check(engine.facts().label));
  auto exchange = std::make_shared<Exchange>(encode(mine), engine.facts().worldSize, engine.facts().rank);
  exchange->description = std::make_shared<const std::string>(kind.empty() ? mine.what : kind);
  exchange->fingerprint = exchangeFingerprint(kind.empty() ? "exchange" : kind);
  exchange->timeout = timeoutOf(timeout);
  const std::shared_ptr<Activity> activity = exchange;
  SW_RETURN_IF_ERROR(
      engine.submit(std::span(&activity, 1), Duration::zero(), {.continues = part == nullptr ? CallPart{} : *part}));
  SW_RETURN_IF_ERROR(waitOrAbort(engine, *exchange, exchange->description.text()));
  if (part != nullptr) {
    *part = partOf(*exchange);
  }
  std::vector<ExchangeRequest> all;
  for (const std::string& bytes : exchange->blobs()) {
    ByteReader reader(bytes);
    all.push_back(decode(reader));
    if (!reader.isDone()) {
      return Status(StatusCode::kInternal,
                    fmt::format("{}: the message of rank {} cannot be read", mine.what, all.size() - 1));
    }
  }
  SW_RETURN_IF_ERROR(judge(all));
  std::vector<std::string> blobs;
  std::transform(all.begin(), all.end(), std::back_inserter(blobs),
                 [](ExchangeRequest& one) { return std::move(one.blob); });
  return blobs;
}

}  // namespace shardwire::internal

// Two operations, submitted at once on every rank, so the ranks go on with the same numbers after any error in the
// first operation:
//
//   handout    rank 0 sends each rank a status word, and a row or an error text, as soon as the row is ready
//   verdicts   each rank reports to all ranks whether the received row is usable
//
// No rank returns before the verdicts are known. A rank that dies or does not read ends both operations, by the group's
// failure or by the timeout, which counts from the begin and covers the planning time of rank 0.
#include "backend/exec/ship_rows.h"

#include <fmt/format.h>

#include <array>
#include <exception>

#include "backend/exec/exchange.h"
#include "backend/exec/exchange_all.h"
#include "backend/exec/handout.h"
#include "ops/wire/byte_codec.h"

namespace shardwire::internal {

namespace {

// Bytes of the status word, which precedes the row or the text.
constexpr std::size_t kStatusBytes = 1;

std::string encodeVerdict(const Status& status) {
  ByteWriter out;
  out.u8(static_cast<std::uint8_t>(status.code()));
  return out.take() + status.message();
}

bool isStatusWord(std::string_view bytes) {
  return bytes.size() >= kStatusBytes && static_cast<std::uint8_t>(bytes[0]) < kNumStatusCodes;
}

StatusCode statusWordOf(std::string_view bytes) {
  return static_cast<StatusCode>(static_cast<std::uint8_t>(bytes[0]));
}

// Returns the result of `make`; an exception, such as a lack of memory, becomes an error that all ranks receive.
template <typename Make>
auto guarded(const std::string& doing, Make&& make) -> decltype(make()) {
  try {
    return make();
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kSystem, doing + ": there is not enough memory");
  } catch (const std::exception& error) {
    return Status(StatusCode::kInternal, fmt::format("{}: {}", doing, error.what()));
  }
}

class Shipping {
 public:
  Shipping(Engine& engine, const std::string& what, std::optional<Duration> timeout)
      : engine_(engine),
        what_(what),
        handout_(std::make_shared<Handout>(engine.facts().worldSize, engine.facts().rank)),
        verdicts_(std::make_shared<Exchange>(std::nullopt, engine.facts().worldSize, engine.facts().rank)) {
    name(*handout_, what + ": rank 0 plans for all and sends each rank its plan", "compile_op: plans", timeout);
    name(*verdicts_, what + ": all ranks have their plans", "compile_op: verdicts", timeout);
  }

  Status start(const CallPart& begun) {
    const std::array<std::shared_ptr<Activity>, 2> activities = {handout_, verdicts_};
    return engine_.submit(activities, Duration::zero(), {.name = "compile_op", .continues = begun});
  }

  // On rank 0: returns this rank's own row, or an error. The rows of the other ranks are given to the handout.
  Result<std::string> makeAll(const std::function<Result<std::string>(Rank)>& makeRow) {
    const std::string doing = what_ + ": rank 0 could not plan for all ranks";
    Status failed;
    for (Rank to = 1; to < engine_.facts().worldSize && !handout_->isDone(); ++to) {
      const auto makeAnswer = [&]() -> Result<std::string> {
        Result<std::string> row = makeRow(to);
        SW_RETURN_IF_ERROR(row.status());
        return encodeVerdict(Status::ok()) + *row;
      };
      Result<std::string> made = failed.isOk() ? guarded(doing, makeAnswer) : Result<std::string>(failed);
      failed = made.status();
      std::string answer = made.isOk() ? *std::move(made) : encodeVerdict(failed);
      engine_.locked([&](const GroupState&) { handout_->give(to, std::move(answer)); });
    }
    return failed.isOk() ? guarded(doing, [&] { return makeRow(0); }) : Result<std::string>(failed);
  }

  // On the other ranks: returns the received row. Not ok: no row came, because of this very rank. std::nullopt: rank 0
  // could not make the row, and reports the error.
  Result<std::optional<std::string_view>> awaitRow() {
    SW_RETURN_IF_ERROR(waitOrAbort(engine_, *handout_, what_));
    const std::string_view answer = handout_->received();
    if (!isStatusWord(answer)) {
      return Status(StatusCode::kInternal, "what rank 0 sent in place of this rank's plan cannot be read");
    }
    return statusWordOf(answer) == StatusCode::kOk ? std::optional(answer.substr(kStatusBytes)) : std::nullopt;
  }

  // Reports this rank's verdict to all ranks, and returns the first verdict that is not ok.
  Status settle(const Status& own) {
    engine_.locked([&](const GroupState&) { verdicts_->give(encodeVerdict(own)); });
    const Status met = waitOrAbort(engine_, *verdicts_, what_);
    if (!met.isOk()) {
      // A timeout of the handout is one of the verdicts, too, and the handout's error says more.
      return own.isOk() || met.code() == StatusCode::kInterrupted ? met : own;
    }
    for (std::size_t rank = 0; rank < verdicts_->blobs().size(); ++rank) {
      const std::string& verdict = verdicts_->blobs()[rank];
      if (!isStatusWord(verdict)) {
        return {StatusCode::kInternal, fmt::format("{}: what rank {} says of its plan cannot be read", what_, rank)};
      }
      if (statusWordOf(verdict) != StatusCode::kOk) {
        return {statusWordOf(verdict), verdict.substr(kStatusBytes)};
      }
    }
    return Status::ok();
  }

 private:
  static void name(Activity& activity, std::string description, const std::string& kind,
                   std::optional<Duration> timeout) {
    activity.description = std::make_shared<const std::string>(std::move(description));
    activity.fingerprint = exchangeFingerprint(kind);
    activity.timeout = timeoutOf(timeout);
  }

  Engine& engine_;
  const std::string what_;
  const std::shared_ptr<Handout> handout_;
  const std::shared_ptr<Exchange> verdicts_;
};

}  // namespace

Status shipRows(Engine& engine, const CallPart& begun, const std::string& what, std::optional<Duration> timeout,
                const std::function<Result<std::string>(Rank)>& makeRow,
                const std::function<Status(std::string_view)>& takeRow) {
  Shipping shipping(engine, what, timeout);
  SW_RETURN_IF_ERROR(shipping.start(begun));
  const auto take = [&](std::string_view bytes) -> Status {
    const Status taken = guarded("it could not be read", [&] { return takeRow(bytes); });
    return taken.isOk() ? taken
                        : Status(taken.code() == StatusCode::kInvalidArgument ? StatusCode::kInternal : taken.code(),
                                 fmt::format("{}: rank {} cannot use the plan that rank 0 made for it: {}", what,
                                             engine.facts().rank, taken.message()));
  };
  if (engine.facts().rank == 0) {
    const Result<std::string> own = shipping.makeAll(makeRow);
    return shipping.settle(own.isOk() ? take(*own) : own.status());
  }
  const auto row = shipping.awaitRow();
  if (row.status().code() == StatusCode::kInterrupted) {
    return row.status();
  }
  return shipping.settle(row.isOk() && row->has_value() ? take(**row) : row.status());
}

}  // namespace shardwire::internal

// ProcessGroupShardwire::monitoredBarrier: every rank reports to rank 0 by a message, and rank 0 answers with the list
// of ranks without a report. The barrier uses messages instead of a collective, so that a rank's absence fails no
// operation and the group is unchanged: the messages lapse with the barrier, and a message of a late rank is dropped.
#include <fmt/ranges.h>

#include <limits>

#include "backend/c10d/issue.h"

namespace shardwire {

namespace {

// c10d's tags are not negative.
constexpr int kFirstTag = std::numeric_limits<int>::min();

// The bytes of the messages, which outlive the call.
struct Messages {
  explicit Messages(int size) : reports(static_cast<std::size_t>(size)), verdict(static_cast<std::size_t>(size)) {}
  std::vector<std::uint8_t> reports;
  std::vector<std::uint8_t> verdict;  // for each rank: 1 if the rank is late
};

TensorView viewOfBytes(std::uint8_t* bytes, std::size_t count) {
  return TensorView::contiguous(reinterpret_cast<std::byte*>(bytes), DType::kUInt8,
                                Dims{static_cast<std::int64_t>(count)});
}

std::vector<Rank> lateRanks(const Messages& messages) {
  std::vector<Rank> late;
  for (std::size_t rank = 0; rank < messages.verdict.size(); ++rank) {
    if (messages.verdict[rank] != 0) {
      late.push_back(static_cast<Rank>(rank));
    }
  }
  return late;
}

// In gloo's words, since people search logs for these.
std::string failedToPass(const std::vector<Rank>& late, bool all, std::int64_t milliseconds) {
  if (all) {
    return fmt::format("Rank{} {} failed to pass monitoredBarrier in {} ms", late.size() > 1 ? "s" : "",
                       fmt::join(late, ", "), milliseconds);
  }
  const std::string others =
      late.size() > 1 ? fmt::format("; {} more did not either (wait_all_ranks=True names them)", late.size() - 1) : "";
  return fmt::format("Rank {} failed to pass monitoredBarrier in {} ms{}", late.front(), milliseconds, others);
}

[[noreturn]] void timedOut(std::string message) {
  throw StatusError(Status(StatusCode::kTimeout, std::move(message)));
}

}  // namespace

void ProcessGroupShardwire::monitoredBarrier(const ::c10d::BarrierOptions& options, bool waitAllRanks) {
  const std::shared_ptr<Communicator> communicator = this->communicator();
  const Duration timeout = options.timeout.count() < 0 ? communicator->timeout() : Duration(options.timeout);
  const std::int64_t milliseconds = std::chrono::duration_cast<Milliseconds>(timeout).count();
  const int tag =
      kFirstTag + static_cast<int>(monitoredBarriers_.fetch_add(1, std::memory_order_relaxed) % (1U << 30U));
  const auto messages = std::make_shared<Messages>(getSize());
  // Rank 0 may arrive up to the timeout later than another rank, and then waits for the timeout, too.
  const CallOptions call{
      .timeout = std::max<Duration>(getRank() == 0 ? timeout : 2 * timeout, std::chrono::milliseconds(1)),
      .keepAlive = messages,
      .lapses = true};
  const std::size_t size = sizeAsCount();
  const TensorView verdict = viewOfBytes(messages->verdict.data(), size);
  if (getRank() != 0) {
    valueOrThrow(communicator->send(viewOfBytes(&messages->reports[0], 1), 0, tag, call));
    const WorkPtr answer = valueOrThrow(communicator->recv(verdict, 0, tag, call));
    const Status status = answer->wait(deadlineAfter(3 * timeout));  // the receive lapses before this deadline
    if (status.code() != StatusCode::kTimeout) {
      throwUnlessOk(status);
      const std::vector<Rank> late = lateRanks(*messages);
      if (late.empty()) {
        return;
      }
      if (messages->verdict[static_cast<std::size_t>(getRank())] != 0) {
        timedOut(failedToPass({getRank()}, true, milliseconds) + ": it arrived after rank 0 had given up");
      }
      timedOut(
          fmt::format("Rank {} successfully reached monitoredBarrier, but received errors while waiting for send/recv "
                      "from rank 0: {}",
                      getRank(), failedToPass(late, waitAllRanks, milliseconds)));
    }
    throwUnlessOk(communicator->status());  // the group itself may have reached its timeout
    timedOut(fmt::format(
        "Rank {} successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0: "
        "no answer in {} ms",
        getRank(), 2 * milliseconds));
  }
  const Deadline deadline = deadlineAfter(2 * timeout);  // all messages lapse before, so none is left at the return
  std::vector<WorkPtr> reports(size);
  for (std::size_t rank = 1; rank < size; ++rank) {
    reports[rank] =
        valueOrThrow(communicator->recv(viewOfBytes(&messages->reports[rank], 1), static_cast<Rank>(rank), tag, call));
  }
  for (std::size_t rank = 1; rank < size; ++rank) {
    const Status status = reports[rank]->wait(deadline);
    if (status.code() == StatusCode::kInterrupted) {
      communicator->abort("monitored_barrier was interrupted by a signal (Ctrl-C?)");  // the others wait for the answer
    }
    if (status.code() == StatusCode::kTimeout) {
      messages->verdict[rank] = 1;
    } else {
      throwUnlessOk(status);
    }
  }
  for (std::size_t rank = 1; rank < size; ++rank) {
    valueOrThrow(communicator->send(verdict, static_cast<Rank>(rank), tag, call));
  }
  if (const std::vector<Rank> late = lateRanks(*messages); !late.empty()) {
    timedOut(fmt::format("Rank 0 timed out in monitoredBarrier. {}", failedToPass(late, waitAllRanks, milliseconds)));
  }
}

}  // namespace shardwire

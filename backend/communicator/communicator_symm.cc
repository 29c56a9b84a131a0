// Symmetric memory of a group, the group's barrier over symmetric memory, and exchange().
#include "backend/communicator/communicator_impl.h"
#include "backend/exec/exchange_all.h"
#include "backend/symm/make_symmetric.h"
#include "backend/symm/quiet.h"

namespace shardwire::internal {

Result<std::shared_ptr<SymmetricMemory>> CommunicatorImpl::makeSymmetric(const SymmetricRequest& request,
                                                                         std::optional<Duration> timeout) {
  SW_RETURN_IF_ERROR(checkOwner());
  // Sends a byte from each rank to each rank. This operation needs all links.
  const auto joinAll = [&]() -> Status {
    const auto size = static_cast<std::size_t>(worldSize());
    std::vector<std::byte> bytes(2 * size);
    std::vector<TensorView> sends;
    std::vector<TensorView> receives;
    for (std::size_t peer = 0; peer < size; ++peer) {
      sends.push_back(TensorView::contiguous(&bytes[peer], DType::kUInt8, {1}));
      receives.push_back(TensorView::contiguous(&bytes[size + peer], DType::kUInt8, {1}));
    }
    const auto work = allToAll(receives, sends, {.timeout = timeout});
    SW_RETURN_IF_ERROR(work.status());
    const Status joined = (*work)->wait();
    if (joined.code() == StatusCode::kInterrupted) {
      abort("symmetric memory was interrupted by a signal (Ctrl-C?)");
      (void)(*work)->wait(Clock::now());  // the work has failed by now: nothing writes to `bytes` any more
    }
    return joined;
  };
  return internal::makeSymmetric(engine_, request, timeout, joinAll);
}

Status CommunicatorImpl::symmetricBarrier(std::optional<Duration> timeout) {
  SW_RETURN_IF_ERROR(checkOwner());
  std::shared_ptr<SymmetricMemory> words;
  {
    const MutexLock lock(symmetricMutex_);
    words = barrierWords_;
  }
  if (words == nullptr) {
    auto made = makeSymmetric({.bytes = 0, .text = "a barrier"}, timeout);
    SW_RETURN_IF_ERROR(made.status());
    const MutexLock lock(symmetricMutex_);
    words = barrierWords_ = std::move(*made);
  }
  const Status quieted = quietAll(timeout);
  if (quieted.code() == StatusCode::kInterrupted) {
    return quieted;
  }
  // After a failure too, which may be another group's: the ranks of this group wait for this rank.
  Status met;
  if (words->reachesAll()) {
    met = words->barrier(0, timeout);
  } else {
    const auto work = barrier({.timeout = timeout});
    met = work.isOk() ? (*work)->wait() : work.status();
  }
  // The failure of quietAll() is reported once. The failure of this group stays.
  return quieted.isOk() || met.code() == StatusCode::kInterrupted ? met : quieted;
}

Result<std::vector<std::string>> CommunicatorImpl::exchange(const ExchangeRequest& mine,
                                                            std::optional<Duration> timeout) {
  SW_RETURN_IF_ERROR(checkOwner());
  return exchangeAll(*engine_, mine, timeout);
}

}  // namespace shardwire::internal

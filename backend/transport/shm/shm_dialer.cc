#include "backend/transport/shm/shm_dialer.h"

#include <algorithm>
#include <utility>

#include "backend/fabric/unix_socket.h"

namespace shardwire::internal {

ShmLinkRequest::ShmLinkRequest(ProcessAddress to, std::string jobToken, std::function<void()> onDone)
    : to_(std::move(to)), jobToken_(std::move(jobToken)), onDone_(std::move(onDone)) {}

std::optional<ShmLinkRequest::Outcome> ShmLinkRequest::outcome() const {
  const MutexLock lock(mutex_);
  return outcome_;
}

void ShmLinkRequest::settle(Outcome outcome) {
  const MutexLock lock(mutex_);
  outcome_ = std::move(outcome);
}

void ShmDialer::add(const std::shared_ptr<ShmLinkRequest>& request) {
  const MutexLock lock(mutex_);
  added_.push_back(request);
}

void ShmDialer::appendSockets(std::vector<pollfd>& fds) const {
  for (const Dial& dial : dials_) {
    if (dial.question.has_value()) {
      fds.push_back({dial.question->socket.get(), POLLIN, 0});
    }
  }
}

bool ShmDialer::isPressed() const {
  return std::any_of(dials_.begin(), dials_.end(), [](const Dial& dial) { return !dial.question.has_value(); });
}

// Nothing: the dial is under way.
std::optional<ShmLinkRequest::Outcome> ShmDialer::advance(Dial& dial, const ShmLinkRequest& request) const {
  if (!dial.question.has_value()) {
    auto socket = tryDialUnix(request.to_.socketName);
    if (socket.status().code() == StatusCode::kTimeout) {
      return std::nullopt;
    }
    SW_RETURN_IF_ERROR(socket.status());
    if (!socket->isOpen()) {
      return Status{StatusCode::kPeerFailed, "no process listens at its Unix socket any more: it ended"};
    }
    auto question = ShmLink::ask(std::move(*socket), request.to_, request.jobToken_, process_, Clock::now());
    SW_RETURN_IF_ERROR(question.status());
    dial.question = std::move(*question);
  }
  pollfd entry{dial.question->socket.get(), POLLIN, 0};
  if (::poll(&entry, 1, 0) <= 0) {
    return std::nullopt;
  }
  auto link = ShmLink::answered(std::move(*dial.question), request.to_, Clock::now());
  dial.question.reset();
  if (link.status().code() == StatusCode::kTimeout) {
    // Rejected as too slow to send the hello while too many dialed, or the answer found too many descriptors of the
    // user under way: the next serve() dials again.
    return std::nullopt;
  }
  if (link.isOk()) {
    static_cast<void>((*link)->readSpeed());  // measured here, so no other thread waits for the measurement later
  }
  return link;
}

void ShmDialer::serve(const Made& made) {
  {
    const MutexLock lock(mutex_);
    for (auto& request : added_) {
      dials_.push_back({std::move(request), std::nullopt});
    }
    added_.clear();
  }
  std::vector<Dial> left;
  for (Dial& dial : dials_) {
    const std::shared_ptr<ShmLinkRequest> request = dial.request.lock();
    if (request == nullptr) {
      continue;  // given up
    }
    auto outcome = advance(dial, *request);
    if (!outcome.has_value()) {
      left.push_back(std::move(dial));
      continue;
    }
    if (outcome->isOk()) {
      outcome = made(request->to_, **outcome);  // the caller holds the link to keep
    }
    request->settle(std::move(*outcome));
    request->onDone_();
  }
  dials_ = std::move(left);
}

}  // namespace shardwire::internal

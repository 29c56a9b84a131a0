#include "backend/c10d/reconfigurable.h"

#include <numeric>
#include <unordered_set>
#include <variant>

#include "backend/c10d/issue.h"
#include "backend/c10d/live_groups.h"
#include "backend/c10d/without_python.h"

#if SW_TORCH_HAS_RECONFIGURE
namespace shardwire {

c10::intrusive_ptr<ProcessGroupShardwire> ProcessGroupShardwire::createReconfigurable(
    std::shared_ptr<internal::Membership> membership, int rank, int size, Milliseconds timeout,
    const std::string& groupName) {
  const ::shardwire::Options options = optionsFor(timeout);
  auto group = c10::make_intrusive<ProcessGroupShardwire>(nullptr, rank, size, options.stagingBytes);
  group->reconfigurable_ = std::make_shared<Reconfigurable>(
      Reconfigurable{std::move(membership), groupName, std::chrono::duration_cast<Milliseconds>(options.timeout)});
  internal::addLiveGroup(group);
  return group;
}

namespace {

// By handles without an order, ranks follow the order of their texts.
std::vector<std::string> inOrder(const decltype(::c10d::ReconfigureOptions::handles)& handles) {
  if (const auto* ordered = std::get_if<std::vector<std::string>>(&handles)) {
    return *ordered;
  }
  const auto& all = std::get<std::unordered_set<std::string>>(handles);
  std::vector<std::string> sorted(all.begin(), all.end());
  std::ranges::sort(sorted);
  return sorted;
}

}  // namespace

std::string ProcessGroupShardwire::get_reconfigure_handle() const {
  if (reconfigurable_ == nullptr) {
    refuseCall(StatusCode::kUnsupported,
               "this group was made without enable_reconfigure=True; shardwire.reconfigure() changes its members");
  }
  return reconfigurable_->membership->handle();
}

ProcessGroupShardwire::TorchWork ProcessGroupShardwire::reconfigure(const ::c10d::ReconfigureOptions& options) {
  static_cast<void>(get_reconfigure_handle());  // throws for a group made without the flag
  const internal::WithoutPython released;
  internal::Membership& membership = *reconfigurable_->membership;
  Milliseconds timeout{};
  {
    const internal::MutexLock lock(mutex_);
    if (reconfigurable_->isShutDown) {
      throw StatusError(whyNone());
    }
    timeout = reconfigurable_->timeout;
  }
  membership.check(options.uuid, inOrder(options.handles));
  throwUnlessOk(endCommunicator());
  const Milliseconds limit = options.timeout.value_or(timeout);
  const internal::Membership::Place place = membership.meet(limit);
  auto communicator = connect(place.store, place.rank, place.size, optionsFor(limit), reconfigurable_->name);
  communicator->setTimeout(timeout);
  {
    const internal::MutexLock lock(mutex_);
    present_->set(communicator);
    communicator_ = std::move(communicator);
    groupsMade_.clear();
    rank_ = place.rank;
    size_ = place.size;
    globalRanks_.resize(sizeAsCount());
    std::iota(globalRanks_.begin(), globalRanks_.end(), 0);
  }
  monitoredBarriers_.store(0, std::memory_order_relaxed);
  membership.isMade();
  return barrier();
}

}  // namespace shardwire
#endif

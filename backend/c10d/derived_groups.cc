// Groups made from a group: split, merge; and the options that torch hands from one to the next.
#include <fmt/ranges.h>

#include <algorithm>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "backend/c10d/issue.h"
#include "backend/c10d/reconfigurable.h"

namespace shardwire {

using Base = ProcessGroupShardwire::Base;

namespace {

using Milliseconds = ProcessGroupShardwire::Milliseconds;

// Torch's options grew members over time; each version gets the members that exist.
template <typename BaseOptions>
void describeOptions(BaseOptions& options, const std::string& name, const std::string& description,
                     const std::vector<std::int64_t>& ranks) {
  if constexpr (requires { options.group_name; }) {
    options.group_name = name;
  }
  if constexpr (requires { options.group_desc; }) {
    options.group_desc = description;
  }
  if constexpr (requires { options.global_ranks_in_group; }) {
    options.global_ranks_in_group.assign(ranks.begin(), ranks.end());
  }
}

template <typename BaseOptions>
void markReconfigurable(BaseOptions& options) {
  if constexpr (requires { options.enable_reconfigure; }) {
    options.enable_reconfigure = true;
  }
}

template <typename BaseOptions>
std::string nameIn(const BaseOptions& options) {
  if constexpr (requires { options.group_name; }) {
    return options.group_name;
  } else {
    return "";
  }
}

template <typename Group>
std::string descriptionOf(const Group& group) {
  if constexpr (requires { group.getGroupDesc(); }) {
    return group.getGroupDesc();
  } else {
    return "";
  }
}

}  // namespace

c10::intrusive_ptr<Base::Options> ProcessGroupShardwire::getBackendOptions() {
  if (reconfigurable_ != nullptr) {
    Milliseconds timeout{};
    {
      const internal::MutexLock lock(mutex_);
      timeout = reconfigurable_->timeout;
    }
    auto options = c10::make_intrusive<Options>(timeout);
    describeOptions(*options, reconfigurable_->name, descriptionOf(*this), globalRanks());
    markReconfigurable(*options);
    return options;
  }
  const std::shared_ptr<Communicator> communicator = this->communicator();
  auto options = c10::make_intrusive<Options>(std::chrono::duration_cast<Milliseconds>(communicator->timeout()));
  describeOptions(*options, communicator->groupName(), descriptionOf(*this), globalRanks());
  return options;
}

c10::intrusive_ptr<ProcessGroupShardwire> ProcessGroupShardwire::groupOfRanks(const StorePtr& store,
                                                                              const std::vector<int>& ranks,
                                                                              Milliseconds timeout,
                                                                              const std::string& name) {
  const auto own = std::ranges::find(ranks, getRank());
  if (own == ranks.end()) {
    return {};
  }
  std::vector<std::int64_t> global;
  {
    const internal::MutexLock lock(mutex_);
    for (const int rank : ranks) {
      global.push_back(globalRanks_[static_cast<std::size_t>(rank)]);
    }
  }
  // torch splits once for each kind of device, and a program may split the same ranks again, all with one store and
  // name: a number distinguishes the groups. Only calls for the same ranks and name are counted together, since ranks
  // of other groups make no such calls.
  const std::string key = fmt::format("{}:{}", name, fmt::join(global, ","));
  int number = 0;
  {
    const internal::MutexLock lock(mutex_);
    number = groupsMade_[key]++;
  }
  const StorePtr prefixed =
      c10::make_intrusive<::c10d::PrefixStore>(fmt::format("shardwire/{}/{}", key, number), store);
  auto group = create(prefixed, static_cast<int>(own - ranks.begin()), static_cast<int>(ranks.size()), timeout, name,
                      isOfOneJob_);
  group->setGlobalRanks(std::move(global));
  group->setProfiledAs(profiledAs_);
  return group;
}

c10::intrusive_ptr<Base> ProcessGroupShardwire::split(const StorePtr& store, const std::vector<int>& ranks,
                                                      const c10::intrusive_ptr<Base::Options>& options) {
  std::vector<int> sorted = ranks;
  std::ranges::sort(sorted);
  if (sorted.empty() || sorted.front() < 0 || sorted.back() >= getSize() ||
      std::ranges::adjacent_find(sorted) != sorted.end()) {
    refuseCall(StatusCode::kInvalidArgument, "split: ranks {} must be different ranks of this group, which has {}",
               fmt::join(ranks, ", "), getSize());
  }
  const c10::intrusive_ptr<Base::Options> chosen = options ? options : getBackendOptions();
  return groupOfRanks(store, ranks, chosen->timeout, nameIn(*chosen));
}

c10::intrusive_ptr<Base> ProcessGroupShardwire::merge(const StorePtr& store,
                                                      const c10::intrusive_ptr<Base::Options>& options, const int& rank,
                                                      const int& size) {
  const c10::intrusive_ptr<Base::Options> chosen = options ? options : getBackendOptions();
  auto group = create(store, rank, size, chosen->timeout, nameIn(*chosen));
  group->setProfiledAs(profiledAs_);
  return group;
}

}  // namespace shardwire

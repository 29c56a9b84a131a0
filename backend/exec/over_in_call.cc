#include "backend/exec/over_in_call.h"

#include <utility>

namespace shardwire::internal {

std::shared_ptr<Activity> OverInCall::make(Rank source) {
  auto over = std::make_shared<OverInCall>(source);
  complete(over, Status::ok());
  over->runCallbacks();  // from here on a callback runs when it is added
  return over;
}

std::shared_ptr<Activity> overInCall() {
  static const auto* const over = new std::shared_ptr<Activity>(OverInCall::make(-1));
  return {std::shared_ptr<void>(), over->get()};
}

}  // namespace shardwire::internal

#include "backend/transport/mpi/mpi_wire.h"

namespace shardwire::internal {
namespace {

// A round finds only operations that MPI has already finished, and the end of one message may start the next. The
// number of rounds is bounded, so that a busy peer does not delay the caller.
constexpr int kMostRounds = 16;

}  // namespace

bool MpiWire::poll() {
  bool any = false;
  for (int round = 0; round < kMostRounds && failure_.isOk(); ++round) {
    done_.clear();
    if (Status polled = operations_->poll(&done_); !polled.isOk()) {
      failure_ = std::move(polled);
      return true;
    }
    if (done_.empty()) {
      break;
    }
    any = true;
    for (const MpiDone& done : done_) {
      if (done.cookie.owner != nullptr) {
        static_cast<MpiReceiver*>(done.cookie.owner)->onDone(done);
      }
    }
  }
  return any;
}

}  // namespace shardwire::internal

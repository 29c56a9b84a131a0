// Counts calls into MPI, which may be under way while another thread calls MPI_Finalize. The program's threads know
// nothing of the thread that moves the messages of this library. A counted call runs between begin() and end(), or does
// not run, and MPI_Finalize waits for the calls under way (close()). Calls that wait for other ranks are not counted,
// because MPI_Finalize would then wait without limit. Threads: any.
#pragma once

#include <atomic>
#include <thread>

namespace shardwire::internal {

class MpiCalls {
 public:
  bool isClosed() const { return isClosed_.load(); }
  // No further call begins, and no call is under way when this function returns.
  void close() {
    isClosed_.store(true);
    while (numUnderWay_.load() > 0) {
      std::this_thread::yield();
    }
  }
  // False: no call may be made, and end() is not called. begin() counts the call before it loads isClosed_, and close()
  // stores isClosed_ before it loads the count, so one of the two sees the store of the other (order: seq_cst).
  bool begin() {
    numUnderWay_.fetch_add(1);
    if (!isClosed_.load()) {
      return true;
    }
    end();
    return false;
  }
  void end() { numUnderWay_.fetch_sub(1); }

 private:
  std::atomic<bool> isClosed_{false};
  std::atomic<int> numUnderWay_{0};
};

// begin(), and end() with the scope.
class MpiCall {
 public:
  explicit MpiCall(MpiCalls* calls) : calls_(calls->begin() ? calls : nullptr) {}
  ~MpiCall() {
    if (calls_ != nullptr) {
      calls_->end();
    }
  }
  MpiCall(const MpiCall&) = delete;
  MpiCall& operator=(const MpiCall&) = delete;
  bool mayRun() const { return calls_ != nullptr; }

 private:
  MpiCalls* const calls_;
};

}  // namespace shardwire::internal

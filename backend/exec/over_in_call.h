// Operations that were over inside their call, in the caller's hands: done from the beginning, and without a group. Any
// thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/exec/activity.h"

namespace shardwire::internal {

class OverInCall final : public Activity {
 public:
  // `source`: Work::sourceRank().
  static std::shared_ptr<Activity> make(Rank source);
  explicit OverInCall(Rank source) : source_(source) {}

  bool isDone() const override { return true; }
  Status wait(Deadline) override { return Status::ok(); }
  Status status() const override { return Status::ok(); }
  bool step(std::vector<bool>&) override { return false; }
  bool finished() const override { return true; }
  bool needs(Rank) const override { return false; }
  std::string waitingFor() const override { return ""; }
  bool ordered() const override { return false; }
  Rank sourceRank() const override { return source_; }

 private:
  const Rank source_;
};

// Stands for all such collectives and sends of the process. The pointer has no owner, and the object is never
// destroyed: counting the holders would take a tenth of a short call.
std::shared_ptr<Activity> overInCall();

}  // namespace shardwire::internal

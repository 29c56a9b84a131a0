// The range of one operation in torch's profiler: from before the operation is issued to its end, on the thread that
// notices the end. Any thread may end the range; only the first end counts.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <memory>
#include <string>

#include "backend/base/mutex.h"
#include "backend/c10d/tensor_adapter.h"

namespace shardwire::internal {

class ProfilerRange {
 public:
  // The title is "backend:title name". Null without an active profiler. `tensors`: the profiler shows the shapes of the
  // inputs, or of the outputs if there are no inputs.
  static std::shared_ptr<ProfilerRange> open(const char* backend, const char* title, const OperationTensors& tensors,
                                             const std::string& name = {});
  void end();

  // Use open().
  explicit ProfilerRange(std::string title) : title_(std::move(title)) {}

 private:
  const std::string title_;  // the range may point to this text
  Mutex mutex_;
  std::function<void()> end_ SW_GUARDED_BY(mutex_);
};

}  // namespace shardwire::internal

// The range of one operation in torch's profiler: from before it is issued to its end, on whichever thread that is noticed. Any thread may
// end it; only the first end counts.
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
  // "backend:title name". Null while nobody profiles. `tensors`: whose shapes are shown; the inputs, or the outputs where there are none.
  static std::shared_ptr<ProfilerRange> open(const char* backend, const char* title, const OperationTensors& tensors,
                                             const std::string& name = {});
  void end();

  // Use open().
  explicit ProfilerRange(std::string title) : title_(std::move(title)) {}

 private:
  const std::string title_;  // the range may point to it
  Mutex mutex_;
  std::function<void()> end_ SW_GUARDED_BY(mutex_);
};

}  // namespace shardwire::internal

#include "backend/c10d/profiler_range.h"

#include <ATen/ThreadLocalState.h>
#include <fmt/format.h>

#include <utility>
#include <vector>

namespace shardwire::internal {

std::shared_ptr<ProfilerRange> ProfilerRange::open(const char* backend, const char* title,
                                                   const OperationTensors& tensors, const std::string& name) {
  if (!at::hasCallbacks()) {
    return nullptr;
  }
  auto function = std::make_shared<at::RecordFunction>(at::RecordScope::USER_SCOPE);
  if (!function->isActive()) {
    return nullptr;
  }
  auto range = std::make_shared<ProfilerRange>(fmt::format("{}:{}{}{}", backend, title, name.empty() ? "" : " ", name));
  function->_setAsync();  // another thread may notice the end
  std::vector<c10::IValue> shown;
  const auto& listed = tensors.inputs.empty() ? tensors.outputs : tensors.inputs;
  for (const at::Tensor& tensor : listed) {
    shown.emplace_back(tensor);
  }
  function->before(range->title_.c_str(), c10::ArrayRef<const c10::IValue>(shown.data(), shown.size()));
  const MutexLock lock(range->mutex_);
  range->end_ = at::wrapPropagateTLSState([function] { function->end(); });
  return range;
}

void ProfilerRange::end() {
  std::function<void()> end;
  {
    const MutexLock lock(mutex_);
    end = std::exchange(end_, nullptr);
  }
  if (end) {
    end();
  }
}

}  // namespace shardwire::internal

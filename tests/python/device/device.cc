// A device unknown to torch (PrivateUse1), for tests: an allocator, a guard, copies, and shardwire's stream gates, over
// streams that are threads. Operators without a kernel run on the CPU, behind blocking copies. There is one device, of
// index 0. The parts follow in this order: memory, the guard with its events, operators, gates, kernels of torch's
// symm_mem ops for tests, and last the Python module with the controls of the device.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <atomic>
#include <cstring>

#include "backend/c10d/torch_compat.h"
#include "shardwire/stream_gate.h"
#include "tests/python/device/streams.h"

#if SW_TORCH_AT_LEAST(2, 6)
#include <ATen/detail/PrivateUse1HooksInterface.h>
#define TEST_DEVICE_HAS_HOOKS 1
#endif
#if SW_TORCH_HAS_STREAM_BLOCK
#include <torch/csrc/distributed/c10d/cuda/StreamBlock.hpp>
#endif

namespace test_device {
namespace {

namespace py = pybind11;
constexpr auto kType = c10::DeviceType::PrivateUse1;
const c10::Device kDevice(kType, 0);

thread_local std::int64_t currentStream = 0;
std::atomic<int> copyMicroseconds{0};  // the least duration of every copy
std::atomic<bool> capturing{false};
std::atomic<bool> refusesRecords{false};
std::atomic<int> usesAfterFree{0};
std::atomic<int> pinnedBlocks{0};
std::atomic<int> gatesMade{0};

Stream& current() {
  return stream(currentStream);
}

// ---- memory

// Like the allocators of real devices: tasks queued so far on the allocating stream may still use the memory, other
// streams may not.
void freeOnDevice(void* shown) {
  if (shown != nullptr) {
    stream(memory().streamOf(shown)).queue([shown] { memory().free(shown); });
  }
}

SW_TORCH_VIRTUALS_BEGIN
class DeviceAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) SW_TORCH_ALLOCATE_CONST override {
    void* shown = bytes == 0 ? nullptr : memory().allocate(bytes, currentStream);
    return {shown, shown, &freeOnDevice, kDevice};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &freeOnDevice; }
  void copy_data(void*, const void*, std::size_t) const { throw std::runtime_error("copy_data of the test device"); }
};

class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) SW_TORCH_ALLOCATE_CONST override {
    ++pinnedBlocks;
    void* block = std::malloc(bytes);
    return {block, block, &std::free, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const { std::memcpy(to, from, bytes); }
};
SW_TORCH_VIRTUALS_END

DeviceAllocator& allocator() {
  static auto* made = new DeviceAllocator;
  return *made;
}

// ---- guard

// The state of an event at the last record.
struct EventState {
  std::shared_ptr<Flag> recorded;
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device) const override { return kDevice; }
  c10::Device getDevice() const override { return kDevice; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const noexcept override { return streamOf(currentStream); }
  c10::Stream getDefaultStream(c10::Device) const override { return streamOf(0); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override {
    static std::atomic<std::int64_t> next{0};
    return streamOf(1 + next++ % (kNumStreams - 1));
  }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override {
    return streamOf(std::exchange(currentStream, stream.id()));
  }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<EventState*>(event);
  }
  void record(void** event, const c10::Stream& on, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (refusesRecords) {
      throw std::runtime_error("the test device records no events");
    }
    if (*event == nullptr) {
      *event = new EventState;
    }
    const auto flag = std::make_shared<Flag>();
    static_cast<EventState*>(*event)->recorded = flag;
    stream(on.id()).queue([flag] { flag->set(); });
  }
  void block(void* event, const c10::Stream& on) const override {
    if (event != nullptr) {
      stream(on.id()).queue([flag = static_cast<EventState*>(event)->recorded] { flag->wait(); });
    }
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || static_cast<EventState*>(event)->recorded->isSet();
  }
  bool queryStream(const c10::Stream& which) const override { return stream(which.id()).isIdle(); }
  void synchronizeStream(const c10::Stream& which) const override { stream(which.id()).synchronize(); }
  bool isStreamCapturing(const c10::Stream&) const { return capturing; }

 private:
  static c10::Stream streamOf(std::int64_t id) { return c10::Stream(c10::Stream::UNSAFE, kDevice, id); }
};

// ---- operators

// A tensor for use in a later task: holds addresses, not references, so that memory freed too early is noticed.
struct Seen {
  explicit Seen(const at::Tensor& tensor)
      : bytes(tensor.data_ptr()),
        onDevice(!tensor.device().is_cpu()),
        sizes(tensor.sizes().vec()),
        strides(tensor.strides().vec()),
        type(tensor.scalar_type()) {}
  // Undefined when the memory is gone.
  at::Tensor open() const {
    void* own = onDevice ? memory().own(bytes) : bytes;
    return own == nullptr ? at::Tensor() : at::from_blob(own, sizes, strides, at::TensorOptions(type));
  }
  void* bytes;
  bool onDevice;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  at::ScalarType type;
};

at::Tensor& copyInto(at::Tensor& to, const at::Tensor& given, bool nonBlocking) {
  const at::Tensor from = given.sizes() == to.sizes() ? given : given.expand(to.sizes());
  if (to.numel() == 0) {
    return to;
  }
  Stream& on = current();
  const char* kind = to.device().is_cpu() ? "to_host" : from.device().is_cpu() ? "to_device" : "on_device";
  on.queue([to = Seen(to), from = Seen(from), kind, id = on.id] {
    const at::AutoDispatchBelowADInplaceOrView noGradients;
    const double begin = now();
    const at::Tensor target = to.open();
    const at::Tensor source = from.open();
    if (!target.defined() || !source.defined()) {
      ++usesAfterFree;
      return;
    }
    if (const int delay = copyMicroseconds; delay > 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(delay));
    }
    target.copy_(source);
    trace().add({kind, id, begin, now(), static_cast<std::size_t>(target.numel()) * target.element_size()});
  });
  if (!nonBlocking) {
    on.synchronize();
  }
  return to;
}

at::Tensor copyFrom(const at::Tensor& from, const at::Tensor& to, bool nonBlocking) {
  at::Tensor target = to;
  return copyInto(target, from, nonBlocking);
}

at::Tensor copyFromAndResize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) {
    throw std::runtime_error("the test device resizes nothing");
  }
  return copyFrom(from, to, false);
}

at::Tensor& fill(at::Tensor& tensor, const at::Scalar& value) {
  Stream& on = current();
  on.queue([to = Seen(tensor), value] {
    const at::AutoDispatchBelowADInplaceOrView noGradients;
    if (const at::Tensor target = to.open(); target.defined()) {
      target.fill_(value);
    } else {
      ++usesAfterFree;
    }
  });
  return tensor;
}

at::Tensor& zero(at::Tensor& tensor) {
  return fill(tensor, 0);
}

at::Tensor empty(c10::IntArrayRef size, SW_TORCH_OPTIONAL<c10::ScalarType> type, SW_TORCH_OPTIONAL<c10::Layout>,
                 SW_TORCH_OPTIONAL<c10::Device>, SW_TORCH_OPTIONAL<bool>, SW_TORCH_OPTIONAL<c10::MemoryFormat> format) {
  return at::Tensor(at::detail::empty_generic(size, &allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                              type.value_or(at::kFloat), format));
}

at::Tensor emptyStrided(c10::IntArrayRef size, c10::IntArrayRef stride, SW_TORCH_OPTIONAL<c10::ScalarType> type,
                        SW_TORCH_OPTIONAL<c10::Layout>, SW_TORCH_OPTIONAL<c10::Device>, SW_TORCH_OPTIONAL<bool>) {
  return at::Tensor(at::detail::empty_strided_generic(
      size, stride, &allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), type.value_or(at::kFloat)));
}

at::Tensor asStrided(const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride,
                     SW_TORCH_OPTIONAL<std::int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}

at::Tensor view(const at::Tensor& self, c10::IntArrayRef size) {
  return at::native::view(self, size);
}

at::Tensor reshapeAlias(const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride) {
  return at::native::_reshape_alias(self, size, stride);
}

void onCpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(emptyStrided));
  m.impl("as_strided", TORCH_FN(asStrided));
  m.impl("view", TORCH_FN(view));
  m.impl("_reshape_alias", TORCH_FN(reshapeAlias));
  m.impl("copy_", TORCH_FN(copyInto));
  m.impl("_copy_from", TORCH_FN(copyFrom));
  m.impl("_copy_from_and_resize", TORCH_FN(copyFromAndResize));
  m.impl("fill_.Scalar", TORCH_FN(fill));
  m.impl("zero_", TORCH_FN(zero));
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&onCpu>());
}

// Some torches lack this fallback, among them 1.13, 2.6 and 2.9: operators without a kernel for gradients, for example
// c10d's, would find no kernel.
TORCH_LIBRARY_IMPL(_, AutogradPrivateUse1, m) {
  if (!c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(c10::DispatchKey::AutogradPrivateUse1)) {
    m.fallback(torch::CppFunction::makeFallthrough());
  }
}

// ---- gates

void closeGate(Stream& on, const std::shared_ptr<Flag>& flag) {
  ++gatesMade;
  on.queue([flag] { flag->wait(); });
}

class Gate final : public shardwire::StreamGate {
 public:
  explicit Gate(std::shared_ptr<Flag> flag) : flag_(std::move(flag)) {}
  void open() noexcept override { flag_->set(); }

 private:
  const std::shared_ptr<Flag> flag_;
};

std::unique_ptr<shardwire::StreamGate> makeGate(const c10::Stream& on) {
  const auto flag = std::make_shared<Flag>();
  closeGate(stream(on.id()), flag);
  return std::make_unique<Gate>(flag);
}

#if SW_TORCH_HAS_STREAM_BLOCK
class Block final : public ::c10d::cuda::StreamBlock {
 public:
  Block() : flag_(std::make_shared<Flag>()) { closeGate(current(), flag_); }
  void abort() override { flag_->set(); }
  ::c10d::cuda::StreamBlockStatus status() override { return ::c10d::cuda::StreamBlockStatus::UNKNOWN; }

 private:
  const std::shared_ptr<Flag> flag_;
};

std::unique_ptr<::c10d::cuda::StreamBlock> makeBlock(std::chrono::milliseconds) {
  return std::make_unique<Block>();
}
#endif

// Sets the source of the stream gates in wait(): shardwire's registry ("own"), torch's ("torch"), or no source
// ("none").
void useGates(const std::string& whose) {
  shardwire::setStreamGates(kType, whose == "own" ? &makeGate : nullptr);
  if (whose == "torch") {
#if SW_TORCH_HAS_STREAM_BLOCK
    ::c10d::cuda::StreamBlockRegistry()->Register(c10::DeviceTypeName(kType, false), &makeBlock);
#else
    throw std::runtime_error("this torch has no StreamBlock");
#endif
  }
}

#ifdef TEST_DEVICE_HAS_HOOKS
struct Hooks final : at::PrivateUse1HooksInterface {
  // Virtual in some torches only.
  bool isBuilt() const { return true; }      // NOLINT(modernize-use-override)
  bool isAvailable() const { return true; }  // NOLINT(modernize-use-override)
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  at::Allocator* getPinnedMemoryAllocator() const override {
    static auto* made = new PinnedAllocator;
    return made;
  }
};
#endif

void install() {
  c10::SetAllocator(kType, &allocator());
  static const c10::impl::DeviceGuardImplRegistrar registrar(kType, new Guard);
#ifdef TEST_DEVICE_HAS_HOOKS
  at::RegisterPrivateUse1HooksInterface(new Hooks);
#endif
}

// ---- kernels of torch's symm_mem ops for a missing device: with the C++ signatures of torch's CUDA builds, or others

void vdevOfTorch(at::Tensor&, at::Tensor&, at::Tensor&, at::Tensor&, std::string) {}
void vdev2dOfTorch(at::Tensor&, at::Tensor&, at::Tensor&, at::Tensor&, std::string, SW_TORCH_OPTIONAL<std::int64_t>) {}
at::Tensor gatherOfAnother(at::Tensor tensor, std::string) {
  return tensor;
}

void registerSymmKernels(bool areTorchs) {
  static auto* const library =
      new torch::Library(torch::Library::IMPL, "symm_mem", c10::DispatchKey::XPU, __FILE__, __LINE__);
  if (areTorchs) {
    library->impl("all_to_all_vdev", &vdevOfTorch);
    library->impl("all_to_all_vdev_2d", &vdev2dOfTorch);
    library->impl("all_to_all_vdev_2d_offset", &vdevOfTorch);
  } else {
    library->impl("_low_contention_all_gather", &gatherOfAnother);
  }
}

py::list takeTrace() {
  py::list events;
  for (const Event& event : trace().take()) {
    events.append(py::make_tuple(event.kind, event.stream, event.begin, event.end, event.bytes));
  }
  return events;
}

}  // namespace
}  // namespace test_device

PYBIND11_MODULE(shardwire_test_device, m) {
  namespace py = pybind11;
  using namespace test_device;
  install();
  m.def("delay", [](int milliseconds) {
    current().queue([milliseconds] { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); });
  });
  py::class_<Flag, std::shared_ptr<Flag>>(m, "Hold", py::module_local())
      .def("release", &Flag::set)
      .def("is_released", &Flag::isSet);
  m.def("hold", [] {
    const auto released = std::make_shared<Flag>();
    current().queue([released] { released->wait(); });
    return released;
  });
  m.def("set_copy_microseconds", [](int microseconds) { copyMicroseconds = microseconds; });
  m.def("set_capturing", [](bool value) { capturing = value; });
  m.def("refuse_records", [](bool value) { refusesRecords = value; });
  m.def("set_stream", [](std::int64_t id) { return std::exchange(currentStream, id); });
  m.def(
      "synchronize", [] { current().synchronize(); }, py::call_guard<py::gil_scoped_release>());
  m.def("is_idle", [] { return current().isIdle(); });
  m.def("use_gates", &useGates);
  m.def("gates_made", [] { return gatesMade.load(); });
  m.def("uses_after_free", [] { return usesAfterFree.load(); });
  m.def("pinned_blocks", [] { return pinnedBlocks.load(); });
  m.def("live_blocks", [] { return memory().live(); });
  m.def("take_trace", &takeTrace);
  m.def("now", &now);
  m.def("register_symm_kernels", &registerSymmKernels);
}

// A frame of the input gets a right start, by a list of all kinds and the lengths of their fields. Then the frame goes
// into the link of its sender, and the group polls once. The seeds need the other direction: the frames that a group
// sends are given back in the form of an input.
#include "tests/fuzz/fuzzed_group.h"

#include <sys/mman.h>

#include <array>

#include "backend/exec/control_frames.h"
#include "backend/exec/process_failures.h"
#include "tests/fuzz/target.h"

namespace shardwire::fuzz {
namespace {

using namespace internal;

constexpr std::size_t kSteadyBytes = 64 << 10;
constexpr std::uint64_t kMostTensorBytes = 64 << 10;

template <typename... Frames>
std::size_t fieldBytesOf(FrameKind kind) {
  std::size_t bytes = 0;
  static_cast<void>(((Frames::kKind == kind && (bytes = kFieldBytes<Frames>) != 0) || ...));
  return bytes;
}
std::size_t fieldBytes(FrameKind kind) {
  return fieldBytesOf<PostFrame, AckFrame, BlobFrame, CancelFrame, FailFrame, DesyncFrame, AskFrame, AnswerFrame,
                      AdviceFrame, EagerFrame, OfferFrame, GrantFrame, TakenFrame, PutFrame, GetFrame, WordFrame,
                      FlushFrame, ReplyFrame, DropFrame, StagedFrame, MessagePartFrame>(kind);
}

void repairStart(Bytes& frame) {
  if (frame.size() < sizeof(FrameStart)) {
    return;
  }
  FrameStart start;
  std::memcpy(&start, frame.data(), sizeof start);
  const std::size_t head = sizeof start + fieldBytes(start.kind);
  start.version = kFrameVersion;
  start.reserved = 0;
  start.payloadBytes = static_cast<std::uint32_t>(frame.size() - std::min(frame.size(), head));
  std::memcpy(frame.data(), &start, sizeof start);
}

}  // namespace

std::span<std::byte> steadyMemory() {
  static void* const memory = [] {
    // Above the program and below the libraries of ASan's processes.
    void* const wanted = reinterpret_cast<void*>(std::uint64_t{0x200000000000});  // NOLINT
    void* const mapped =
        ::mmap(wanted, kSteadyBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    require(mapped == wanted);
    return mapped;
  }();
  return {static_cast<std::byte*>(memory), kSteadyBytes};
}

std::byte* steadyBytes(std::size_t bytes, std::size_t* used) {
  const std::size_t begin = *used;
  *used += (bytes + 7) / 8 * 8;
  require(*used <= kSteadyBytes);
  return steadyMemory().data() + begin;
}

OwnTensor::OwnTensor(DType dtype, const Dims& shape)
    : bytes_(new std::byte[static_cast<std::size_t>(numElements(shape)) * elementBytes(dtype)]()),
      view_(TensorView::contiguous(bytes_.get(), dtype, shape)) {}

std::optional<std::vector<OwnTensor>> tensorsOf(const std::vector<std::pair<DType, Dims>>& kinds) {
  std::vector<OwnTensor> tensors;
  std::uint64_t bytes = 0;
  for (const auto& [dtype, shape] : kinds) {
    const auto elements = static_cast<std::uint64_t>(numElements(shape));
    if (elements > kMostTensorBytes || (bytes += elements * elementBytes(dtype)) > kMostTensorBytes) {
      return std::nullopt;
    }
    tensors.emplace_back(dtype, shape);
  }
  return tensors;
}

std::vector<TensorView> viewsOf(const std::vector<OwnTensor>& tensors) {
  std::vector<TensorView> views;
  std::ranges::transform(tensors, std::back_inserter(views), &OwnTensor::view);
  return views;
}

FuzzedGroup::FuzzedGroup(Rank rank, int worldSize, std::optional<Reach> reach) : rank_(rank) {
  ::testing::GTEST_FLAG(throw_on_failure) = true;  // an expectation of the fake links ends the process
  const auto steady = steadyMemory();
  for (Rank peer = 0; peer < worldSize; ++peer) {
    auto& mine = peers_.connections.emplace_back();
    auto& other = others_.emplace_back();
    if (peer != rank) {
      auto link = std::make_unique<FakeConnection>(peer);
      other = std::make_unique<FakeConnection>(rank);
      link->other = other.get();
      other->other = link.get();
      link->reach = reach.value_or(peer % 2 == 1 ? Reach::kDirect : Reach::kNone);
      other->exposed.emplace_back(reinterpret_cast<std::uint64_t>(steady.data()), steady.size());
      mine = std::move(link);
    }
  }
  peers_.hosts.resize(static_cast<std::size_t>(worldSize));
  GroupFacts facts{.rank = rank, .worldSize = worldSize, .label = "rank", .segmentBytes = 512, .hosts = peers_.hosts};
  facts.options.inlineBytes = 64;
  state_ = std::make_unique<GroupState>(peers_, facts, recorder_, callback_, hasWork_);
}

FuzzedGroup::~FuzzedGroup() {
  removeProcessGroup(state_->context.inProcess());
  state_->failure.fail({StatusCode::kAborted, "the end of the input"});
  poll();
}

void FuzzedGroup::start(const std::shared_ptr<Activity>& activity, std::uint64_t fingerprint) {
  activity->description = std::make_shared<const std::string>("the operation");
  activity->fingerprint = fingerprint;
  state_->operations.number(*activity, state_->operations.nextCall());
  state_->take(activity);
  deliverEarly(*state_, *activity);
  poll();
}

void FuzzedGroup::take(std::string_view bytes) {
  if (bytes.empty()) {
    return;
  }
  const auto head = static_cast<unsigned char>(bytes[0]);
  const int numPeers = state_->context.worldSize - 1;
  const Rank from = (rank_ + 1 + (head >> 3) % numPeers) % state_->context.worldSize;
  const auto text = bytesOf(bytes.substr(1));
  Bytes frame(text.begin(), text.end());
  if ((head & kRaw) == 0) {
    repairStart(frame);
  }
  others_[static_cast<std::size_t>(from)]->sent(static_cast<Lane>((head & 3) % kNumLanes)).push_back(std::move(frame));
  poll();
}

void FuzzedGroup::poll() {
  do {
    state_->poll();
    state_->operations.completions().clear();
  } while (endFetches());
}

bool FuzzedGroup::endFetches() {
  bool hasEnded = false;
  for (const auto& connection : peers_.connections) {
    if (connection == nullptr) {
      continue;
    }
    auto& link = static_cast<FakeConnection&>(*connection);
    for (const auto& [runs, count] : std::exchange(link.fetches, {})) {
      // The failure of the group has stopped all fetches, and `count` may be gone.
      if (!state_->operations.failure().isOk()) {
        break;
      }
      if (Status read = link.read(runs); !read.isOk()) {
        state_->failure.fail(std::move(read));
        break;
      }
      --count->pending;
      hasEnded = true;
    }
  }
  return hasEnded;
}

std::vector<std::string> FuzzedGroup::sent(Rank peer) {
  poll();
  auto& link = static_cast<FakeConnection&>(*peers_.connections[static_cast<std::size_t>(peer)]);
  const int worldSize = state_->context.worldSize;
  const auto sender = static_cast<unsigned>((rank_ - peer - 1 + worldSize) % worldSize);
  std::vector<std::string> frames;
  for (unsigned lane = 0; lane < kNumLanes; ++lane) {
    for (const Bytes& frame : link.sent(static_cast<Lane>(lane))) {
      frames.push_back(static_cast<char>(lane | sender << 3) + std::string(textOf(frame)));
    }
    link.sent(static_cast<Lane>(lane)).clear();
  }
  return frames;
}

}  // namespace shardwire::fuzz

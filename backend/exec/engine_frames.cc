// Control frames: who takes each. All that lie in the lane are taken at once, whatever they belong to, so that an acknowledgement never
// waits behind an operation that this rank has not called yet. So a frame of an operation comes at one of three times: while it is in
// flight here, and goes to it; before it was called here, and is kept; after it is over here, and is of no use. In each case its
// fingerprint tells whether both ranks mean the same operation; where they do not, desync() finds out what either called. Frames of
// messages and of the group have their takers here. A frame that cannot be read, or that its taker refuses, poisons the group.
#include <fmt/format.h>

#include <algorithm>
#include <type_traits>

#include "backend/exec/engine.h"
#include "backend/exec/one_sided.h"
#include "backend/exec/point_to_point.h"

namespace shardwire::internal {

namespace {

// Calls of different lengths: the same activity may be of call 5 here and of call 6 there. The ranks part in the first of the two, and both
// say so.
std::uint64_t firstCall(std::uint64_t mine, std::uint32_t theirs) {
  if (mine == 0 || theirs == 0) {
    return std::max<std::uint64_t>(mine, theirs);
  }
  const auto ahead = static_cast<std::int32_t>(theirs - static_cast<std::uint32_t>(mine));
  return ahead < 0 ? mine - static_cast<std::uint64_t>(-static_cast<std::int64_t>(ahead)) : mine;
}

}  // namespace

// The first frame is looked at by the caller: this is rarely called.
void Engine::drainControl(Rank peer) {
  PeerFrames& frames = connection(peer);
  for (auto frame = frames.peek(Lane::kControl); !frame.empty(); frame = frames.peek(Lane::kControl)) {
    handleControl(peer, frame);
    frames.release(Lane::kControl);
  }
}

void Engine::handleControl(Rank from, std::span<const std::byte> frame) {
  const FrameKind kind = kindOf(frame).value_or(FrameKind{});
  switch (kind) {
    case FrameKind::kPost:
      return handToOperation(from, frame, &Activity::onPost);
    case FrameKind::kAck:
      return handToOperation(from, frame, &Activity::onAck);
    case FrameKind::kBlob:
      return handToOperation(from, frame, &Activity::onBlob);
    case FrameKind::kCancel:
      return handToOperation(from, frame, &Activity::onCancel);
    case FrameKind::kEager:
    case FrameKind::kOffer:
    case FrameKind::kGrant:
    case FrameKind::kTaken:
      return handToPoints(kind, from, frame);
    case FrameKind::kPut:
    case FrameKind::kGet:
    case FrameKind::kWord:
    case FrameKind::kFlush:
    case FrameKind::kReply:
    case FrameKind::kDrop:
      return handToOneSided(kind, from, frame);
    case FrameKind::kFail:
    case FrameKind::kDesync:
    case FrameKind::kAsk:
    case FrameKind::kAnswer:
    case FrameKind::kAdvice:
      return handToGroup(kind, from, frame);
    case FrameKind::kStaged:
    case FrameKind::kMessagePart:
      break;
  }
  poison(unreadableFrame(from, Lane::kControl, frame), true);
}

template <typename F>
std::optional<Received<F>> Engine::read(Rank from, std::span<const std::byte> frame) {
  auto received = readFrame<F>(frame);
  if (!received.has_value()) {
    poison(unreadableFrame(from, Lane::kControl, frame), true);
  }
  return received;
}

template <typename F>
void Engine::handToOperation(Rank from, std::span<const std::byte> frame, Status (Activity::*take)(Rank, const Received<F>&)) {
  const auto received = read<F>(from, frame);
  if (!received.has_value() || !operations_.isForNow(from, received->operation, frame)) {
    return;
  }
  Activity* const activity = operations_.find(received->operation.seq);
  if (activity == nullptr) {
    if (!std::is_same_v<F, CancelFrame>) {
      operations_.sendGivenUp(from, received->operation);
    }
    return;
  }
  if constexpr (std::is_same_v<F, CancelFrame>) {
    operations_.noteGivenUp(received->operation, received->origin == CancelFrame::kSender ? from : static_cast<Rank>(received->origin),
                            textOf(received->payload));
  }
  poisonUnlessOk((activity->*take)(from, *received));
}

void Engine::handToPoints(FrameKind kind, Rank from, std::span<const std::byte> frame) {
  if (kind == FrameKind::kEager) {
    if (const auto eager = read<EagerFrame>(from, frame)) {
      poisonUnlessOk(points_->onEager(from, *eager, frame));
    }
  } else if (kind == FrameKind::kOffer) {
    if (const auto offer = read<OfferFrame>(from, frame)) {
      poisonUnlessOk(points_->onOffer(from, *offer, frame));
    }
  } else if (kind == FrameKind::kGrant) {
    if (const auto grant = read<GrantFrame>(from, frame)) {
      poisonUnlessOk(points_->onGrant(from, *grant));
    }
  } else if (const auto taken = read<TakenFrame>(from, frame)) {
    poisonUnlessOk(points_->onTaken(from, *taken));
  }
}

template <typename F>
void Engine::serveOneSided(Rank from, std::span<const std::byte> frame, Status (OneSided::*take)(Rank, const Received<F>&)) {
  if (const auto received = read<F>(from, frame)) {
    poisonUnlessOk(((*oneSided_).*take)(from, *received));
  }
}

void Engine::handToOneSided(FrameKind kind, Rank from, std::span<const std::byte> frame) {
  switch (kind) {
    case FrameKind::kPut:
      return serveOneSided(from, frame, &OneSided::onPut);
    case FrameKind::kGet:
      return serveOneSided(from, frame, &OneSided::onGet);
    case FrameKind::kWord:
      return serveOneSided(from, frame, &OneSided::onWord);
    case FrameKind::kFlush:
      return serveOneSided(from, frame, &OneSided::onFlush);
    case FrameKind::kReply:
      return serveOneSided(from, frame, &OneSided::onReply);
    default:
      return serveOneSided(from, frame, &OneSided::onDrop);
  }
}

void Engine::handToGroup(FrameKind kind, Rank from, std::span<const std::byte> frame) {
  if (kind == FrameKind::kFail) {
    if (const auto fail = read<FailFrame>(from, frame)) {
      onFail(*fail);
    }
  } else if (kind == FrameKind::kDesync) {
    if (const auto desync = read<DesyncFrame>(from, frame)) {
      onDesync(from, *desync);
    }
  } else if (kind == FrameKind::kAsk) {
    if (const auto ask = read<AskFrame>(from, frame)) {
      onAsk(from, *ask, frame);
    }
  } else if (kind == FrameKind::kAnswer) {
    if (const auto answer = read<AnswerFrame>(from, frame)) {
      onAnswer(from, *answer);
    }
  } else if (const auto advice = read<AdviceFrame>(from, frame)) {
    onAdvice(from, *advice);
  }
}

void Engine::poisonUnlessOk(Status status) {
  if (!status.isOk()) {
    poison(std::move(status), true);
  }
}

void Engine::deliverEarly(Activity& activity) {
  if (!operations_.early().empty()) {
    operations_.early().give(activity.seq, [this](Rank from, std::span<const std::byte> frame) {
      mutex_.assertHeld();
      handleControl(from, frame);
    });
  }
}

void Engine::onDesync(Rank from, const Received<DesyncFrame>& frame) {
  const std::string theirs(textOf(frame.payload));
  const std::string mine = operations_.describe(frame.seq);
  if (frame.wantsAnswer == 1) {
    context_.sendText(from, DesyncFrame{.seq = frame.seq, .call = static_cast<std::uint32_t>(operations_.callOf(frame.seq))}, mine);
  }
  const std::uint64_t call = firstCall(operations_.callOf(frame.seq), frame.call);
  desyncSeq_[static_cast<std::size_t>(from)] = 0;
  const bool mineFirst = rank_ < from;
  poison(
      {StatusCode::kMismatch,
       fmt::format("the ranks disagree about operation #{}: rank {} called {}, but rank {} called {}. All ranks of a group must call the "
                   "same operations in the same order with the same shapes and dtypes",
                   call, std::min(rank_, from), mineFirst ? mine : theirs, std::max(rank_, from), mineFirst ? theirs : mine)},
      true);  // a third rank may be waiting for either of the two
}

}  // namespace shardwire::internal

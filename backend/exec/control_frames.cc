// All frames in a lane are taken at once, even of other operations, so an acknowledgement never waits behind an
// operation that this rank has not called yet. Frames of an operation in flight go to the operation;
// Operations::isForNow decides about all other frames of operations. Frames of messages, of one-sided access and of the
// group have one taker each. A frame that cannot be read, or that the taker refuses, fails the group: either a program
// on this wire is not shardwire, or there is a bug.
#include "backend/exec/control_frames.h"

#include <type_traits>
#include <utility>

namespace shardwire::internal {

namespace {

void failUnlessOk(const GroupState& group, Status status) {
  if (!status.isOk()) {
    group.context.fail(std::move(status));
  }
}

template <typename F>
void toOperation(GroupState& group, Rank from, std::span<const std::byte> frame,
                 Status (Activity::*take)(Rank, const Received<F>&)) {
  const auto received = readFrame<F>(frame);
  if (!received.has_value()) {
    return group.context.fail(unreadableFrame(from, Lane::kControl, frame));
  }
  if (!group.operations.isForNow(from, received->operation, frame)) {
    return;
  }
  Activity* const activity = group.operations.find(received->operation.seq);
  if (activity == nullptr) {
    if (!std::is_same_v<F, CancelFrame>) {
      group.operations.sendGivenUp(from, received->operation);
    }
    return;
  }
  if constexpr (std::is_same_v<F, CancelFrame>) {
    group.operations.noteGivenUp(received->operation,
                                 received->origin == CancelFrame::kSender ? from : static_cast<Rank>(received->origin),
                                 textOf(received->payload));
  }
  failUnlessOk(group, (activity->*take)(from, *received));
}

template <typename Part, typename Outcome, typename F, typename... Whole>
void toPart(GroupState& group, Part& part, Rank from, std::span<const std::byte> frame,
            Outcome (Part::*take)(Rank, const Received<F>&, Whole...)) {
  const auto received = readFrame<F>(frame);
  if (!received.has_value()) {
    return group.context.fail(unreadableFrame(from, Lane::kControl, frame));
  }
  // Some takers keep the whole frame.
  const auto call = [&] {
    if constexpr (sizeof...(Whole) == 1) {
      return (part.*take)(from, *received, frame);
    } else {
      return (part.*take)(from, *received);
    }
  };
  if constexpr (std::is_void_v<Outcome>) {
    call();
  } else {
    failUnlessOk(group, call());
  }
}

void handle(GroupState& group, Rank from, std::span<const std::byte> frame) {
  switch (kindOf(frame).value_or(FrameKind{})) {
    case FrameKind::kPost:
      return toOperation(group, from, frame, &Activity::onPost);
    case FrameKind::kAck:
      return toOperation(group, from, frame, &Activity::onAck);
    case FrameKind::kBlob:
      return toOperation(group, from, frame, &Activity::onBlob);
    case FrameKind::kCancel:
      return toOperation(group, from, frame, &Activity::onCancel);
    case FrameKind::kEager:
      return toPart(group, group.points, from, frame, &PointToPoint::onEager);
    case FrameKind::kOffer:
      return toPart(group, group.points, from, frame, &PointToPoint::onOffer);
    case FrameKind::kGrant:
      return toPart(group, group.points, from, frame, &PointToPoint::onGrant);
    case FrameKind::kTaken:
      return toPart(group, group.points, from, frame, &PointToPoint::onTaken);
    case FrameKind::kPut:
      return toPart(group, group.oneSided, from, frame, &OneSided::onPut);
    case FrameKind::kGet:
      return toPart(group, group.oneSided, from, frame, &OneSided::onGet);
    case FrameKind::kWord:
      return toPart(group, group.oneSided, from, frame, &OneSided::onWord);
    case FrameKind::kFlush:
      return toPart(group, group.oneSided, from, frame, &OneSided::onFlush);
    case FrameKind::kReply:
      return toPart(group, group.oneSided, from, frame, &OneSided::onReply);
    case FrameKind::kDrop:
      return toPart(group, group.oneSided, from, frame, &OneSided::onDrop);
    case FrameKind::kFail:
      return toPart(group, group.failure, from, frame, &GroupFailure::onFail);
    case FrameKind::kDesync:
      return toPart(group, group.disagreements, from, frame, &Disagreements::onDesync);
    case FrameKind::kAsk:
      return toPart(group, group.questions, from, frame, &Questions::onAsk);
    case FrameKind::kAnswer:
      return toPart(group, group.questions, from, frame, &Questions::onAnswer);
    case FrameKind::kAdvice:
      return toPart(group, group.questions, from, frame, &Questions::onAdvice);
    case FrameKind::kStaged:
    case FrameKind::kMessagePart:
      break;
  }
  group.context.fail(unreadableFrame(from, Lane::kControl, frame));
}

}  // namespace

void drainControl(GroupState& group, Rank peer) {
  PeerFrames& frames = group.context.connection(peer);
  // A program that receives one message after the other takes each message out of the lane, and not out of a copy. The
  // lanes of other peers are emptied as always.
  for (auto frame = frames.peek(Lane::kControl); !frame.empty() && !group.points.hasTakenNow(peer);
       frame = frames.peek(Lane::kControl)) {
    handle(group, peer, frame);
    frames.release(Lane::kControl);
  }
}

void deliverEarly(GroupState& group, const Activity& activity) {
  if (!group.operations.early().empty()) {
    group.operations.early().give(activity.seq,
                                  [&](Rank from, std::span<const std::byte> frame) { handle(group, from, frame); });
  }
}

}  // namespace shardwire::internal

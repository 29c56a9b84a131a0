// Runs one random call on one rank and checks the result. makeTensors() or makeMessages() places the tensors and the
// expected values, issue() starts the call or makes a wrong call, and check() compares the received messages and every
// byte, and waits for the release of the kept objects.
#include "tests/support/collective_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <thread>
#include <tuple>

namespace shardwire::testing {

namespace {

std::vector<TensorView> viewsOf(const auto& tensors) {
  std::vector<TensorView> views;
  for (const auto& tensor : tensors) {
    views.push_back(tensor.view);
  }
  return views;
}

std::string wrongStatus(const Status& status, StatusCode code, const std::string& text) {
  if (status.code() == code && (text.empty() || status.message() == text)) {
    return "";
  }
  return fmt::format("a wrong call gave {} \"{}\", not {} \"{}\"", statusCodeName(status.code()), status.message(),
                     statusCodeName(code), text);
}

}  // namespace

CollectiveRun::CollectiveRun(const RandomCall& call, Rank rank)
    : call_(call),
      rank_(rank),
      numRanks_(static_cast<int>(call.choices.size())),
      random_(mix64(call.seed) + static_cast<std::uint64_t>(rank)) {
  call.kind == CallKind::kMessages ? makeMessages() : makeTensors();
}

// ---- tensors

CollectiveRun::Tensor CollectiveRun::place(const Dims& shape, unsigned expanded) {
  const Placement placement = randomPlacement(random_, shape, expanded);
  storages_.emplace_back(static_cast<std::size_t>(placement.span) * elementBytes(call_.dtype), random_.chance(50));
  TensorView view = storages_.back().view(call_.dtype, shape, placement);
  if (numElements(shape) == 0 && random_.chance(30)) {
    view.bytes = nullptr;
  }
  return {view, storages_.size() - 1};
}

// One tensor per shape: each in a separate storage, or all in one, side by side or (of equal shapes) element by element
// in turns.
std::vector<CollectiveRun::Tensor> CollectiveRun::placeList(const std::vector<Dims>& shapes, ListLayout layout,
                                                            bool areInputs) {
  std::vector<Tensor> tensors;
  if (layout == ListLayout::kSeparate) {
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      tensors.push_back(place(shapes[i], areInputs ? expandedDims(call_, rank_, i) : 0));
    }
    return tensors;
  }
  std::int64_t total = 0;
  for (const Dims& shape : shapes) {
    total += numElements(shape);
  }
  storages_.emplace_back(static_cast<std::size_t>(total) * elementBytes(call_.dtype), random_.chance(50));
  const bool isInterleaved = layout == ListLayout::kInterleaved && call_.kind != CallKind::kAllToAll;
  std::int64_t offset = 0;
  for (const Dims& shape : shapes) {
    Placement placement{contiguousStrides(shape), offset, 0};
    for (int d = 0; isInterleaved && d < shape.size(); ++d) {
      placement.strides[d] *= static_cast<std::int64_t>(shapes.size());
    }
    tensors.push_back({storages_.back().view(call_.dtype, shape, placement), storages_.size() - 1});
    offset += isInterleaved ? 1 : numElements(shape);
  }
  return tensors;
}

void CollectiveRun::makeTensors() {
  const auto me = static_cast<std::size_t>(rank_);
  const auto n = static_cast<std::size_t>(numRanks_);
  const bool isRoot = rank_ == call_.root;
  const RankChoice choice = call_.choices[me];
  const std::vector<Dims> equal(n, call_.shape);
  switch (call_.kind) {
    case CallKind::kBarrier:
    case CallKind::kMessages:
      return;
    case CallKind::kBroadcast:
      inputs_.push_back(place(call_.shape, isRoot ? expandedDims(call_, rank_, 0) : 0));
      put(inputs_[0], inputElements(call_, rank_, 0));
      return expect(inputs_[0], inputElements(call_, call_.root, 0));
    case CallKind::kAllReduce:
    case CallKind::kReduce:
      inputs_.push_back(place(call_.shape, expandedDims(call_, rank_, 0)));
      put(inputs_[0], inputElements(call_, rank_, 0));
      if (call_.kind == CallKind::kAllReduce || isRoot) {
        expect(inputs_[0], reducedElements(call_, numRanks_, 0));
      }
      return;
    case CallKind::kAllGather:
    case CallKind::kGather:
      if (call_.kind == CallKind::kAllGather || isRoot) {
        outputs_ = placeList(equal, choice.list, false);
      }
      inputs_.push_back(choice.isInPlace && !outputs_.empty() ? outputs_[me]
                                                              : place(call_.shape, expandedDims(call_, rank_, 0)));
      put(inputs_[0], inputElements(call_, rank_, 0));
      for (std::size_t r = 0; r < outputs_.size(); ++r) {
        expect(outputs_[r], inputElements(call_, static_cast<Rank>(r), 0));
      }
      return;
    case CallKind::kScatter:
    case CallKind::kReduceScatter:
      if (call_.kind == CallKind::kReduceScatter || isRoot) {
        inputs_ = placeList(equal, choice.list, true);
      }
      outputs_.push_back(choice.isInPlace && !inputs_.empty() ? inputs_[me] : place(call_.shape, 0));
      for (std::size_t r = 0; r < inputs_.size(); ++r) {
        put(inputs_[r], inputElements(call_, rank_, r));
      }
      return expect(outputs_[0], call_.kind == CallKind::kScatter ? inputElements(call_, call_.root, me)
                                                                  : reducedElements(call_, numRanks_, me));
    case CallKind::kAllToAll: {
      std::vector<Dims> shapesIn;
      std::vector<Dims> shapesOut;
      for (std::size_t r = 0; r < n; ++r) {
        shapesIn.push_back(call_.pairShapes[me * n + r]);
        shapesOut.push_back(call_.pairShapes[r * n + me]);
      }
      inputs_ = placeList(shapesIn, choice.list, true);
      outputs_ = placeList(shapesOut, choice.list, false);
      for (std::size_t r = 0; r < n; ++r) {
        put(inputs_[r], inputElements(call_, rank_, r));
        expect(outputs_[r], inputElements(call_, static_cast<Rank>(r), me));
      }
      return;
    }
    case CallKind::kRefused:
      inputs_ = placeList(equal, ListLayout::kSeparate, true);
      outputs_ = placeList(equal, ListLayout::kSeparate, false);
      for (std::size_t r = 0; r < n; ++r) {
        put(inputs_[r], inputElements(call_, rank_, r));
      }
      return;
  }
}

void CollectiveRun::makeMessages() {
  for (std::size_t m = 0; m < call_.messages.size(); ++m) {
    const Message& message = call_.messages[m];
    if (message.from == rank_) {
      sent_.push_back(m);
      inputs_.push_back(place(message.shape, expandedDims(call_, rank_, m)));
      put(inputs_.back(), inputElements(call_, rank_, m));
    } else if (message.to == rank_) {
      received_.push_back(m);
      outputs_.push_back(place(message.shape, 0));
      if (!message.isFromAny) {
        expect(outputs_.back(), inputElements(call_, message.from, m));
      }
    }
  }
}

// ---- the call

CallOptions CollectiveRun::options() {
  CallOptions options;
  if (random_.chance(20)) {
    options.timeout = std::chrono::seconds(50);
  }
  if (random_.chance(20)) {
    options.keepAlive = std::make_shared<int>(1);
    kept_.push_back(options.keepAlive);
  }
  return options;
}

std::string CollectiveRun::keep(Result<WorkPtr> work) {
  if (!work.isOk()) {
    return work.status().message();
  }
  works_.push_back(*work);
  return "";
}

Result<WorkPtr> CollectiveRun::start(Communicator& group) {
  const std::vector<TensorView> inputs = viewsOf(inputs_);
  const std::vector<TensorView> outputs = viewsOf(outputs_);
  switch (call_.kind) {
    case CallKind::kBroadcast:
      return group.broadcast(inputs[0], call_.root, options());
    case CallKind::kAllReduce:
      return group.allReduce(inputs[0], call_.reduction, options());
    case CallKind::kReduce:
      return group.reduce(inputs[0], call_.root, call_.reduction, options());
    case CallKind::kAllGather:
      return group.allGather(inputs[0], outputs, options());
    case CallKind::kGather:
      return group.gather(inputs[0], outputs, call_.root, options());
    case CallKind::kScatter:
      return group.scatter(outputs[0], inputs, call_.root, options());
    case CallKind::kReduceScatter:
      return group.reduceScatter(outputs[0], inputs, call_.reduction, options());
    case CallKind::kAllToAll:
      return group.allToAll(outputs, inputs, options());
    default:
      return group.barrier(options());
  }
}

std::string CollectiveRun::issue(Communicator& group) {
  if (call_.kind == CallKind::kMessages) {
    return issueMessages(group);
  }
  return call_.kind == CallKind::kRefused ? issueWrong(group) : keep(start(group));
}

// In random order, but messages of equal ends and tag keep their order, by which they match.
std::string CollectiveRun::issueMessages(Communicator& group) {
  struct Step {
    bool isSend;
    std::size_t index;  // of inputs_ or outputs_
  };
  std::vector<Step> steps;
  std::map<std::tuple<bool, Rank, int>, std::vector<std::size_t>>
      rows;  // positions of the messages that must stay in order
  for (std::size_t i = 0; i < sent_.size(); ++i) {
    steps.push_back({true, i});
  }
  for (std::size_t i = 0; i < received_.size(); ++i) {
    steps.push_back({false, i});
  }
  random_.shuffle(steps);
  for (std::size_t at = 0; at < steps.size(); ++at) {
    const Message& message = call_.messages[steps[at].isSend ? sent_[steps[at].index] : received_[steps[at].index]];
    const Rank peer = steps[at].isSend ? message.to : message.isFromAny ? kAnySource : message.from;
    rows[{steps[at].isSend, peer, message.tag}].push_back(at);
  }
  for (const auto& [key, positions] : rows) {
    std::vector<std::size_t> indices;
    for (const std::size_t at : positions) {
      indices.push_back(steps[at].index);
    }
    std::sort(indices.begin(), indices.end());
    for (std::size_t i = 0; i < positions.size(); ++i) {
      steps[positions[i]].index = indices[i];
    }
  }
  fromAny_.resize(received_.size());
  for (const Step& step : steps) {
    const Message& message = call_.messages[step.isSend ? sent_[step.index] : received_[step.index]];
    if (std::string wrong =
            keep(step.isSend ? group.send(inputs_[step.index].view, message.to, message.tag, options())
                             : group.recv(outputs_[step.index].view, message.isFromAny ? kAnySource : message.from,
                                          message.tag, options()));
        !wrong.empty()) {
      return wrong;
    }
    if (!step.isSend && message.isFromAny) {
      fromAny_[step.index] = works_.back();
    }
  }
  return "";
}

// Every rank makes the same wrong call; the text does not name the rank, so all get the same text.
std::string CollectiveRun::issueWrong(Communicator& group) {
  std::vector<TensorView> inputs = viewsOf(inputs_);
  std::vector<TensorView> outputs = viewsOf(outputs_);
  const auto which = random_.between(0, 2);
  const std::uint64_t before = group.sequenceNumber();
  Status status;
  StatusCode code = StatusCode::kInvalidArgument;
  std::string text;
  switch (call_.wrong) {
    case WrongCall::kReduction: {
      code = StatusCode::kTypeError;
      const char* name = call_.seed % 3 == 0 ? "all_reduce" : call_.seed % 3 == 1 ? "reduce" : "reduce_scatter";
      text = fmt::format("{}: {} is not defined on {}", name, reduceOpName(call_.reduction), dtypeName(call_.dtype));
      status = (call_.seed % 3 == 0   ? group.allReduce(inputs[0], call_.reduction)
                : call_.seed % 3 == 1 ? group.reduce(inputs[0], call_.root, call_.reduction)
                                      : group.reduceScatter(outputs[0], inputs, call_.reduction))
                   .status();
      break;
    }
    case WrongCall::kRoot:
      status = (which == 0   ? group.broadcast(inputs[0], call_.root)
                : which == 1 ? group.gather(inputs[0], outputs, call_.root)
                             : group.scatter(outputs[0], inputs, call_.root))
                   .status();
      break;
    case WrongCall::kListLength:
      inputs.push_back(inputs[0]);
      status = (which == 0   ? group.allToAll(outputs, inputs)
                : which == 1 ? group.allGather(inputs[0], std::span(outputs).first(outputs.size() - 1))
                             : group.reduceScatter(outputs[0], inputs, ReduceOp::kSum))
                   .status();
      code = which == 2 && !isDefined(call_.dtype, ReduceOp::kSum) ? StatusCode::kTypeError : code;
      break;
    case WrongCall::kListDType:
      code = StatusCode::kTypeError;
      outputs.back().dtype = call_.dtype == DType::kInt8 ? DType::kUInt8 : DType::kInt8;
      status = (which == 0 ? group.allToAll(outputs, inputs) : group.allGather(inputs[0], outputs)).status();
      break;
    case WrongCall::kListElems:
      outputs.back().shape.push_back(numElements(call_.shape) == 0 ? 1 : 2);
      outputs.back().strides.push_back(1);
      if (numElements(call_.shape) == 0) {
        outputs.back().shape = {3};
        outputs.back().strides = {1};
      }
      status = group.allGather(inputs[0], outputs).status();
      break;
    case WrongCall::kPeer:
      status = (which == 0   ? group.send(inputs[0], rank_, 0)
                : which == 1 ? group.recv(outputs[0], numRanks_, 0)
                             : group.recv(outputs[0], -2, 0))
                   .status();
      break;
  }
  if (group.sequenceNumber() != before) {
    return "a refused call took a sequence number";
  }
  return wrongStatus(status, code, text);
}

// ---- what came out

// The k-th message that a rank sent with this tag went to the k-th of the matching receives.
std::string CollectiveRun::expectReceived() {
  std::map<std::pair<int, Rank>, std::vector<std::size_t>> toCome;
  for (const std::size_t m : received_) {
    if (call_.messages[m].isFromAny) {
      toCome[{call_.messages[m].tag, call_.messages[m].from}].push_back(m);
    }
  }
  for (std::size_t i = 0; i < received_.size(); ++i) {
    if (fromAny_[i] == nullptr) {
      continue;
    }
    const Rank from = fromAny_[i]->sourceRank();
    auto& left = toCome[{call_.messages[received_[i]].tag, from}];
    if (left.empty()) {
      return fmt::format("a receive from any rank matched rank {}, which had sent no (more) message of tag {}", from,
                         call_.messages[received_[i]].tag);
    }
    expect(outputs_[i], inputElements(call_, from, left.front()));
    left.erase(left.begin());
  }
  fromAny_.clear();
  return "";
}

void CollectiveRun::overwrite() {
  std::for_each(storages_.begin(), storages_.end(), [](CheckedStorage& each) { each.overwrite(); });
}

std::string CollectiveRun::findDifference() const {
  for (std::size_t i = 0; i < storages_.size(); ++i) {
    if (const std::string difference = storages_[i].findDifference(); !difference.empty()) {
      return fmt::format("storage {} of {} inputs and {} outputs: {}", i, inputs_.size(), outputs_.size(), difference);
    }
  }
  return "";
}

std::string CollectiveRun::check() {
  if (!fromAny_.empty()) {
    if (std::string wrong = expectReceived(); !wrong.empty()) {
      return wrong;
    }
  }
  if (std::string difference = findDifference(); !difference.empty()) {
    return difference;
  }
  // The thread that completed the call releases the tensors a moment after other threads see the end.
  const Deadline deadline = Clock::now() + std::chrono::seconds(20);
  for (const std::weak_ptr<void>& kept : kept_) {
    while (!kept.expired()) {
      if (Clock::now() > deadline) {
        return "keepAlive is still held after the operation is done";
      }
      std::this_thread::yield();
    }
  }
  return "";
}

}  // namespace shardwire::testing

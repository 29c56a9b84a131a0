// How blobs get to all ranks.
//
// Few ranks (kFewRanks): each rank sends its blob to each other rank. The exchange is over when this rank has sent to
// all ranks and received from all.
//
// More ranks: each rank sends its blob to rank 0 only. When rank 0 has all blobs, rank 0 sends one table of all blobs
// down the tree (RankTree); each rank passes parts on as the parts come. A rank with the whole table confirms to its
// parent after all its children have confirmed, and is then done. So a rank needs links to rank 0, to the parent and to
// the children, and only rank 0 needs links to all ranks. And no rank is done, and silent, while a rank below still
// waits for parts from this rank. All blobs go to rank 0 directly, not up the tree, so rank 0 knows exactly which ranks
// did not come: a rank on the way without a call would hide the ranks below.
//
// Rank 0 may keep the blobs to itself: then rank 0's answer goes down the tree in place of the blobs.
//
// No tensor is touched before the end, so a rank may give the exchange up after a long wait (cancel) and the group
// stays usable: ranks that come later are notified. The engine of the rank notifies the peers. In a large group a rank
// exchanges frames with few peers, and each notified rank passes the cancel on: rank 0 to all ranks, the other ranks to
// their neighbours in the tree, in case rank 0 did not come.
#include "backend/exec/exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "backend/bootstrap/summary.h"
#include "ops/wire/byte_codec.h"

namespace shardwire::internal {

namespace {

// Narrow: tables may be long, and a rank sends one table to each child.
constexpr int kTreeWidth = 8;

// Where rank 0 may keep the blobs, the table's first byte states the kind of the content behind.
enum class TableOf : std::uint8_t { kBlobs = 0, kAnswer = 1 };

}  // namespace

Exchange::Exchange(std::optional<std::string> mine, int worldSize, Rank rank)
    : rank_(rank), blobs_(static_cast<std::size_t>(worldSize)), isGiven_(mine.has_value()) {
  blobs_[static_cast<std::size_t>(rank)] = std::move(mine).value_or(std::string());
  if (worldSize > kFewRanks) {
    tree_.emplace(worldSize, kTreeWidth);
    parent_ = tree_->parentOf(rank);
    hasAcked_ = rank == 0;
  }
  for (Rank peer = 0; peer < worldSize; ++peer) {
    if (peer == rank) {
      continue;
    }
    if (!isByTree() || rank == 0) {
      ins_.push_back({.peer = peer, .bytes = &blobs_[static_cast<std::size_t>(peer)]});
    }
    if (!isByTree() || peer == 0) {
      outs_.push_back({.peer = peer, .bytes = &blobs_[static_cast<std::size_t>(rank)]});
    }
  }
  if (isByTree()) {
    if (rank != 0) {
      ins_.push_back({.peer = parent_, .bytes = &table_});
    }
    for (const Rank child : tree_->childrenOf(rank)) {
      outs_.push_back({.peer = child, .bytes = &table_});
    }
  }
  numOpenIns_ = ins_.size();
  numOpenOuts_ = outs_.size();
}

void Exchange::give(std::string mine) {
  if (isDone()) {
    return;
  }
  blobs_[static_cast<std::size_t>(rank_)] = std::move(mine);
  isGiven_ = true;
  writeTableIfComplete();
}

std::size_t Exchange::inOf(Rank peer) const {
  const auto found =
      std::lower_bound(ins_.begin(), ins_.end(), peer, [](const In& in, Rank wanted) { return in.peer < wanted; });
  return found == ins_.end() || found->peer != peer ? ins_.size() : static_cast<std::size_t>(found - ins_.begin());
}

std::size_t Exchange::outOf(Rank peer) const {
  const auto found = std::find_if(outs_.begin(), outs_.end(), [&](const Out& out) { return out.peer == peer; });
  return static_cast<std::size_t>(found - outs_.begin());
}

// ---- sending

bool Exchange::step(std::vector<bool>&) {
  hasStepped_ = true;
  RunContext& context = this->context();
  bool moved = false;
  for (Out& out : outs_) {
    if (!out.isSent && (isTable(out) ? isTableKnown_ : isGiven_)) {
      moved |= sendTo(out);
    }
  }
  return acknowledge(context) || moved;
}

bool Exchange::sendTo(Out& out) {
  const bool moved = sendParts(out, isTable(out) ? tableBytes_ : out.bytes->size());
  if (out.isSent && !isTable(out)) {
    out.isOpen = false;
    --numOpenOuts_;
  }
  return moved;
}

bool Exchange::acknowledge(RunContext& context) {
  if (hasAcked_ || numOpenIns_ > 0 || numOpenOuts_ > 0) {
    return false;
  }
  hasAcked_ = context.sendControl(parent_, AckFrame{.operation = tag()});
  return hasAcked_;
}

// ---- receiving

Status Exchange::onBlob(Rank from, const Received<BlobFrame>& frame) {
  const std::size_t index = inOf(from);
  SW_RETURN_IF_ERROR(takePart(from, frame, index < ins_.size() ? &ins_[index] : nullptr));
  In& in = ins_[index];
  if (isTable(in) && !std::exchange(isTableKnown_, true)) {
    tableBytes_ = frame.totalBytes;
    context().host.want(*this);  // mostly a child has made its link; a dead child never does
  }
  if (!in.isWhole) {
    return Status::ok();
  }
  --numOpenIns_;
  if (isTable(in)) {
    return readTable(from);
  }
  writeTableIfComplete();
  return Status::ok();
}

void Exchange::writeTableIfComplete() {
  if (!isByTree() || rank_ != 0 || numOpenIns_ > 0 || !isGiven_) {
    return;
  }
  ByteWriter writer;
  if (keepsForItself) {
    answer_ = keepsForItself(blobs_);
    writer.fixed(static_cast<std::uint8_t>(answer_.has_value() ? TableOf::kAnswer : TableOf::kBlobs));
  }
  if (answer_.has_value()) {
    writer.varintText(*answer_);
  }
  for (std::size_t rank = 0; rank < blobs_.size() && !answer_.has_value(); ++rank) {
    writer.varintText(blobs_[rank]);
  }
  table_ = writer.take();
  tableBytes_ = table_.size();
  isTableKnown_ = true;
}

Status Exchange::readTable(Rank from) {
  ByteReader reader(table_);
  const TableOf holds = keepsForItself ? reader.enumerator<TableOf>(2) : TableOf::kBlobs;
  bool hasMine = false;
  if (holds == TableOf::kAnswer) {
    answer_ = reader.varintText();
    hasMine = true;
  }
  for (std::size_t rank = 0; rank < blobs_.size() && holds == TableOf::kBlobs; ++rank) {
    std::string blob = reader.varintText();
    if (static_cast<Rank>(rank) == rank_) {
      hasMine = blob == blobs_[rank];
    } else {
      blobs_[rank] = std::move(blob);
    }
  }
  if (!reader.isDone() || !hasMine) {
    return {StatusCode::kInternal,
            fmt::format("rank {} sent what all ranks gave for {} in a form that cannot be read ({} bytes)", from,
                        description.text(), table_.size())};
  }
  return Status::ok();
}

Status Exchange::onAck(Rank from, const Received<AckFrame>&) {
  const std::size_t index = outOf(from);
  if (index == outs_.size() || !isTable(outs_[index]) || !outs_[index].isSent || !outs_[index].isOpen) {
    return misfit(from, FrameKind::kAck);
  }
  outs_[index].isOpen = false;
  --numOpenOuts_;
  return Status::ok();
}

// ---- giving up

Status Exchange::onCancel(Rank from, const Received<CancelFrame>& frame) {
  RunContext& context = this->context();
  const bool isPassedOn = frame.origin != CancelFrame::kSender;
  if (isPassedOn && frame.origin >= blobs_.size()) {
    return misfit(from, FrameKind::kCancel);
  }
  if (finished()) {
    return Status::ok();
  }
  const Rank origin = isPassedOn ? static_cast<Rank>(frame.origin) : from;
  std::string why(textOf(frame.payload));
  if (isByTree()) {
    // The rank that gave up may not have known the missing ranks. If rank 0 comes only now, rank 0 has not yet read the
    // blobs sent meanwhile.
    if (const std::string absent = missing();
        rank_ == 0 && hasStepped_ && !absent.empty() && why.find(absent) == std::string::npos) {
      why += "; rank 0 knows that " + absent;
    }
    passOn(context, from, origin, why);
  }
  const std::string when =
      hasStepped_ ? fmt::format("while {} waited, too", context.label) : fmt::format("before {} came", context.label);
  context.finish(*this, {StatusCode::kTimeout,
                         fmt::format("{} was given up by rank {} {}: it {}", description.text(), origin, when, why)});
  return Status::ok();
}

void Exchange::passOn(RunContext& context, Rank from, Rank origin, const std::string& why) const {
  std::set<Rank> to;
  if (rank_ == 0) {
    std::for_each(ins_.begin(), ins_.end(), [&](const In& in) { to.insert(in.peer); });
  } else if (from != 0) {  // rank 0 notifies all ranks directly
    std::for_each(outs_.begin(), outs_.end(), [&](const Out& out) { to.insert(out.peer); });
    to.insert(parent_);
  }
  to.erase(from);
  to.erase(origin);
  for (const Rank peer : to) {
    // A peer without a link waits for nothing from this rank. If the lane is full, the peer reads nothing, and learns
    // of the cancel by its own timeout.
    if (context.connections[static_cast<std::size_t>(peer)] != nullptr) {
      const CancelFrame frame{.operation = tag(), .origin = static_cast<std::uint32_t>(origin)};
      (void)context.sendText(peer, frame, why);
    }
  }
}

// ---- waiting

// In a large group rank 0 needs the ranks with missing blobs, then the children. A rank without the table needs rank 0,
// even when the table comes through another rank: only rank 0 knows which ranks are missing, and the rank asks rank 0
// before the exchange expires.
bool Exchange::needs(Rank peer) const {
  const std::size_t in = inOf(peer);
  const std::size_t out = outOf(peer);
  const bool hasOut = out < outs_.size() && outs_[out].isOpen && (!isTable(outs_[out]) || isTableKnown_);
  const bool hasIn = in < ins_.size() && !ins_[in].isWhole;
  return hasIn || hasOut || (isByTree() && rank_ != 0 && peer == 0 && numOpenIns_ > 0);
}

// "rank 2 did not arrive"; empty: no blob is missing, or this rank cannot know.
std::string Exchange::missing() const {
  std::vector<Rank> absent;
  for (const In& in : ins_) {
    if (!in.isWhole && !isTable(in)) {
      absent.push_back(in.peer);
    }
  }
  return absent.empty() ? "" : (isByTree() ? rankRanges(absent) : rankList(absent)) + " did not arrive";
}

std::string Exchange::waitingFor() const {
  if (std::string absent = missing(); !absent.empty()) {
    return absent;
  }
  if (numOpenIns_ > 0) {
    return fmt::format("what rank 0 collects from all ranks did not come{}",
                       parent_ == 0 ? "" : fmt::format(" by way of rank {}", parent_));
  }
  std::vector<Rank> silent;
  for (const Out& out : outs_) {
    if (out.isOpen) {
      silent.push_back(out.peer);
    }
  }
  return isByTree() ? fmt::format("{} did not confirm what all ranks gave", rankList(silent)) : "peers read nothing";
}

}  // namespace shardwire::internal

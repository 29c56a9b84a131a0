// One run of a Plan over given tensors: posts inputs to those who read them, packs what must be staged, copies and reduces what comes in.
// Resumable: step() moves on as far as it can. Pooled by its owner, so that a re-run allocates nothing. Stepped under the engine's lock.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/exec/pins.h"
#include "backend/exec/run.h"
#include "backend/transport/transport.h"
#include "ops/plan/plan.h"
#include "ops/plan/strided_runs.h"
#include "shardwire/tensor_view.h"

namespace shardwire::internal {

class PlanRun final : public Run {
 public:
  // The plan outlives the run through `plan`.
  explicit PlanRun(std::shared_ptr<const Plan> plan);

  void prepare(std::span<const TensorView> inputs, std::span<const TensorView> outputs) override;
  // Same views as last time.
  void prepareAgain();

  bool step(Engine& engine, std::vector<bool>& blockedBulk) override;
  Status onFrame(Engine& engine, Rank from, const FrameHeader& header, std::span<const std::byte> payload) override;
  bool needs(Rank peer) const override;
  Duration worthSpinning() const override { return staging_ == nullptr ? worthSpinning_ : Duration::zero(); }

  const Plan& plan() const { return *plan_; }

  // Tensors stay pinned from run to run (prepareAgain), until this is taken back. Under the engine's lock.
  void keepPins(bool keeps);

 private:
  struct SendState {
    bool started = false;  // paths chosen
    bool silent = false;   // so little that all of it is staged and nothing is posted
    bool anyExposed = false;
    bool anyStaged = false;
    bool acked = false;
    bool done = false;
    std::uint32_t slotsPosted = 0;
    std::vector<Reach> reach;  // by slot
    std::vector<RemoteAddress> address;
    std::uint32_t item = 0;  // first item of the group being packed
    std::uint32_t groupEnd = 0;
    std::uint32_t inGroup = 0;  // next item of the group for the current segment
    SegmentCursor cursor;
    std::span<std::byte> frame;  // reserved, being filled
    std::size_t filled = 0;
  };
  struct RemoteInput {
    Reach reach = Reach::kNone;
    const std::byte* base = nullptr;  // kDirect
    std::uint32_t space = 0;          // kFetch: the owner's exposure
    std::uint64_t address = 0;        // kCopy, kFetch: in the owner's address space
    Dims byteStrides;
  };
  // A segment that is being fetched and needs a hand when it is here: unpacking, into an output whose runs are too short to be fetched
  // into, or a word to the staging.
  struct Landing {
    bool inUse = false;
    bool isPacked = false;
    FetchCount fetches;
    std::vector<std::byte> packed;
    StridedBox dst;
    Dims shape;
    std::size_t elemBytes = 0;
  };
  static constexpr std::size_t kMaxLandings = 4;  // one is unpacked while the others are under way
  struct ReceiveState {
    bool silent = false;  // the peer posts nothing: all of the edge is staged
    bool seen = false;    // some frame of this run came from the peer
    bool anyExposed = false;
    bool hasCombines = false;
    bool done = false;  // everything read, and acknowledged where that is due
    std::uint32_t slotsKnown = 0;
    std::vector<RemoteInput> slots;
    std::uint32_t move = 0;  // next copy of this edge
    SegmentCursor cursor;
    bool cursorOpen = false;
    std::span<const std::byte> frame;  // staged bytes being read
    std::size_t read = 0;
    FetchCount fetches;  // straight into the output
    std::array<Landing, kMaxLandings> landings;
    bool isFetching() const {
      return fetches.pending > 0 || std::any_of(landings.begin(), landings.end(), [](const Landing& each) { return each.inUse; });
    }
  };
  enum class Take : unsigned char { kDone, kNotReady, kFailed };

  // So little on this edge that all of it is staged and nothing is posted.
  static bool isSilent(Engine& engine, const PlanEdge& edge);
  void pinTensors(Engine& engine);
  void choosePaths(Engine& engine, std::size_t edge);
  bool stepSend(Engine& engine, std::size_t edge, std::vector<bool>& blockedBulk);
  Reach chooseReach(Connection& connection, const PlanEdge& edge, std::size_t slot, RemoteAddress* address);
  void conceal(Engine& engine, const PlanEdge& edge, SendState& state);
  bool postSlots(Engine& engine, std::size_t edge);
  bool packSome(Engine& engine, std::size_t edge);
  bool openGroup(SendState& state, const PlanEdge& edge, std::size_t segmentBytes);
  void commitFrame(Engine& engine, const PlanEdge& edge, SendState& state);
  bool stepOwnCopies();
  bool stepReceive(Engine& engine, std::size_t edge);
  bool stepCombines(Engine& engine);
  // Makes the sources of the current segment of `move` readable, from combineReady_ on.
  Take gatherSources(Engine& engine, const PlanMove& move);
  bool fetchCopied(Engine& engine, const PlanMove& move);
  void consumeSources(Engine& engine, const PlanMove& move);
  bool appearsLater(const PlanMove& move, std::uint32_t source) const;
  Reach reachOf(const PlanSource& source);
  bool finishReceives(Engine& engine);
  bool readyToRead(Engine& engine, const PlanEdge& edge, ReceiveState& state);
  // Makes staged bytes of `state` readable; kNotReady when none of this run are here yet.
  Take openFrame(Engine& engine, const PlanEdge& edge, ReceiveState& state);
  void consume(Engine& engine, const PlanEdge& edge, ReceiveState& state, std::size_t bytes);
  // Fills runs_: how `local` is filled from a peer's memory, of which `remote` is the address of the first element.
  void makeRuns(const StridedBox& local, std::size_t localRun, std::uint64_t remote, const Dims& remoteStrides, const Dims& shape,
                std::size_t elemBytes);
  // The longest run that `box` consists of.
  static std::size_t longestRun(const StridedBox& box, const Dims& shape, std::size_t elemBytes);
  // Asks for a box of a peer's memory (kFetch); false when there is no room to ask now.
  bool startFetch(Engine& engine, const PlanEdge& edge, ReceiveState& state, const StridedBox& dst, const RemoteInput& source,
                  const Dims& sourceOffset, const Dims& shape, std::size_t elemBytes);
  bool takeLandings(ReceiveState& state);
  // Reads a box of a peer's memory (kCopy) into `dst`.
  Status readBox(Engine& engine, Connection& connection, const StridedBox& dst, const RemoteInput& source, const Dims& sourceOffset,
                 const Dims& shape, std::size_t elemBytes);
  ReceiveState& receiveFrom(Rank peer) { return receives_[static_cast<std::size_t>(receiveOf_[static_cast<std::size_t>(peer)])]; }
  bool isOpen(Rank peer) const override;
  void announceWrites(Staging& staging) const override;
  // Whether a box of this rank's tensors may be touched now.
  bool isReady(const StridedBox& box, const Dims& shape, std::size_t elemBytes) const {
    return staging_ == nullptr || staging_->isReady(box.bytes, extentBytes(box, shape, elemBytes));
  }
  void wrote(const StridedBox& box, const Dims& shape, std::size_t elemBytes) const {
    if (staging_ != nullptr) {
      staging_->wrote(box.bytes, extentBytes(box, shape, elemBytes), static_cast<std::size_t>(numElements(shape)) * elemBytes);
    }
  }
  bool heardFrom(Rank peer) const override;
  StridedBox outputBox(const PlanMove& move, const Dims& segmentOffset) const;
  std::size_t elemBytesOf(const PlanMove& move) const;
  bool copySegment(Engine& engine, const PlanEdge& edge, ReceiveState& state, const PlanMove& move, const PlanSource& source);

  std::shared_ptr<const Plan> plan_;
  std::vector<TensorView> inputs_;
  std::vector<TensorView> outputs_;
  Duration worthSpinning_{0};
  Pins pins_;
  bool isPinned_ = false;
  bool keepsPins_ = false;
  StoreHint hint_ = StoreHint::kAuto;  // for everything that this plan writes

  std::vector<SendState> sends_;         // by Plan::sends
  std::vector<ReceiveState> receives_;   // by Plan::receives
  std::vector<std::int32_t> receiveOf_;  // by peer: index into receives_, or -1
  std::vector<std::int32_t> sendTo_;     // by peer: index into sends_, or -1
  std::uint32_t ownCopy_ = 0;
  std::uint32_t combine_ = 0;  // next combine, counted from Plan::firstCombine
  SegmentCursor cursor_;       // of the current own copy or combine (own copies come first)
  bool cursorOpen_ = false;
  std::vector<StridedBox> combineSources_;
  std::uint32_t combineReady_ = 0;  // sources of the current segment that are in combineSources_
  std::vector<std::byte> held_;     // staged segments of a peer that has another one for the same combine
  std::size_t heldBytes_ = 0;
  std::vector<MemoryRun> runs_;  // of one readBox
  std::vector<std::byte*> localRuns_;
};

}  // namespace shardwire::internal

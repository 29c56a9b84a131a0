// start() describes the runs to MPI (lay(): plain bytes, a vector type for regular runs, or an indexed type), starts
// the send or the receive, and stores the request with its cookie. poll() tests all requests in one call and reports
// the finished ones. After MPI_Finalize has begun no MPI call is made, and all calls return kAborted or do nothing.
#include "backend/transport/mpi/module/mpi_operations.h"

#include <algorithm>

namespace shardwire::internal {
namespace {

// The memory of a message in MPI's form: `count` elements of `type` from `base`.
struct Layout {
  void* base = nullptr;
  int count = 0;
  MPI_Datatype type = MPI_BYTE;
  bool isOwn = false;  // `type` was made for this message
};

// Joins adjacent runs.
void joinNeighbours(std::span<const MpiRun> runs, std::vector<MpiRun>* joined) {
  joined->clear();
  for (const MpiRun& run : runs) {
    if (!joined->empty() && joined->back().bytes + joined->back().size == run.bytes) {
      joined->back().size += run.size;
    } else {
      joined->push_back(run);
    }
  }
}

bool isRegular(const std::vector<MpiRun>& runs) {
  const auto stride = runs[1].bytes - runs[0].bytes;
  for (std::size_t i = 1; i < runs.size(); ++i) {
    if (runs[i].size != runs[0].size || runs[i].bytes - runs[i - 1].bytes != stride) {
      return false;
    }
  }
  return true;
}

class Operations final : public MpiOperations {
 public:
  explicit Operations(MpiCalls* calls) : calls_(calls) {}

  Status send(MpiPair& pair, int tag, const MpiRun& run, const MpiCookie& cookie) override {
    return start(pair, tag, {&run, 1}, cookie, true);
  }
  Status receive(MpiPair& pair, int tag, std::span<const MpiRun> runs, const MpiCookie& cookie) override {
    return start(pair, tag, runs, cookie, false);
  }

  Status poll(std::vector<MpiDone>* done) override {
    if (requests_.empty()) {
      return calls_->isClosed() ? finalised() : Status::ok();
    }
    const MpiCall call(calls_);
    if (!call.mayRun()) {
      return finalised();
    }
    int count = 0;
    const int code =
        MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count, indices_.data(), statuses_.data());
    if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) {
      return mpiStatus("MPI_Testsome", code);
    }
    if (count <= 0) {  // MPI_UNDEFINED is negative
      return Status::ok();
    }
    for (int i = 0; i < count; ++i) {
      const auto at = static_cast<std::size_t>(indices_[static_cast<std::size_t>(i)]);
      done->push_back(ended(slots_[at], statuses_[static_cast<std::size_t>(i)], code == MPI_ERR_IN_STATUS));
    }
    // From the back, so that only unfinished operations are moved forward.
    std::sort(indices_.begin(), indices_.begin() + count);
    for (int i = count - 1; i >= 0; --i) {
      remove(static_cast<std::size_t>(indices_[static_cast<std::size_t>(i)]));
    }
    return Status::ok();
  }

  void cancelReceives(const void* owner, std::uint16_t kind) override {
    const MpiCall call(calls_);
    for (std::size_t i = 0; i < slots_.size() && call.mayRun(); ++i) {
      if (slots_[i].isReceive && slots_[i].cookie.owner == owner && slots_[i].cookie.kind == kind) {
        MPI_Cancel(&requests_[i]);
      }
    }
  }

  void forget(const void* owner) override {
    for (Slot& slot : slots_) {
      if (slot.cookie.owner == owner) {
        slot.cookie.owner = nullptr;
      }
    }
  }

 private:
  struct Slot {
    MpiCookie cookie;
    bool isReceive;
    std::size_t bytes;
  };

  static Status finalised() { return {StatusCode::kAborted, "MPI was finalised while a group still used it"}; }

  Status start(MpiPair& pair, int tag, std::span<const MpiRun> runs, const MpiCookie& cookie, bool isSend) {
    const MpiCall call(calls_);
    if (!call.mayRun()) {
      return finalised();
    }
    const auto& to = static_cast<const CommunicatorPair&>(pair);
    Layout layout;
    SW_RETURN_IF_ERROR(lay(runs, &layout));
    MPI_Request request = MPI_REQUEST_NULL;
    const int code = isSend
                         ? MPI_Isend(layout.base, layout.count, layout.type, to.peer, tag, to.communicator, &request)
                         : MPI_Irecv(layout.base, layout.count, layout.type, to.peer, tag, to.communicator, &request);
    if (layout.isOwn) {
      MPI_Type_free(&layout.type);  // MPI keeps the type until the message is done
    }
    SW_RETURN_IF_ERROR(mpiStatus(isSend ? "MPI_Isend" : "MPI_Irecv", code));
    requests_.push_back(request);
    std::size_t bytes = 0;
    std::for_each(runs.begin(), runs.end(), [&](const MpiRun& run) { bytes += run.size; });
    slots_.push_back({cookie, !isSend, bytes});
    indices_.resize(requests_.size());
    statuses_.resize(requests_.size());
    return Status::ok();
  }

  Status lay(std::span<const MpiRun> runs, Layout* layout) {
    if (runs.size() == 1) {
      *layout = {runs[0].bytes, static_cast<int>(runs[0].size)};
      return Status::ok();
    }
    joinNeighbours(runs, &joined_);
    layout->base = joined_[0].bytes;
    if (joined_.size() == 1) {
      layout->count = static_cast<int>(joined_[0].size);
      return Status::ok();
    }
    layout->count = 1;
    layout->isOwn = true;
    const int count = static_cast<int>(joined_.size());
    int code = MPI_SUCCESS;
    if (isRegular(joined_)) {
      code = MPI_Type_create_hvector(count, static_cast<int>(joined_[0].size), joined_[1].bytes - joined_[0].bytes,
                                     MPI_BYTE, &layout->type);
    } else {
      lengths_.clear();
      places_.clear();
      for (const MpiRun& run : joined_) {
        lengths_.push_back(static_cast<int>(run.size));
        places_.push_back(run.bytes - joined_[0].bytes);
      }
      code = MPI_Type_create_hindexed(count, lengths_.data(), places_.data(), MPI_BYTE, &layout->type);
    }
    SW_RETURN_IF_ERROR(mpiStatus("making an MPI datatype", code));
    return mpiStatus("MPI_Type_commit", MPI_Type_commit(&layout->type));
  }

  static MpiDone ended(const Slot& slot, const MPI_Status& status, bool hasErrors) {
    MpiDone done{slot.cookie, slot.bytes, false, {}};
    if (hasErrors && status.MPI_ERROR != MPI_SUCCESS) {
      done.error = mpiErrorText(status.MPI_ERROR);
      return done;
    }
    if (slot.isReceive) {
      int flag = 0;
      MPI_Test_cancelled(&status, &flag);
      done.isCancelled = flag != 0;
      int bytes = 0;
      MPI_Get_count(&status, MPI_BYTE, &bytes);
      done.bytes = static_cast<std::size_t>(std::max(bytes, 0));
    }
    return done;
  }

  void remove(std::size_t at) {
    requests_[at] = requests_.back();
    slots_[at] = slots_.back();
    requests_.pop_back();
    slots_.pop_back();
  }

  MpiCalls* const calls_;
  // All equally long. requests_ is separate, because MPI takes an array of requests.
  std::vector<MPI_Request> requests_;
  std::vector<Slot> slots_;
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
  // Scratch, kept to reuse the memory.
  std::vector<MpiRun> joined_;
  std::vector<int> lengths_;
  std::vector<MPI_Aint> places_;
};

}  // namespace

std::unique_ptr<MpiOperations> makeOperations(MpiCalls* calls) {
  return std::make_unique<Operations>(calls);
}

}  // namespace shardwire::internal

// A compiled movement of data between the ranks of a group, which can be run any number of times. All methods may be
// called from any thread; the ranks of a group must issue their operations in the same order.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shardwire/export.h"
#include "shardwire/op_spec.h"
#include "shardwire/staging.h"
#include "shardwire/tensor_view.h"
#include "shardwire/work.h"

namespace shardwire {

struct OpStats {
  // Cast elements are counted at their staged size: the narrower type.
  std::uint64_t bytesSent = 0;      // to other ranks, by one run of this rank
  std::uint64_t bytesReceived = 0;  // from other ranks, by one run
  std::uint64_t bytesLocal = 0;     // copied from own inputs to own outputs
  std::uint64_t bytesReduced = 0;   // output bytes combined from two or more inputs
  std::uint64_t numMoves = 0;
  std::uint64_t planBytes = 0;     // memory the plan takes here
  std::uint64_t scratchBytes = 0;  // most staging memory of a run on this rank, all peers together
  std::uint64_t numRuns = 0;       // so far
  double compileSeconds = 0;       // exchange, check and plan
  double lastRunSeconds = 0;       // 0 before the first run ended
};

// The origin of an op's plan, and the file of the plan on disk (LocalSpec::buildDir).
struct PlanProvenance {
  enum class From : std::uint8_t { kPlanned = 0, kReceived = 1, kMemory = 2, kDisk = 3 };  // here, by rank 0, or before
  From from = From::kPlanned;
  std::string path;       // of this rank's file; empty without a buildDir
  std::string whyNoFile;  // not empty: the file could not be written, so the next process plans again
};

class SHARDWIRE_EXPORT BoundOp {
 public:
  virtual ~BoundOp() = default;
  // Starts one run over the tensors given to bind. Allocates nothing in steady state.
  virtual Result<WorkPtr> run() = 0;
};

class SHARDWIRE_EXPORT CompiledOp {
 public:
  virtual ~CompiledOp() = default;

  // Whether run() would accept these views. The views' bytes are not read, so the addresses may be a device's.
  virtual Status check(std::span<const TensorView> inputs, std::span<const TensorView> outputs) const = 0;
  // Starts one run. The views are checked against the spec (count, shape, dtype, strides, aliasing) before any byte
  // moves; a wrong call changes nothing. When the Work is done, outputs are valid and inputs may be reused. `keepAlive`
  // is held until then. `staging` (of views that are host copies) must live as long as `keepAlive`.
  virtual Result<WorkPtr> run(std::span<const TensorView> inputs, std::span<const TensorView> outputs,
                              std::shared_ptr<void> keepAlive = nullptr, std::optional<Duration> timeout = std::nullopt,
                              Staging* staging = nullptr) = 0;
  // Checks once and remembers the views.
  virtual Result<std::unique_ptr<BoundOp>> bind(std::span<const TensorView> inputs, std::span<const TensorView> outputs,
                                                std::shared_ptr<void> keepAlive = nullptr,
                                                std::optional<Duration> timeout = std::nullopt) = 0;

  virtual OpStats stats() const = 0;
  // A table for people: which rank sends how many bytes to which rank, contiguous runs, data path, and the lower bound
  // on bytes.
  virtual std::string explain() const = 0;
  // The same facts for programs: JSON with keys name, rank, world_size, tensors, edges[{src,dst,bytes,pieces}],
  // lower_bound_bytes. All edges of the group, not only this rank's; but where another rank planned (WhoPlans::kRank0)
  // this rank's, and lower_bound_bytes is null.
  virtual std::string explainJson() const = 0;
  // This rank's plan, with the rank's lists and the agreement of all ranks, as bytes for readPlan(). Equal for equal
  // specs of all ranks and the same hosts, on whichever rank the plan was made.
  virtual std::string planBytes() const = 0;
  virtual const PlanProvenance& planProvenance() const = 0;
  // The required form of each local tensor given to run().
  virtual const std::vector<LocalTensor>& inputs() const = 0;
  virtual const std::vector<LocalTensor>& outputs() const = 0;
  virtual const std::vector<TensorDecl>& tensors() const = 0;
};

}  // namespace shardwire

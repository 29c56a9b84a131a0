// all_reduce of sparse COO tensors. First all ranks gather shape, dtype, reduction and number of entries of each rank
// and check that the ranks agree. Then the ranks exchange indices and values. At the end each rank adds up the entries
// of equal index, in float32 where the elements are narrower, as the reductions of dense tensors do.
#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <mutex>

#include "backend/c10d/issue.h"

namespace shardwire {

namespace {

// The values on which the ranks must agree, followed by the number of this rank's entries.
enum MetadataField : std::int64_t {
  kDType,
  kReduction,
  kSparseDims,
  kDenseDims,
  kSizes,
  kNumEntries = kSizes + kMaxDims,
  kNumFields
};

at::Tensor metadataOf(const at::Tensor& tensor, const ::c10d::ReduceOp& op) {
  at::Tensor metadata = at::zeros({kNumFields}, at::kLong);
  auto* fields = metadata.data_ptr<std::int64_t>();
  fields[kDType] = static_cast<std::int64_t>(tensor.scalar_type());
  fields[kReduction] = static_cast<std::int64_t>(op.op_);
  fields[kSparseDims] = tensor.sparse_dim();
  fields[kDenseDims] = tensor.dense_dim();
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    fields[kSizes + i] = tensor.size(i);
  }
  fields[kNumEntries] = tensor._nnz();
  return metadata;
}

// One entry for each index: the sum of the values at this index, divided by `divisor` and rounded once. Integers round
// towards zero; so does an average of bools, which is true only where all are.
at::Tensor summed(const at::Tensor& indices, const at::Tensor& values, c10::IntArrayRef sizes, std::int64_t divisor) {
  const c10::ScalarType type = values.scalar_type();
  const bool isNarrow = at::isFloatingType(type) && values.element_size() < 4;
  const bool isCounted = type == at::kBool && divisor != 1;
  const c10::ScalarType wide = isNarrow ? at::kFloat : isCounted ? at::kLong : type;
  const at::Tensor sum = at::sparse_coo_tensor(indices, values.to(wide), sizes).coalesce();
  at::Tensor entries = sum._values();
  if (divisor != 1) {
    entries = at::isIntegralType(wide, false) ? at::div(entries, divisor, "trunc") : entries / divisor;
  }
  return at::_sparse_coo_tensor_unsafe(sum._indices(), entries.to(type), sizes)._coalesced_(true);
}

std::string describeFields(const std::int64_t* fields) {
  const std::int64_t dims = std::min<std::int64_t>(fields[kSparseDims] + fields[kDenseDims], kMaxDims);
  return fmt::format("{} of shape [{}], {} of its dimensions sparse, reduction {}",
                     c10::toString(static_cast<c10::ScalarType>(fields[kDType])),
                     fmt::join(fields + kSizes, fields + kSizes + dims, ", "), fields[kSparseDims], fields[kReduction]);
}

// An operation, followed by a computation on its outputs. The computation runs once, before any caller sees the work
// done.
class ComputedWork final : public Work, public std::enable_shared_from_this<ComputedWork> {
 public:
  ComputedWork(WorkPtr moved, std::function<void()> compute) : moved_(std::move(moved)), compute_(std::move(compute)) {}
  // Called once, after make_shared: the computation then runs even without a waiting caller.
  void start() {
    moved_->onDone([self = shared_from_this()](const Status&) { self->finish(); });
  }

  bool isDone() const override { return done_.load(std::memory_order_acquire); }
  Status wait(Deadline deadline) override {
    Status status = moved_->wait(deadline);
    if (endedEarly(status, *moved_)) {
      return status;
    }
    finish();
    return status_;
  }
  Status status() const override { return isDone() ? status_ : Status::ok(); }
  void onDone(std::function<void(const Status&)> callback) override {
    moved_->onDone([self = shared_from_this(), callback = std::move(callback)](const Status&) {
      self->finish();
      callback(self->status_);
    });
  }

 private:
  void finish() {
    std::call_once(once_, [this] {
      status_ = moved_->status();
      if (status_.isOk()) {
        try {
          compute_();
        } catch (const std::exception& error) {
          status_ = Status(StatusCode::kInternal, fmt::format("all_reduce of a sparse tensor: {}", error.what()));
        }
      }
      compute_ = nullptr;
      done_.store(true, std::memory_order_release);
    });
  }

  const WorkPtr moved_;
  std::function<void()> compute_;  // run inside once_
  std::once_flag once_;
  Status status_;                   // written inside once_
  std::atomic<bool> done_ = false;  // release after status_; isDone() acquires
};

}  // namespace

TorchWork ProcessGroupShardwire::allreduce_sparse(Tensors& tensors, const ::c10d::AllreduceOptions& options) {
  Call call{::c10d::OpType::ALLREDUCE, "all_reduce", "sparse_all_reduce"};
  call.began = Clock::now();
  at::Tensor& tensor = onlyTensor(tensors, call.name);
  const bool average = options.reduceOp.op_ == ::c10d::ReduceOp::AVG;
  if (!tensor.is_sparse() || !tensor.device().is_cpu() || tensor.dim() > kMaxDims) {
    refuseCall(StatusCode::kUnsupported,
               "all_reduce: a sparse tensor must be in COO layout, on the CPU and of at most {} dimensions", kMaxDims);
  }
  if (!average && options.reduceOp.op_ != ::c10d::ReduceOp::SUM) {
    refuseCall(StatusCode::kUnsupported,
               "all_reduce: sparse tensors can be summed and averaged only; call to_dense() first");
  }
  const c10::AutoGradMode noGradients(false);
  const at::Tensor own =
      tensor.is_coalesced() ? tensor : summed(tensor._indices(), tensor._values(), tensor.sizes(), 1);
  // The number of entries is known only after a first exchange, for which this call waits. So ranks in two groups must
  // make the calls of both groups in the same order.
  at::Tensor metadata = at::zeros({getSize(), kNumFields}, at::kLong);
  at::Tensor ownMetadata = metadataOf(own, options.reduceOp);
  ::c10d::AllgatherOptions gatherOptions;
  gatherOptions.timeout = options.timeout;
  waitInside(*_allgather_base(metadata, ownMetadata, gatherOptions), "all_reduce of a sparse tensor");
  const auto* first = metadata.data_ptr<std::int64_t>();
  Tensors indices;
  Tensors values;
  for (int rank = 0; rank < getSize(); ++rank) {
    const auto* fields = first + rank * kNumFields;
    if (!std::equal(first, first + kNumEntries, fields)) {
      refuseCall(StatusCode::kMismatch, "all_reduce of sparse tensors: rank 0 gave {}, but rank {} {}",
                 describeFields(first), rank, describeFields(fields));
    }
    indices.push_back(at::empty({own.sparse_dim(), fields[kNumEntries]}, at::kLong));
    auto shape = own._values().sizes().vec();
    shape[0] = fields[kNumEntries];
    values.push_back(at::empty(shape, own._values().options()));
  }
  const auto copies = [&](const at::Tensor& each) { return Tensors(sizeAsCount(), each.contiguous()); };
  const Tensors ownIndices = copies(own._indices());
  const Tensors ownValues = copies(own._values());
  internal::OperationTensors kept{{tensor}, {tensor}};
  for (const Tensors* list : std::initializer_list<const Tensors*>{&indices, &values, &ownIndices, &ownValues}) {
    kept.inputs.append(list->begin(), list->end());
  }
  const auto views = [](const Tensors& list) { return viewsOf(list, "all_reduce: sparse tensor"); };
  const auto compute = [tensor, indices, values, average, size = getSize()] {
    const c10::AutoGradMode without(false);
    internal::copyInto(tensor, summed(at::cat(indices, 1), at::cat(values, 0), tensor.sizes(), average ? size : 1));
  };
  internal::HostTensors none(stager_);
  return start(call, std::move(kept), none, options.timeout,
               [&](Communicator& communicator, CallOptions callOptions) -> Result<WorkPtr> {
                 Result<WorkPtr> moved = internal::issueEach(2, [&](std::size_t i) {
                   return i == 0 ? communicator.allToAll(views(indices), views(ownIndices), callOptions)
                                 : communicator.allToAll(views(values), views(ownValues), callOptions);
                 });
                 if (!moved.isOk()) {
                   return moved;
                 }
                 auto work = std::make_shared<ComputedWork>(std::move(moved).value(), compute);
                 work->start();
                 return WorkPtr(std::move(work));
               });
}

}  // namespace shardwire

// all_to_all_vdev: a tensor of counts, also in symmetric memory, says where rows go, so ranks need no messages: each
// rank reads its peers' counts, and then their rows. In the forms with experts a rank has several chunks for each other
// rank, and the order of chunks changes from ranks of experts to experts of ranks, or back.
#include "backend/c10d/torch_symm_ops.h"

#if SW_TORCH_HAS_SYMMETRIC_MEMORY

#include <algorithm>
#include <vector>

#include "backend/c10d/throw_status.h"
#include "backend/c10d/torch_symm_meeting.h"
#include "ops/boxes/copy_box.h"
// After shardwire/torch_backend.h.
#include <torch/library.h>

namespace shardwire::internal {
namespace {

// One chunk of rows that this rank fetches.
struct RowChunk {
  Rank source;
  std::int64_t place;     // position of the count, and of the offset, in the source's table
  std::int64_t rows = 0;  // read from the table
  std::int64_t from = 0;  // first row in the source's input
};

// How many chunks a rank has for each other rank, and in which order the chunks lie.
struct RowOrder {
  const char* name;
  std::int64_t chunksPerPeer = 1;
  bool rankMajorIn = true;  // the chunks for one rank lie together in the input; otherwise the chunks of one expert
  bool hasOffsets = false;  // the second row of the counts' tensor says where chunks begin
  std::int64_t align = 0;   // of each group of chunks that lie together in the output; 0: none
};

class RowExchange {
 public:
  RowExchange(const RowOrder& kind, const at::Tensor& input, const at::Tensor& out, const at::Tensor& counts,
              const at::Tensor& outCounts, const std::string& group)
      : kind_(kind),
        input_(input),
        out_(out),
        outCounts_(outCounts),
        counts_(handleFor(counts, group, kind.name)),
        meeting_(handleFor(input, group, kind.name), kind.name) {
    meeting_.check([&] { check(counts); });
    meeting_.add("input", from_);
    meeting_.add("row bytes", rowBytes_);
    meeting_.add("chunks for each rank", kind_.chunksPerPeer);
    meeting_.add("align", kind_.align);
    meeting_.add("splits at byte", countsAt_.byteOffset);
  }

  void run() {
    meeting_.meet();
    std::vector<RowChunk> chunks = chunksInOrder();
    std::vector<std::int64_t> begins(chunks.size());
    meeting_.check([&] {
      readCounts(&chunks);
      begins = placesFor(chunks);
    });
    meeting_.meetAgain();  // wrong counts on one rank give the same error on all ranks
    auto* const rowsAndBegins = static_cast<std::int64_t*>(outCounts_.data_ptr());
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      copyRows(chunks[i], begins[i]);
      rowsAndBegins[i] = chunks[i].rows;
      rowsAndBegins[chunks.size() + i] = begins[i];
    }
    meeting_.leave();
  }

 private:
  std::int64_t numChunks() const { return kind_.chunksPerPeer * meeting_.worldSize(); }

  void check(const at::Tensor& counts) {
    // The ranks may have different numbers of rows: only type and size of a row must be equal.
    from_ = operandOf(meeting_.memory(), input_, "input");
    countsAt_ = operandOf(*counts_, counts, "splits");
    const TensorView to = viewOf(out_, "out");
    requireContiguous(input_, "input");
    requireContiguous(out_, "out");
    requireContiguous(counts, "splits");
    requireContiguous(outCounts_, "out_splits_offsets");
    if (input_.dim() < 1 || out_.dim() != input_.dim() || to.dtype != from_.view.dtype ||
        out_.sizes().slice(1) != input_.sizes().slice(1)) {
      refuseCall(StatusCode::kInvalidArgument, "out is {}{}, and input {}{}: their rows must be alike",
                 dtypeName(to.dtype), toString(to.shape), dtypeName(from_.view.dtype), toString(from_.view.shape));
    }
    if (counts.scalar_type() != c10::ScalarType::Long || outCounts_.scalar_type() != c10::ScalarType::Long ||
        !outCounts_.device().is_cpu()) {
      refuseCall(StatusCode::kInvalidArgument, "splits and offsets must be int64 tensors on the CPU");
    }
    const std::int64_t wanted = numChunks() * (kind_.hasOffsets ? 2 : 1);
    if (counts.numel() != wanted || counts.numel() == 0 || outCounts_.dim() != 2 || outCounts_.size(0) != 2 ||
        outCounts_.size(1) != numChunks()) {
      refuseCall(
          StatusCode::kInvalidArgument,
          "splits have {} numbers and out_splits_offsets {}: {} and 2 rows of {} are needed for {} ranks with {} "
          "chunks each",
          counts.numel(), outCounts_.numel(), wanted, numChunks(), meeting_.worldSize(), kind_.chunksPerPeer);
    }
    requireStorage(outCounts_, "out_splits_offsets");
    if (kind_.align < 0) {
      refuseCall(StatusCode::kInvalidArgument, "major_align is {}; it must be positive", kind_.align);
    }
    requireApart(to, from_, "out");
    rowBytes_ = static_cast<std::int64_t>(input_.element_size());
    for (std::int64_t dim = 1; dim < input_.dim(); ++dim) {
      rowBytes_ *= input_.size(dim);
    }
    from_.view.shape = {};  // excluded from the agreement
    from_.view.strides = {};
    from_.view.dtype = to.dtype;
  }

  // The chunks in the order of the output, with the position of each chunk's count in the source's table.
  std::vector<RowChunk> chunksInOrder() const {
    std::vector<RowChunk> chunks;
    const std::int64_t self = meeting_.rank();
    const std::int64_t world = meeting_.worldSize();
    const std::int64_t each = kind_.chunksPerPeer;
    const auto add = [&](std::int64_t source, std::int64_t expert) {
      chunks.push_back({static_cast<Rank>(source), kind_.rankMajorIn ? self * each + expert : expert * world + self});
    };
    for (std::int64_t major = 0; major < (kind_.rankMajorIn ? each : world); ++major) {
      for (std::int64_t minor = 0; minor < (kind_.rankMajorIn ? world : each); ++minor) {
        kind_.rankMajorIn ? add(minor, major) : add(major, minor);
      }
    }
    return chunks;
  }

  void readCounts(std::vector<RowChunk>* chunks) const {
    for (RowChunk& chunk : *chunks) {
      const auto* const counts = reinterpret_cast<const std::int64_t*>(countsAt_.bytes(chunk.source));
      for (std::int64_t before = 0; before < chunk.place && !kind_.hasOffsets; ++before) {
        chunk.from += counts[before];
      }
      chunk.rows = counts[chunk.place];
      if (kind_.hasOffsets) {
        chunk.from = counts[numChunks() + chunk.place];
      }
      const auto most = static_cast<std::int64_t>(meeting_.memory().get_buffer_size()) - from_.byteOffset;
      if (chunk.rows < 0 || chunk.from < 0 ||
          (rowBytes_ > 0 && (chunk.from > most / rowBytes_ || chunk.rows > most / rowBytes_ - chunk.from))) {
        refuseCall(StatusCode::kInvalidArgument,
                   "the splits of rank {} say that {} rows from row {} on go to rank {}; the input on the source "
                   "rank is shorter",
                   chunk.source, chunk.rows, chunk.from, meeting_.rank());
      }
    }
  }

  std::vector<std::int64_t> placesFor(const std::vector<RowChunk>& chunks) const {
    const auto minor = static_cast<std::size_t>(kind_.rankMajorIn ? meeting_.worldSize() : kind_.chunksPerPeer);
    std::vector<std::int64_t> begins;
    std::int64_t next = 0;
    std::int64_t end = 0;
    for (std::size_t first = 0; first < chunks.size(); first += minor) {
      const std::int64_t begin = next;
      for (std::size_t i = first; i < first + minor; ++i) {
        begins.push_back(next);
        next += chunks[i].rows;
        end = chunks[i].rows > 0 ? next : end;
      }
      if (kind_.align > 0) {  // torch reserves one step for an empty group
        const std::int64_t steps = std::max<std::int64_t>(1, (next - begin + kind_.align - 1) / kind_.align);
        next = begin + steps * kind_.align;
      }
    }
    if (end > out_.size(0)) {
      refuseCall(StatusCode::kInvalidArgument, "out has {} rows on rank {}, and {} are needed", out_.size(0),
                 meeting_.rank(), end);
    }
    return begins;
  }

  void copyRows(const RowChunk& chunk, std::int64_t begin) const {
    if (chunk.rows > 0 && rowBytes_ > 0) {
      copyBox({static_cast<std::byte*>(out_.data_ptr()) + begin * rowBytes_, {1}},
              {from_.bytes(chunk.source) + chunk.from * rowBytes_, {1}}, {chunk.rows * rowBytes_}, 1);
    }
  }

  const RowOrder kind_;
  const at::Tensor input_;
  const at::Tensor out_;
  const at::Tensor outCounts_;
  const SymmetricHandle counts_;
  Meeting meeting_;
  SymmetricOperand from_;
  SymmetricOperand countsAt_;
  std::int64_t rowBytes_ = 0;
};

std::int64_t chunksPerPeer(const at::Tensor& counts, bool hasOffsets, const std::string& group) {
  const std::int64_t world = groupNamed(group, "all_to_all_vdev")->getSize();
  return std::max<std::int64_t>(1, counts.numel() / (hasOffsets ? 2 : 1) / world);
}

// The dispatcher takes one C++ signature for an op. CUDA builds of torch have kernels for these three ops, with inputs
// that are not const.
void allToAllVdev(at::Tensor& input, at::Tensor& out, at::Tensor& inSplits, at::Tensor& outSplitsOffsets,
                  std::string group) {
  RowExchange({.name = "all_to_all_vdev"}, input, out, inSplits, outSplitsOffsets, group).run();
}

void allToAllVdev2d(at::Tensor& input, at::Tensor& out, at::Tensor& inSplits, at::Tensor& outSplitsOffsets,
                    std::string group, std::optional<std::int64_t> majorAlign) {
  const std::int64_t align = majorAlign.value_or(1);
  RowExchange({.name = "all_to_all_vdev_2d",
               .chunksPerPeer = chunksPerPeer(inSplits, false, group),
               .align = align > 0 ? align : -1},
              input, out, inSplits, outSplitsOffsets, group)
      .run();
}

void allToAllVdev2dOffset(at::Tensor& input, at::Tensor& out, at::Tensor& inSplitsOffsets, at::Tensor& outSplitsOffsets,
                          std::string group) {
  RowExchange({.name = "all_to_all_vdev_2d_offset",
               .chunksPerPeer = chunksPerPeer(inSplitsOffsets, true, group),
               .rankMajorIn = false,
               .hasOffsets = true},
              input, out, inSplitsOffsets, outSplitsOffsets, group)
      .run();
}

}  // namespace

void implementSymmAllToAll(torch::Library& library) {
  library.impl("all_to_all_vdev", &KernelForPython<&allToAllVdev>::call);
  library.impl("all_to_all_vdev_2d", &KernelForPython<&allToAllVdev2d>::call);
  library.impl("all_to_all_vdev_2d_offset", &KernelForPython<&allToAllVdev2dOffset>::call);
}

}  // namespace shardwire::internal

#endif  // SW_TORCH_HAS_SYMMETRIC_MEMORY

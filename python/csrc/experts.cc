// Dispatch and combine of shardwire.distributed.experts: the loops over rows. Python has checked dtypes and shapes; all
// tensors are contiguous and on the CPU, and a table is an int64 tensor of ExpertChunks, one row of three numbers each.
#include "backend/c10d/tensor_adapter.h"
#include "ops/boxes/expert_rows.h"
#include "python/csrc/bindings.h"

namespace shardwire::python {
namespace {

using internal::ExpertChunk;
using TensorList = std::vector<at::Tensor>;

static_assert(sizeof(ExpertChunk) == 3 * sizeof(std::int64_t));

template <typename T>
std::span<T> elementsOf(const at::Tensor& tensor) {
  return {static_cast<T*>(tensor.data_ptr()), static_cast<std::size_t>(tensor.numel())};
}

std::span<const ExpertChunk> chunksIn(const at::Tensor& table) {
  return {static_cast<const ExpertChunk*>(table.data_ptr()), static_cast<std::size_t>(table.size(0))};
}

std::byte* dataOf(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.data_ptr());
}

std::size_t bytesOfRow(const at::Tensor& rows) {
  return static_cast<std::size_t>(rows.size(1)) * rows.element_size();
}

std::int64_t sortChoices(const at::Tensor& ids, const at::Tensor& counts, const at::Tensor& order,
                         const at::Tensor& places) {
  return internal::sortByExpert(elementsOf<const std::int64_t>(ids), elementsOf<std::int64_t>(counts),
                                elementsOf<std::int32_t>(order), elementsOf<std::int32_t>(places));
}

// The table, and the number of rows.
std::pair<at::Tensor, std::int64_t> chunkTable(const at::Tensor& counts, std::int64_t begin, std::int64_t end) {
  const auto chunks = internal::chunksOf(static_cast<const std::int64_t*>(counts.data_ptr()), counts.stride(0),
                                         counts.size(0), begin, end);
  const auto numChunks = static_cast<std::int64_t>(chunks.size());
  at::Tensor result = at::empty({numChunks, 3}, c10::kLong);
  std::copy(chunks.begin(), chunks.end(), static_cast<ExpertChunk*>(result.data_ptr()));
  return {result, chunks.empty() ? 0 : chunks.back().at + chunks.back().rows};
}

// orders: empty where the rows lie in the order already.
void gatherChunks(const at::Tensor& out, const TensorList& sources, const TensorList& orders, const at::Tensor& chunks,
                  std::int64_t topK) {
  std::vector<internal::RowSource> from(sources.size());
  for (std::size_t i = 0; i < from.size(); ++i) {
    from[i] = {dataOf(sources[i]), orders.empty() ? nullptr : elementsOf<const std::int32_t>(orders[i]).data()};
  }
  const GilRelease release;
  internal::gatherRows(dataOf(out), bytesOfRow(out), from, chunksIn(chunks), topK);
}

void returnChunks(const std::vector<std::optional<at::Tensor>>& targets, const at::Tensor& rows,
                  const at::Tensor& chunks) {
  std::vector<std::byte*> to;
  for (const auto& target : targets) {
    to.push_back(target.has_value() ? dataOf(*target) : nullptr);
  }
  const GilRelease release;
  internal::returnRows(to, dataOf(rows), bytesOfRow(rows), chunksIn(chunks));
}

// ownChunks, of ownRows: empty where all rows lie in `rows`.
void sumChoices(const at::Tensor& out, const at::Tensor& rows, const at::Tensor& ownRows, const at::Tensor& ownChunks,
                const at::Tensor& places, const std::optional<at::Tensor>& weights, std::int64_t topK) {
  const internal::ReturnedRows returned{dataOf(rows), dataOf(ownRows), chunksIn(ownChunks), bytesOfRow(out)};
  const float* const factors = weights.has_value() ? elementsOf<const float>(*weights).data() : nullptr;
  const GilRelease release;
  internal::sumRows(dataOf(out), returned, elementsOf<const std::int32_t>(places), factors, topK,
                    internal::dtypeOf(out.scalar_type()));
}

}  // namespace

void bindExperts(py::module_& module) {
  module.def("experts_sort", &sortChoices, py::arg("ids"), py::arg("counts"), py::arg("order"), py::arg("places"),
             "Lists the choices by expert; the number of the first invalid id, or -1.");
  module.def("experts_table", &chunkTable, py::arg("counts"), py::arg("begin"), py::arg("end"),
             "The chunks for the experts from begin to end, and the number of their rows.");
  module.def("experts_gather", &gatherChunks, py::arg("out"), py::arg("sources"), py::arg("orders"), py::arg("table"),
             py::arg("top_k"));
  module.def("experts_return", &returnChunks, py::arg("targets"), py::arg("rows"), py::arg("table"));
  module.def("experts_sum", &sumChoices, py::arg("out"), py::arg("rows"), py::arg("own_rows"), py::arg("own_chunks"),
             py::arg("places"), py::arg("weights"), py::arg("top_k"));
}

}  // namespace shardwire::python

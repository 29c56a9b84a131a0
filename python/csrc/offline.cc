// Plans of operations without a group: all ranks' specs in, counts out.
#include <ATen/ATen.h>

#include <tuple>

#include "backend/c10d/throw_status.h"
#include "ops/plan/survey.h"
#include "python/csrc/bindings.h"

namespace shardwire::python {
namespace {

using internal::GlobalSpec;
using internal::RankSurvey;
using internal::Survey;

at::Tensor tableOf(std::size_t rows, std::int64_t columns) {
  return at::empty({static_cast<std::int64_t>(rows), columns}, at::kLong);
}

at::Tensor edgesOf(const Survey& survey) {
  at::Tensor table = tableOf(survey.edges.size(), 4);
  std::int64_t* at = table.data_ptr<std::int64_t>();
  for (const internal::Traffic::Edge& edge : survey.edges) {
    *at++ = edge.source;
    *at++ = edge.destination;
    *at++ = static_cast<std::int64_t>(edge.bytes);
    *at++ = static_cast<std::int64_t>(edge.pieces);
  }
  return table;
}

// In the order of `kColumns`.
constexpr std::array kColumns = {"bytes_sent", "bytes_received", "bytes_local",  "bytes_combined", "least_received",
                                 "num_moves",  "num_sends",      "num_receives", "plan_bytes",     "encoded_bytes"};

at::Tensor ranksOf(const Survey& survey) {
  at::Tensor table = tableOf(survey.ranks.size(), static_cast<std::int64_t>(kColumns.size()));
  std::int64_t* at = table.data_ptr<std::int64_t>();
  for (const RankSurvey& rank : survey.ranks) {
    for (const std::uint64_t value :
         {rank.bytesSent, rank.bytesReceived, rank.bytesLocal, rank.bytesCombined, rank.leastReceived, rank.numMoves,
          rank.numSendEdges, rank.numReceiveEdges, rank.planBytes, rank.encodedBytes}) {
      *at++ = static_cast<std::int64_t>(value);
    }
  }
  return table;
}

py::dict survey(std::vector<RankLists> ranks, bool allowGaps, const std::string& overlap, const std::string& name,
                const std::vector<std::int32_t>& hosts) {
  Result<Survey> counted = Status(StatusCode::kInternal, "not made");
  std::vector<std::tuple<std::string, Dims, std::uint64_t>> tensors;
  {
    const GilRelease release;
    Result<GlobalSpec> spec = internal::mergeSpecs(specsOf(ranks, allowGaps, overlap, name));
    ranks.clear();
    internal::throwUnlessOk(spec.status());
    for (const internal::GlobalTensor& tensor : spec->tensors) {
      tensors.emplace_back(tensor.name, tensor.shape,
                           static_cast<std::uint64_t>(numElements(tensor.shape)) * elementBytes(tensor.dtype));
    }
    counted = internal::surveyOf(*spec, hosts);
    internal::throwUnlessOk(counted.status());
  }
  py::dict found;
  found["edges"] = edgesOf(*counted);
  found["ranks"] = ranksOf(*counted);
  found["columns"] = py::cast(std::vector<std::string>(kColumns.begin(), kColumns.end()));
  found["least_into_host"] = counted->leastIntoHost;
  found["tensors"] = tensors;
  return found;
}

}  // namespace

std::vector<LocalSpec> specsOf(std::vector<RankLists>& ranks, bool allowGaps, const std::string& overlap,
                               const std::string& name) {
  std::vector<LocalSpec> specs;
  specs.reserve(ranks.size());
  for (auto& [tensors, inputs, outputs, error] : ranks) {
    LocalSpec& spec = specs.emplace_back();
    spec.inputs = std::move(inputs);
    spec.outputs = std::move(outputs);
    spec.allowGaps = allowGaps;
    spec.overlap = overlapOf(overlap);
    spec.name = name;
    spec.localError = error;
    for (const DeclaredTensor& tensor : tensors) {
      spec.tensors.push_back(tensor.decl);
    }
  }
  return specs;
}

void bindOffline(py::module_& module) {
  module.def("survey", &survey, py::arg("ranks"), py::arg("allow_gaps"), py::arg("overlap"), py::arg("name"),
             py::arg("hosts"),
             "Plans for all ranks (of each: tensors, inputs, outputs, error) without a group, checks the plans against "
             "each other, and counts.");
}

}  // namespace shardwire::python

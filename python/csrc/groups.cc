// Makes, finds and ends groups. createBackend() makes a group through a store. bindBackend() binds the methods of a
// backend object that torch's Python code expects. bindGroups() binds the functions that take a backend object: each
// calls our group behind the object (Group).
#include <pybind11/chrono.h>

#include "backend/c10d/live_groups.h"
#include "backend/sight/status_server.h"
#include "python/csrc/bindings.h"
#include "python/csrc/membership.h"

namespace shardwire::python {
namespace {

ProcessGroupShardwire* findGroup(const py::handle& object) {
  if (!py::isinstance<TorchBackend>(object)) {
    return nullptr;
  }
  return dynamic_cast<ProcessGroupShardwire*>(object.cast<TorchBackend*>());
}

using Milliseconds = std::chrono::milliseconds;
using Base = ProcessGroupShardwire::Base;
using Options = ProcessGroupShardwire::Options;
constexpr auto kDefaultTimeout = std::chrono::minutes(30);  // torch's

c10::intrusive_ptr<Base> createBackend(const c10::intrusive_ptr<::c10d::Store>& store, int rank, int size,
                                       Milliseconds timeout, const std::string& groupName,
                                       std::vector<std::int64_t> globalRanks, bool isForGloo, bool isOfOneJob,
                                       const c10::intrusive_ptr<TorchBackend>& parent, bool outlivesOthers,
                                       bool isBetweenJobs) {
  const auto* const known = dynamic_cast<const ProcessGroupShardwire*>(parent.get());
  auto statusOfAbsent = known != nullptr && globalRanks.size() == static_cast<std::size_t>(size)
                            ? known->statusOfMembers(globalRanks)
                            : std::function<Status(Rank)>();
  auto group = ProcessGroupShardwire::create(store, rank, size, timeout, groupName, isOfOneJob,
                                             std::move(statusOfAbsent), outlivesOthers, isBetweenJobs);
  if (!globalRanks.empty()) {
    group->setGlobalRanks(std::move(globalRanks));
  }
  if (isForGloo) {
    group->setProfiledAs("gloo");
  }
  return group;
}

c10::intrusive_ptr<Base> createReconfigurable(py::object membership, int rank, int size, Milliseconds timeout,
                                              const std::string& groupName, bool isForGloo) {
#if SW_TORCH_HAS_RECONFIGURE
  auto owned = std::make_shared<PyMembership>(std::move(membership));
  const GilRelease release;
  auto group = ProcessGroupShardwire::createReconfigurable(std::move(owned), rank, size, timeout, groupName);
  if (isForGloo) {
    group->setProfiledAs("gloo");
  }
  return group;
#else
  static_cast<void>(std::tie(membership, rank, size, timeout, groupName, isForGloo));
  throw StatusError(Status(StatusCode::kUnsupported, "reconfigure needs torch 2.14 or later"));
#endif
}

// Torch's Python code copies options; torch's own binding of options has no copy.
c10::intrusive_ptr<Options> copyOf(const Options& options) {
  return c10::make_intrusive<Options>(options);
}

// The methods that Python finds on a backend object beyond the methods of torch's base class, the same for every torch.
// Some versions of torch have some of these methods already.
void bindBackend(py::module_& module) {
  using OptionsPtr = c10::intrusive_ptr<Base::Options>;
  using Store = c10::intrusive_ptr<::c10d::Store>;
  using Ranks = std::vector<int>;
  py::class_<Options, c10::intrusive_ptr<Options>, Base::Options>(
      module, "Options", "Options of a group, for pg_options of torch.distributed.")
      .def(py::init([](Milliseconds timeout) { return c10::make_intrusive<Options>(timeout); }),
           py::arg("timeout") = kDefaultTimeout)
      .def("__copy__", &copyOf)
      .def("__deepcopy__", [](const Options& options, const py::dict&) { return copyOf(options); });
  const py::call_guard<GilRelease> released;
  py::class_<ProcessGroupShardwire, c10::intrusive_ptr<ProcessGroupShardwire>, Base>(module, "ProcessGroupShardwire")
      .def_property_readonly("options", &ProcessGroupShardwire::getBackendOptions)
      .def("abort", &ProcessGroupShardwire::abort, released)
      .def(
          "revoke", [](ProcessGroupShardwire& self) { self.revoke(); }, released)
      .def("shutdown", &ProcessGroupShardwire::shutdown, released)
      .def("set_timeout", &ProcessGroupShardwire::setTimeout, py::arg("timeout"), released)
      .def("_set_default_timeout", &ProcessGroupShardwire::setTimeout, py::arg("timeout"),
           released)  // torch uses this name for gloo
#if SW_TORCH_HAS_ERROR_TYPE
      .def("get_error", &ProcessGroupShardwire::getError)
#endif
      .def(
          "split",
          [](ProcessGroupShardwire& self, const Store& store, const Ranks& ranks, const OptionsPtr& options) {
            return self.split(store, ranks, options);
          },
          py::arg("store"), py::arg("ranks"), py::arg("options") = OptionsPtr(), released)
      .def(
          "merge",
          [](ProcessGroupShardwire& self, const Store& store, int rank, int size, const OptionsPtr& options) {
            return self.merge(store, options, rank, size);
          },
          py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("options") = OptionsPtr(), released)
      // Torch calls this method on ranks left out of a split, if splitting is supported. There is nothing to do.
      .def(
          "perform_nocolor_split", [](ProcessGroupShardwire&, const py::object&) {}, py::arg("device"))
      // For dist.shrink_group.
      .def_property_readonly("supports_shrinking", [](const ProcessGroupShardwire&) { return true; })
      .def(
          "shrink",
          [](const py::object& self, const py::object& ranks, int flags, const py::object& options) {
            return py::module_::import("shardwire.survive.shrink_group").attr("shrink")(self, ranks, flags, options);
          },
          py::arg("ranks_to_exclude"), py::arg("shrink_flags") = 0, py::arg("opts_override") = py::none())
      .def(
          "agree",
          [](const py::object& self, const py::object& flag, const py::object& timeout) {
            const auto groups = py::module_::import("shardwire.groups.lookup");
            return py::module_::import("shardwire.survive.verdict")
                .attr("agree")(flag, groups.attr("group_around")(self), timeout);
          },
          py::arg("flag") = true, py::arg("timeout") = py::none())
      .def(
          "cat",
          [](const py::object& self, const py::object& locals, const py::object& timeout) {
            return py::module_::import("shardwire.compiler.cat").attr("cat")(locals, self, timeout);
          },
          py::arg("locals"), py::arg("timeout") = py::none());
}

}  // namespace

ProcessGroupShardwire& groupOf(const py::handle& object) {
  ProcessGroupShardwire* group = findGroup(object);
  if (group == nullptr) {
    throw py::type_error("a shardwire backend is needed, got " + std::string(py::str(py::type::of(object))) +
                         "; make the group with backend 'shardwire'");
  }
  return *group;
}

namespace {

void bindEnds(py::module_& module) {
  const py::call_guard<GilRelease> released;
  module.def(
      "revoke", [](Group group, const std::string& notice) { group->revoke(notice); }, py::arg("backend"),
      py::arg("notice"), released, "Ends the group on all its ranks. notice: the error of the operations.");
  module.def(
      "revocation", [](Group group) { return group->revocation(); }, py::arg("backend"), released,
      "The rank that revoked the group, as a sentence; empty while no rank did, as far as this rank knows.");
}

}  // namespace

void bindGroups(py::module_& module) {
  bindBackend(module);
  module.def(
      "create_backend", &createBackend, py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"),
      py::arg("group_name"), py::arg("global_ranks") = std::vector<std::int64_t>(), py::arg("for_gloo") = false,
      py::arg("is_of_one_job") = false, py::arg("parent") = py::none(), py::arg("outlives_others") = false,
      py::arg("between_jobs") = false, py::call_guard<GilRelease>(),
      "Meets the other ranks through the store; returns the c10d backend object. for_gloo: in profiles the "
      "operations have gloo's name. parent: the default group's backend, which knows the ranks that died, or None. "
      "outlives_others: the group does not fail because another group of a peer's process failed. between_jobs: the "
      "members have no ranks of one job, so no file of the flight recorder has the group.");
  module.def("create_reconfigurable_backend", &createReconfigurable, py::arg("membership"), py::arg("rank"),
             py::arg("size"), py::arg("timeout"), py::arg("group_name"), py::arg("for_gloo") = false,
             "A c10d backend object without members; reconfigure() makes the group. membership: survive/members.py. "
             "UnsupportedError before torch 2.14.");
  module.def(
      "store_has",
      [](const c10::intrusive_ptr<::c10d::Store>& store, const std::string& key) { return store->check({key}); },
      py::arg("store"), py::arg("key"), py::call_guard<GilRelease>(),
      "Whether the key is set. Torch shows its stores' check() to Python in later versions only, and wait() blocks the "
      "store for other calls.");
  module.def(
      "shutdown_all",
      [] {
        internal::shutdownLiveGroups();
        internal::stopServingStatus();
      },
      py::call_guard<GilRelease>(),
      "Shuts down every group of this process, and the status socket. For interpreter exit.");
  module.def(
      "is_backend", [](const py::object& object) { return findGroup(object) != nullptr; }, py::arg("object"),
      "Whether the object is the c10d backend object of a shardwire group.");
  module.def(
      "rank", [](Group group) { return group->getRank(); }, py::arg("backend"));
  module.def(
      "size", [](Group group) { return group->getSize(); }, py::arg("backend"));
  module.def(
      "global_ranks", [](Group group) { return group->globalRanks(); }, py::arg("backend"),
      "The job's rank of each member of the group.");
  module.def(
      "describe", [](Group group) { return group->communicator()->describeTransports(); }, py::arg("backend"),
      "One line per peer: transport and data path, and why not a faster one.");
  module.def(
      "describe_collectives", [](Group group) { return group->communicator()->describeCollectives(); },
      py::arg("backend"), "The table by which collectives choose their algorithm.");
  module.def(
      "group_name", [](Group group) { return group->communicator()->groupName(); }, py::arg("backend"));
  module.def(
      "exchange",
      [](Group group, const std::string& call, const std::string& text, const std::string& blob, const Status& error,
         std::optional<double> timeout) {
        std::vector<std::string> blobs;
        {
          const auto communicator = group->communicator();
          const GilRelease release;
          blobs = internal::valueOrThrow(communicator->exchange({call, text, blob, error}, durationOf(timeout)));
        }
        return std::vector<py::bytes>(blobs.begin(), blobs.end());
      },
      py::arg("backend"), py::arg("call"), py::arg("text") = "", py::arg("blob") = py::bytes(),
      py::arg("error") = py::none(), py::arg("timeout") = py::none(),
      "Collective: the blobs of all ranks. Otherwise one error on all ranks: MismatchError where call or text differ, "
      "or the error of the lowest rank that gives one.");
  bindEnds(module);
}

}  // namespace shardwire::python

// Queues (python/shardwire/queues): bytes and tensors of Python become parts of entries and back. Then come the calls
// of a rank that uses another rank's queue, and the calls of the rank that holds a queue. Every call that takes a lock,
// sends or waits runs without the GIL: an event of a queue may need the GIL to release a tensor.
#include "backend/c10d/process_group_shardwire.h"
#include "backend/queues/holder.h"
#include "backend/queues/use.h"
#include "python/csrc/bindings.h"

namespace shardwire::python {
namespace {

using namespace internal;  // NOLINT: the names of one room

using Parts = std::vector<at::Tensor>;

Deadline deadlineIn(double seconds) {
  return Clock::now() + durationOf(std::max(seconds, 0.0));
}

std::vector<QueuePart> partsOf(const Parts& tensors) {
  std::vector<QueuePart> parts;
  for (const at::Tensor& tensor : tensors) {
    parts.push_back({std::make_shared<at::Tensor>(tensor), static_cast<std::byte*>(tensor.data_ptr()),
                     static_cast<std::size_t>(tensor.numel())});
  }
  return parts;
}

Parts tensorsOf(const std::vector<QueuePart>& parts) {
  Parts tensors;
  for (const QueuePart& part : parts) {
    tensors.push_back(at::from_blob(
        part.bytes, {static_cast<std::int64_t>(part.size)}, [owner = part.owner](void*) {}, at::kByte));
  }
  return tensors;
}

// ---- using

std::shared_ptr<QueueCall> ask(QueueUser& user, int op, std::uint32_t queue, int flags, std::int64_t value,
                               const std::string& head, const Parts& tensors) {
  const GilRelease release;
  return valueOrThrow(user.ask(
      {static_cast<QueueOp>(op), static_cast<std::uint16_t>(flags), queue, 0, value, head, {}, {}}, partsOf(tensors)));
}

void note(QueueUser& user, int op, std::uint32_t queue, std::uint64_t request, std::int64_t value) {
  const GilRelease release;
  throwUnlessOk(user.note({static_cast<QueueOp>(op), 0, queue, request, value, {}, {}, {}}));
}

bool isCompleted(QueueCall& call) {
  const GilRelease release;
  const Result<WorkPtr> work = call.work();
  return !work.isOk() || (*work)->isDone();  // wait() raises the error
}

bool waitFor(QueueCall& call, double seconds) {
  const GilRelease release;
  const WorkPtr work = valueOrThrow(call.work());
  const Status status = work->wait(deadlineIn(seconds));
  const bool isOver = !endedEarly(status, *work);
  if (isOver || status.code() != StatusCode::kTimeout) {
    throwUnlessOk(isOver ? work->status() : status);
  }
  return isOver;
}

// Calls `callback` when the answer is here, or cannot come.
void then(QueueCall& call, py::function callback) {
  const std::shared_ptr<py::function> kept(new py::function(std::move(callback)), [](py::function* function) {
    const py::gil_scoped_acquire gil;
    delete function;
  });
  const auto run = [kept](const Status&) {
    const py::gil_scoped_acquire gil;
    try {
      (*kept)();
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("a callback of a queue");
    }
  };
  const GilRelease release;
  const Result<WorkPtr> work = call.work();
  work.isOk() ? (*work)->onDone(run) : run(work.status());
}

// (op, value, head, sizes of the parts, the parts, or None where they follow). None: `rest`, the head, is needed.
py::object messageOf(QueueCall& call, const std::optional<at::Tensor>& rest) {
  throwUnlessOk(valueOrThrow(call.work())->status());
  std::string head;
  if (!rest.has_value() && valueOrThrow(call.headOutside()) > 0) {
    return py::none();
  }
  if (rest.has_value()) {
    head.assign(static_cast<const char*>(rest->data_ptr()), static_cast<std::size_t>(rest->numel()));
  }
  const QueueMessage message = valueOrThrow(call.message(std::move(head)));
  return py::make_tuple(static_cast<int>(message.op), message.value, py::bytes(message.head), message.partSizes,
                        message.parts.has_value() ? py::cast(tensorsOf(*message.parts)) : py::object(py::none()));
}

void bindUsing(py::module_& module) {
  py::class_<QueueCall, std::shared_ptr<QueueCall>>(module, "QueueCall", "A request to a holder of queues.")
      .def_property_readonly("op", [](const QueueCall& call) { return static_cast<int>(call.op); })
      .def_readonly("queue", &QueueCall::queue)
      .def_readonly("request", &QueueCall::request)
      .def_property_readonly(
          "tag", [](const QueueCall& call) { return tagOfRequest(call.request); }, "Of the bytes after the frame.")
      .def("is_completed", &isCompleted, "Whether the answer's frame is here, or cannot come.")
      .def("wait", &waitFor, py::arg("seconds"), "Whether the answer's frame is here in time; raises the link's error.")
      .def("then", &then, py::arg("callback"), "Calls back, on any thread, when is_completed() is true.")
      .def(
          "head_outside",
          [](QueueCall& call) {
            throwUnlessOk(valueOrThrow(call.work())->status());
            return valueOrThrow(call.headOutside());
          },
          "Bytes of the answer's head that follow the frame.")
      .def("message", &messageOf, py::arg("rest") = py::none(),
           "(op, value, head, sizes of the parts, parts or None); None where `rest`, the head, is needed.");
  py::class_<QueueUser, std::shared_ptr<QueueUser>>(module, "QueueUser", "The user's end of a link.")
      .def(py::init([](Group group) { return std::make_shared<QueueUser>(group->communicator()); }), py::arg("backend"))
      .def("ask", &ask, py::arg("op"), py::arg("queue"), py::arg("flags"), py::arg("value"), py::arg("head"),
           py::arg("parts"), "Sends a request.")
      .def("note", &note, py::arg("op"), py::arg("queue"), py::arg("request"), py::arg("value"),
           "Sends a message without an answer.");
}

// ---- holding

QueueEntryPtr entryOf(const std::string& head, const Parts& tensors) {
  const GilRelease release;
  const auto entry = std::make_shared<QueueEntry>();
  entry->head = head;
  for (const QueuePart& part : partsOf(tensors)) {
    const QueuePart copy = valueOrThrow(newQueuePart(part.size));
    std::copy_n(part.bytes, part.size, copy.bytes);
    entry->parts.push_back(copy);
  }
  return entry;
}

bool waitForLocal(LocalCall& call, double seconds) {
  const GilRelease release;
  const Status status = call.wait(deadlineIn(seconds));
  if (!call.isOver() && status.code() != StatusCode::kTimeout) {
    throwUnlessOk(status);
  }
  return call.isOver();
}

// (outcome, text of a failure, head or None, parts, number of entries left).
py::tuple resultOf(const LocalCall& call) {
  const QueueEntryPtr entry = call.entry();
  return py::make_tuple(static_cast<int>(call.outcome()), call.failure(),
                        entry == nullptr ? py::object(py::none()) : py::bytes(entry->head),
                        entry == nullptr ? Parts() : tensorsOf(entry->parts), call.numLeft());
}

void bindHolding(py::module_& module) {
  const py::call_guard<GilRelease> released;
  py::class_<QueueEntry, QueueEntryPtr>(module, "QueueEntry", "An entry with copies of its parts.")
      .def(py::init(&entryOf), py::arg("head"), py::arg("parts"));
  py::class_<HeldQueue, HeldQueuePtr>(module, "HeldQueue", "The entries of a queue on this rank.");
  py::class_<LocalCall, LocalCallPtr>(module, "QueueLocalCall", "A call of the rank that holds the queue.")
      .def(py::init<std::shared_ptr<QueueHolder>, HeldQueuePtr>(), py::arg("holder"), py::arg("queue"))
      .def("when_over", &LocalCall::whenOver, py::arg("notice"), released,
           "Gives the number to the holder's notices when the call is over.")
      .def("get", &LocalCall::get, py::arg("takes"), py::arg("may_wait"), released)
      .def("put", &LocalCall::put, py::arg("entries"), py::arg("may_wait"), released)
      .def("wait", &waitForLocal, py::arg("seconds"), "Whether the call is over in time.")
      .def("is_over", &LocalCall::isOver)
      .def("give_up", &LocalCall::giveUp, released, "Ends the wait. Whether the call was still waiting.")
      .def("taken", &LocalCall::taken, released, "The caller has the entry: the entry does not come back.")
      .def("give_back", &LocalCall::giveBack, released, "Ends the wait, and returns the entry to its place.")
      .def("result", &resultOf,
           "(outcome, failure, head or None, parts, number of entries left), of a call that is over.");
  py::class_<QueueHolder, std::shared_ptr<QueueHolder>>(module, "QueueHolder", "The queues that this rank holds.")
      .def(py::init<std::string>(), py::arg("label"))
      .def("hold", &QueueHolder::hold, py::arg("key"), py::arg("about"), py::arg("capacity"), py::arg("survives"),
           released)
      .def(
          "add_link",
          [](QueueHolder& holder, Group group, Rank user, std::uint64_t notice) {
            const GilRelease release;
            holder.addLink(group->communicator(), user, notice);
          },
          py::arg("backend"), py::arg("user"), py::arg("notice"))
      .def(
          "counts",
          [](QueueHolder& holder, const HeldQueuePtr& queue) {
            HeldQueue::Counts counts;
            holder.run([&] { counts = queue->counts(); });
            return std::tuple(counts.entries, counts.getters, counts.forRoom);
          },
          py::arg("queue"), released, "The numbers of entries, of waiting getters, and of putters that wait for room.")
      .def(
          "close", [](QueueHolder& holder, const HeldQueuePtr& queue) { holder.run([&] { queue->close(); }); },
          py::arg("queue"), released)
      .def("revoke", &QueueHolder::revoke, py::arg("notice"), released)
      .def("notice", &QueueHolder::notice, released)
      .def("stop", &QueueHolder::stop, released)
      .def("notify", &QueueHolder::notify, py::arg("notice"), released)
      .def("next_notice", &QueueHolder::nextNotice, released, "Waits for the next notice; None after stop().");
}

}  // namespace

void bindQueues(py::module_& module) {
  bindUsing(module);
  bindHolding(module);
}

}  // namespace shardwire::python

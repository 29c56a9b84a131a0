// One rank's part of a random call: the tensors in random memory, the call, and the check of every byte.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "shardwire/communicator.h"
#include "tests/support/random_collective.h"

namespace shardwire::testing {

class CollectiveRun {
 public:
  CollectiveRun(const RandomCall& call, Rank rank);

  // Starts the call on the group of the call. Returns "" or the fault.
  std::string issue(Communicator& group);
  // The works that issue() started, to be waited for by the caller; takes the works out.
  std::vector<WorkPtr> takeWorks() { return std::move(works_); }
  // After all works are done with success, and dropped: returns "" or the fault.
  std::string check();
  // The operation is over, and the program writes other bytes into all tensors.
  void overwrite();
  // "" or the first byte that is not as expected, or was changed after overwrite().
  std::string findDifference() const;

 private:
  struct Tensor {
    TensorView view;
    std::size_t storage;
  };

  void makeTensors();
  void makeMessages();
  Tensor place(const Dims& shape, unsigned expanded);
  std::vector<Tensor> placeList(const std::vector<Dims>& shapes, ListLayout layout, bool areInputs);
  void put(const Tensor& tensor, const Elements& elements) { storages_[tensor.storage].put(tensor.view, elements); }
  void expect(const Tensor& tensor, const Elements& elements) {
    storages_[tensor.storage].expect(tensor.view, elements);
  }
  std::string keep(Result<WorkPtr> work);
  Result<WorkPtr> start(Communicator& group);
  std::string issueMessages(Communicator& group);
  std::string issueWrong(Communicator& group);
  std::string expectReceived();
  CallOptions options();

  const RandomCall& call_;
  const Rank rank_;
  const int numRanks_;
  Random random_;
  std::vector<CheckedStorage> storages_;
  std::vector<Tensor> inputs_;                // for messages: one per message from this rank
  std::vector<Tensor> outputs_;               // for messages: one per message to this rank
  std::vector<std::size_t> sent_, received_;  // the numbers of the messages
  std::vector<WorkPtr> works_;
  std::vector<WorkPtr> fromAny_;  // by received message; null where the sender was named
  std::vector<std::weak_ptr<void>> kept_;
};

}  // namespace shardwire::testing

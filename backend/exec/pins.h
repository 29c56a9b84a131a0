// Tensors of a run with bytes moved by wires: made ready (registered) once, for the run or for all runs of a bound op,
// instead of for every fetch. Under the engine's lock.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/transport/transport.h"
#include "shardwire/tensor_view.h"

namespace shardwire::internal {

class Pins {
 public:
  // `isWritten`: fetches fill the tensor. Does nothing for a tensor without bytes.
  void add(std::span<const std::unique_ptr<Wire>> wires, const TensorView& tensor, bool isWritten);
  // The wires still live. Pins without a release go with their wire.
  void release();

 private:
  struct Pin {
    Wire* wire;
    std::uint64_t id;
  };
  std::vector<Pin> pins_;
};

}  // namespace shardwire::internal

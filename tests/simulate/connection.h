// One rank's end of a link: the rank's view of both directions, in the form that the product asks of a transport. No
// event delivers a frame: a reader sees a frame from the time of arrival on, and an event only rings the reader's bell.
// So a poll at that time may see a frame before the ring, as in the product.
#pragma once

#include <cstddef>
#include <cstdint>
#include <shared_mutex>
#include <span>
#include <string>

#include "backend/transport/transport.h"
#include "tests/simulate/network.h"

namespace shardwire::simulate {

class SimulatedConnection final : public internal::Connection {
 public:
  SimulatedConnection(Network& network, Rank self, Rank peer);
  ~SimulatedConnection() override;

  Rank peer() const override { return peer_; }
  const char* transportName() const override { return "simulated"; }
  std::size_t maxFrameBytes(Lane lane) const override;
  std::span<std::byte> reserve(Lane lane, std::size_t minBytes, std::size_t maxBytes) override;
  void commit(Lane lane, std::size_t bytes) override;
  std::span<const std::byte> peek(Lane lane) override;
  void release(Lane lane) override;

  internal::Reach expose(const void* bytes, std::size_t size, internal::RemoteAddress* address) override;
  void conceal(const internal::RemoteAddress& address) override;
  internal::ReadLimits readLimits() const override;
  const std::byte* map(const internal::RemoteAddress& address, std::size_t size) override;
  Status read(std::span<const internal::MemoryRun> runs) override;
  bool hasWithdrawn() const override;
  std::shared_mutex* readersLock() override { return isNear_ ? &in_.readers : nullptr; }
  bool fetch(std::uint32_t space, std::span<const internal::MemoryRun> runs, internal::FetchCount* count) override;
  bool stopFetches() override;

  Status health() override;
  std::string describe() const override;

  // For the wire: serves the peer's requests, and takes the pieces of what was fetched.
  bool poll();

 private:
  Process& process() const;
  Time now() const;
  Time arrivalOf(std::size_t bytes) const;
  void serve(Direction::Fetch fetch);
  bool sendAnswers();
  void sendPart(Direction::Fetch& serving);
  bool takeAnswers();
  void endPart(const Direction::Fetch& part);
  void take(Direction::Fetch& fetch);

  Network& network_;
  const Rank self_;
  const Rank peer_;
  Direction& out_;
  Direction& in_;
  const bool isNear_;
  std::string failed_;  // this end broke the link
};

class SimulatedWire final : public internal::Wire {
 public:
  SimulatedWire(Network& network, Rank self) : network_(network), self_(self) {}
  bool poll() override;
  int readinessFd() const override { return -1; }
  std::uint64_t pin(const void* bytes, std::size_t size, bool isWritten, const void* storage) override;
  void unpin(std::uint64_t pin) override;

 private:
  Network& network_;
  const Rank self_;
};

}  // namespace shardwire::simulate

// A wait that is queued in a device's stream and that the host ends later. With a gate wait() can return to the CPU
// while a transport driven by the CPU still works. torch's device-generic guard has no such wait, so each kind of
// device needs its own: a maker given to setStreamGates(), or torch's own c10d StreamBlock where this torch and device
// have one. Any thread.
#pragma once

#include <c10/core/Stream.h>

#include <memory>

#include "shardwire/export.h"

namespace shardwire {

class SHARDWIRE_EXPORT StreamGate {
 public:
  virtual ~StreamGate() = default;
  // Lets the work queued in the stream after the gate run. Called once, from any thread.
  virtual void open() noexcept = 0;
};

// Queues a closed gate in `stream`, without waiting for anything. May throw.
using MakeStreamGate = std::unique_ptr<StreamGate> (*)(const c10::Stream& stream);

// How gates of this kind of device are made, for the whole process; null: not at all. Replaces what was set before.
SHARDWIRE_EXPORT void setStreamGates(c10::DeviceType type, MakeStreamGate make);

}  // namespace shardwire

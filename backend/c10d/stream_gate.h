// Gates in the streams of any device: by who brought the device (shardwire/stream_gate.h), else by torch. Any thread.
#pragma once

#include "shardwire/stream_gate.h"

namespace shardwire::internal {

bool hasStreamGates(c10::DeviceType type);
// A closed gate, queued in `stream`, which is the calling thread's current one; null where this kind of device has none.
std::unique_ptr<StreamGate> makeStreamGate(const c10::Stream& stream);

}  // namespace shardwire::internal

// Gates in the streams of any device: made by the extension that brought the device (shardwire/stream_gate.h),
// otherwise by torch. Any thread.
#pragma once

#include "shardwire/stream_gate.h"

namespace shardwire::internal {

bool hasStreamGates(c10::DeviceType type);
// A closed gate, queued in `stream`, the calling thread's current stream; null for a kind of device without gates.
std::unique_ptr<StreamGate> makeStreamGate(const c10::Stream& stream);

}  // namespace shardwire::internal

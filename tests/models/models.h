// The lock-free protocols of shardwire as models for the explorer. Each model mirrors the C++ functions named in
// the model's comments, with the memory orders of the table in sites.h.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/models/explorer.h"
#include "tests/models/sites.h"

namespace shardwire::models {

struct Protocol {
  std::string name;
  std::string files;
  std::string invariant;
  std::vector<std::function<Model(const Orders&)>> models;  // the orders outlive the model
};

Protocol mutex();
Protocol frameRing();
Protocol rankBell();
Protocol processBell();
Protocol announcements();
Protocol inboxEnd();
Protocol withdrawnMemory();
Protocol sharedHeap();
Protocol symmetricWords();
Protocol symmetricBarrier();
Protocol orderedSections();
Protocol padWords();
Protocol releasedParts();

std::vector<Protocol> allProtocols();

}  // namespace shardwire::models

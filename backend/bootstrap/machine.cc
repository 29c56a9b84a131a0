#include "backend/bootstrap/machine.h"

#include "backend/fabric/rank_doorbell.h"

namespace shardwire::internal {

std::unique_ptr<Doorbell> Machine::makeDoorbell(const OwnEnds& own) {
  return std::make_unique<RankDoorbell>(own.fabric, own.bell);
}

std::unique_ptr<LifeWatch> Machine::watch(const OwnEnds& own, const Options& options) {
  const auto all = own.fabric == nullptr ? Result<std::vector<InterfaceAddress>>(std::vector<InterfaceAddress>())
                                         : own.fabric->interfaces(networkNamespace());
  return std::make_unique<LifeWatch>(
      own.address, all.isOk() ? chooseInterfaces(*all, options.socketIfname) : std::vector<InterfaceAddress>());
}

Machine& thisMachine() {
  static Machine machine;
  return machine;
}

}  // namespace shardwire::internal

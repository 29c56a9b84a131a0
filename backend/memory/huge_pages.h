// Huge pages for new blocks of the shared heap. Faulting in shared memory by small pages costs about ten times as much
// as zeroing by huge pages (0.6 against 5 to 6 GB/s measured), and every peer pays for the faults again. Where the
// kernel gives shared memory huge pages on demand (shmem_enabled advise or always), nothing is left to do here. By
// default the kernel does not (never), but turns a range into huge pages when asked. Any thread.
#pragma once

#include <atomic>
#include <cstddef>

namespace shardwire::internal {

class HugePages {
 public:
  // Reads the kernel's setting when the first block is backed, since many processes never back a block.
  HugePages() = default;
  // `isOnDemand`: the kernel gives huge pages on demand.
  explicit HugePages(bool isOnDemand) : use_(isOnDemand ? Use::kNone : Use::kAsked) {}
  // As /sys/kernel/mm/transparent_hugepage/shmem_enabled says.
  static bool areOnDemand();

  // Backs [start, start + size), multiples of 2 MiB, with zeroed huge pages now instead of at the first touch. Where no
  // huge pages are available the range stays unchanged. Precondition: the range is mapped, shared, and has no pages
  // yet.
  void back(std::byte* start, std::size_t size);

 private:
  enum class Use : unsigned char { kUnknown, kAsked, kNone };
  bool isUseful();

  std::atomic<Use> use_{Use::kUnknown};  // a lone value; kNone, too, when the kernel cannot
};

}  // namespace shardwire::internal

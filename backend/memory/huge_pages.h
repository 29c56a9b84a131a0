// Huge pages for new blocks of the shared heap. Faulting shared memory in by small pages costs about ten times what zeroing it by huge
// pages does (0.6 against 5 to 6 GB/s measured), and every peer pays the faults again. Where the kernel gives shared memory huge pages on
// demand (shmem_enabled advise or always) there is nothing to do here; by default it does not (never), but collapses a range into one when
// asked to. Any thread.
#pragma once

#include <atomic>
#include <cstddef>

namespace shardwire::internal {

class HugePages {
 public:
  // Asks the kernel whether it gives them by itself, when the first block is backed: many processes never come to that.
  HugePages() = default;
  // `isOnDemand`: it does.
  explicit HugePages(bool isOnDemand) : use_(isOnDemand ? Use::kNone : Use::kAsked) {}
  // As /sys/kernel/mm/transparent_hugepage/shmem_enabled says.
  static bool areOnDemand();

  // Backs [start, start + size), multiples of 2 MiB, with zeroed huge pages at once instead of at the first touch. Where none are to be had
  // the range stays as it is. Precondition: the range is mapped, shared, and holds nothing yet.
  void back(std::byte* start, std::size_t size);

 private:
  enum class Use : unsigned char { kUnknown, kAsked, kNone };
  bool isUseful();

  std::atomic<Use> use_{Use::kUnknown};  // a lone value; kNone, too, when the kernel cannot
};

}  // namespace shardwire::internal

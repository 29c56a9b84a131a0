// The cache of registrations over fake verbs. First memory of unknown and of known storages, and storages that die;
// then views that share a registration; then limits and refusals; at last memory of the heap, which stays registered
// until pages go back to the system.
#include "backend/transport/rdma/registration_cache.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include "tests/backend/transport/rdma/fake_verbs.h"

namespace {

// Runs on another thread just before the heap's memory goes back to the system.
std::function<void()> beforeHole;

}  // namespace

extern "C" __attribute__((visibility("default"))) int fallocate(int fd, int mode, off_t offset, off_t size) {
  if ((mode & FALLOC_FL_PUNCH_HOLE) != 0 && beforeHole) {
    std::exchange(beforeHole, nullptr)();
  }
  static const auto real = reinterpret_cast<int (*)(int, int, off_t, off_t)>(::dlsym(RTLD_NEXT, "fallocate"));
  return real(fd, mode, offset, size);
}

namespace shardwire::internal {
namespace {

using shardwire::testing::FakeVerbs;

// The test decides how long these storages live.
std::set<const void*> liveStorages;
const void* unwatched = nullptr;  // a storage that cannot be watched
int numWeak = 0;
const StorageWatch kWatch = {
    .retainWeak = [](const void* storage) -> void* {
      if (storage == unwatched) {
        return nullptr;
      }
      ++numWeak;
      return const_cast<void*>(storage);
    },
    .isExpired = [](void* weak) { return !liveStorages.contains(weak); },
    .releaseWeak = [](void*) { --numWeak; },
};

class RegistrationCacheTest : public ::testing::Test {
 protected:
  RegistrationCacheTest() : fake_(FakeVerbs::reset()), api_(FakeVerbs::api()) {
    for (const char* name : {"fake0", "fake1"}) {
      fake_.addPort(name).gids.push_back(FakeVerbs::ipv4Gid(1));
    }
    ports_ = std::move(*openRdmaPorts(api_, Options{}));
    liveStorages.clear();
    unwatched = nullptr;
    numWeak = 0;
  }
  ~RegistrationCacheTest() override {
    cache_.reset();
    EXPECT_EQ(fake_.numRegistered, 0);
    EXPECT_EQ(numWeak, 0);
  }
  RegistrationCache& cache(RegistrationLimits limits = {}) {
    cache_ = std::make_unique<RegistrationCache>(api_, ports_.devices, &kWatch, limits);
    return *cache_;
  }
  Registration* pin(RegistrationCache& cache, const void* bytes, std::size_t size, bool isWritten,
                    const void* storage) {
    auto pinned = cache.pin(bytes, size, isWritten, storage);
    EXPECT_TRUE(pinned.isOk()) << pinned.status().message();
    return pinned.isOk() ? *pinned : nullptr;
  }

  FakeVerbs& fake_;
  VerbsApi api_;
  RdmaPorts ports_;
  std::unique_ptr<RegistrationCache> cache_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(1 << 20);
  int storage_ = 0;
  int otherStorage_ = 0;
};

TEST_F(RegistrationCacheTest, AnUnknownPieceOfMemoryIsRegisteredForItsPinOnly) {
  RegistrationCache& kept = cache();
  Registration* first = pin(kept, memory_.data(), 5000, false, nullptr);
  EXPECT_EQ(fake_.numRegistered, 2);  // on both devices
  EXPECT_EQ(fake_.lastAccess, 0);     // no other rank may touch memory that is only read
  kept.unpin(first);
  EXPECT_EQ(fake_.numRegistered, 0);
  EXPECT_EQ(kept.numEntries(), 0U);
}

TEST_F(RegistrationCacheTest, WhatIsPinnedServesOthersMeanwhile) {
  RegistrationCache& kept = cache();
  Registration* bound = pin(kept, memory_.data(), 5000, false, nullptr);
  for (int i = 0; i < 10; ++i) {
    Registration* part = pin(kept, memory_.data() + 100, 1000, false, nullptr);
    EXPECT_EQ(part, bound);
    kept.unpin(part);
  }
  EXPECT_EQ(kept.numRegistered(), 1U);
  Registration* written = pin(kept, memory_.data(), 5000, true, nullptr);  // other rights
  EXPECT_NE(written, bound);
  kept.unpin(written);
  kept.unpin(bound);
  EXPECT_EQ(fake_.numRegistered, 0);
}

// A device may still read concealed memory, or be late to report so, while the owner frees the memory and other memory
// comes to the same address.
TEST_F(RegistrationCacheTest, WhatIsClosedServesNobodyElse) {
  RegistrationCache& kept = cache();
  liveStorages = {&storage_};
  for (const void* storage : {static_cast<const void*>(nullptr), static_cast<const void*>(&storage_)}) {
    Registration* concealed = pin(kept, memory_.data(), 5000, false, storage);
    Registration* other = pin(kept, memory_.data(), 5000, false, nullptr);
    EXPECT_EQ(other, concealed);
    kept.close(concealed);
    EXPECT_TRUE(kept.isReady(memory_.data(), 5000, false));  // the other pin keeps the memory alive
    kept.close(other);
    EXPECT_FALSE(kept.isReady(memory_.data(), 5000, false));
    Registration* fresh = pin(kept, memory_.data(), 5000, false, nullptr);
    EXPECT_NE(fresh, concealed);
    EXPECT_EQ(fake_.numRegistered, 4);
    kept.unpin(fresh);
    kept.unpinClosed(other);
    kept.unpinClosed(concealed);
  }
  EXPECT_EQ(fake_.numRegistered, 2);  // of the storage
}

TEST_F(RegistrationCacheTest, AStorageIsRegisteredOnceWhileItLives) {
  RegistrationCache& kept = cache();
  liveStorages = {&storage_};
  for (int i = 0; i < 100; ++i) {
    kept.unpin(pin(kept, memory_.data() + 100, 5000, false, &storage_));
  }
  EXPECT_EQ(kept.numRegistered(), 1U);
  EXPECT_EQ(fake_.numRegistered, 2);
}

TEST_F(RegistrationCacheTest, MemoryOfAnotherStorageAtTheSameAddressIsRegisteredAnew) {
  RegistrationCache& kept = cache();
  liveStorages = {&storage_};
  kept.unpin(pin(kept, memory_.data(), 5000, false, &storage_));
  liveStorages = {&otherStorage_};
  kept.unpin(pin(kept, memory_.data(), 5000, false, &otherStorage_));
  EXPECT_EQ(kept.numRegistered(), 2U);
  EXPECT_EQ(fake_.numRegistered, 2);  // the first storage's registration is gone
  // The same identity, but the storage died in between.
  liveStorages.clear();
  kept.unpin(pin(kept, memory_.data(), 5000, false, &otherStorage_));
  EXPECT_EQ(kept.numRegistered(), 3U);
}

TEST_F(RegistrationCacheTest, AStorageThatCannotBeWatchedIsRegisteredForItsPinOnly) {
  RegistrationCache& kept = cache();
  liveStorages = {&storage_};
  unwatched = &storage_;
  for (int i = 0; i < 2; ++i) {
    kept.unpin(pin(kept, memory_.data(), 5000, false, &storage_));
    EXPECT_EQ(fake_.numRegistered, 0);
  }
  EXPECT_EQ(kept.numRegistered(), 2U);
}

TEST_F(RegistrationCacheTest, WithoutItsStorageMemoryIsServedOnlyWhileItIsPinned) {
  RegistrationCache& kept = cache();
  liveStorages = {&storage_};
  Registration* pinned = pin(kept, memory_.data(), 8192, false, &storage_);
  EXPECT_TRUE(kept.isReady(memory_.data() + 10, 100, false));
  EXPECT_FALSE(kept.isReady(memory_.data() + 8100, 100, false));
  kept.unpin(pin(kept, memory_.data() + 10, 100, false, nullptr));
  EXPECT_EQ(kept.numRegistered(), 1U);
  kept.unpin(pinned);
  EXPECT_FALSE(kept.isReady(memory_.data() + 10, 100, false));
}

TEST_F(RegistrationCacheTest, ViewsOfOneStorageShareARegistrationThatGrowsAndMayBeWritten) {
  RegistrationCache& kept = cache();
  liveStorages = {&storage_};
  Registration* first = pin(kept, memory_.data(), 8192, false, &storage_);
  Registration* second = pin(kept, memory_.data() + 4096, 8192, true, &storage_);
  EXPECT_NE(first, second);
  EXPECT_TRUE(second->covers(memory_.data(), 12288));
  EXPECT_EQ(fake_.lastAccess, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  EXPECT_EQ(fake_.numRegistered, 4);  // the first is still pinned
  kept.unpin(first);
  EXPECT_EQ(fake_.numRegistered, 2);
  kept.unpin(second);
  kept.unpin(pin(kept, memory_.data(), 12288, true, &storage_));
  EXPECT_EQ(kept.numRegistered(), 2U);
}

TEST_F(RegistrationCacheTest, KeepsNoMoreThanItsLimitsAndDropsTheOldest) {
  RegistrationLimits limits;
  limits.bytes = 4 * 8192;
  RegistrationCache& kept = cache(limits);
  liveStorages = {memory_.data(),     memory_.data() + 1, memory_.data() + 2,
                  memory_.data() + 3, memory_.data() + 4, memory_.data() + 5};
  for (std::size_t i = 0; i < 6; ++i) {
    kept.unpin(pin(kept, memory_.data() + i * 16384, 8192, false, memory_.data() + i));
  }
  EXPECT_EQ(kept.keptBytes(), limits.bytes);
  const auto before = kept.numRegistered();
  kept.unpin(pin(kept, memory_.data() + 5 * 16384, 8192, false, memory_.data() + 5));
  EXPECT_EQ(kept.numRegistered(), before);
  kept.unpin(pin(kept, memory_.data(), 8192, false, memory_.data()));
  EXPECT_EQ(kept.numRegistered(), before + 1);
}

TEST_F(RegistrationCacheTest, MemoryOfDeadStoragesIsGivenBackSoon) {
  RegistrationCache& kept = cache();
  std::size_t most = 0;
  for (std::size_t i = 0; i < 1000; ++i) {
    // One lives on, the others die at once. No two have common bytes.
    liveStorages = {memory_.data(), memory_.data() + i};
    kept.unpin(pin(kept, memory_.data() + i * 1000, 900, false, memory_.data() + i));
    most = std::max(most, kept.numEntries());
  }
  EXPECT_LE(most, 4U);
  const auto before = kept.numRegistered();
  kept.unpin(pin(kept, memory_.data(), 900, false, memory_.data()));
  EXPECT_EQ(kept.numRegistered(), before);
}

TEST_F(RegistrationCacheTest, WhenLockedMemoryIsShortWhatIsNotInUseGoesFirst) {
  RegistrationCache& kept = cache();
  liveStorages = {&storage_};
  kept.unpin(pin(kept, memory_.data(), 8192, false, &storage_));
  fake_.failRegistrations = 1;
  Registration* pinned = pin(kept, memory_.data() + 65536, 8192, false, nullptr);
  ASSERT_NE(pinned, nullptr);
  EXPECT_EQ(kept.numEntries(), 1U);
  kept.unpin(pinned);
}

TEST_F(RegistrationCacheTest, ARefusalSaysWhatToDo) {
  RegistrationCache& kept = cache();
  fake_.failRegistrations = 2;
  const auto refused = kept.pin(memory_.data(), 8192, false, nullptr);
  ASSERT_FALSE(refused.isOk());
  EXPECT_EQ(refused.status().code(), StatusCode::kSystem);
  EXPECT_NE(refused.status().message().find("8192 bytes"), std::string::npos) << refused.status().message();
  EXPECT_NE(refused.status().message().find("memlock limit"), std::string::npos) << refused.status().message();
  EXPECT_NE(refused.status().message().find("ENOMEM"), std::string::npos) << refused.status().message();
  fake_.failRegistrations = 1;
  fake_.registrationError = EFAULT;
  EXPECT_NE(kept.pin(memory_.data(), 8192, false, nullptr).status().message().find("EFAULT"), std::string::npos);
  EXPECT_EQ(kept.numEntries(), 0U);
}

TEST_F(RegistrationCacheTest, HeapMemoryStaysRegisteredUntilSomeWentBackToTheSystem) {
  RegistrationCache& kept = cache();
  SharedHeap* heap = *SharedHeap::instance();
  void* inUse = *heap->allocate(64);
  auto* block = static_cast<std::byte*>(*heap->allocate(std::size_t{3} << 20));
  for (int i = 0; i < 10; ++i) {
    kept.unpin(pin(kept, block + i * 1000, 5000, i % 2 == 0, nullptr));
  }
  EXPECT_EQ(kept.numRegistered(), 1U);
  EXPECT_EQ(fake_.lastSize % (std::size_t{2} << 20), 0U);
  heap->free(block);
  // More than the heap has: the heap gives all free memory back before the failure.
  const auto before = heap->numPurges();
  EXPECT_FALSE(heap->allocate(heap->reservedBytes()).isOk());
  ASSERT_GT(heap->numPurges(), before);
  block = static_cast<std::byte*>(*heap->allocate(std::size_t{3} << 20));
  kept.unpin(pin(kept, block, 5000, true, nullptr));
  EXPECT_EQ(kept.numRegistered(), 2U);
  heap->free(block);
  heap->free(inUse);
}

// A registration covers free memory beside the requested block. While the heap gives the free memory back, the old
// pages are pinned.
TEST_F(RegistrationCacheTest, WhatIsRegisteredWhileMemoryGoesBackIsStaleAfterwards) {
  constexpr std::size_t kBlock = std::size_t{256} << 10;
  RegistrationCache& kept = cache();
  SharedHeap* heap = *SharedHeap::instance();
  void* block = *heap->allocate(kBlock);
  EXPECT_FALSE(heap->allocate(heap->reservedBytes()).isOk());  // memory freed earlier goes first
  heap->free(*heap->allocate(kBlock));                         // in the same 2 MiB
  Registration* made = nullptr;
  beforeHole = [&] { made = pin(kept, block, kBlock, false, nullptr); };
  EXPECT_FALSE(heap->allocate(heap->reservedBytes()).isOk());
  ASSERT_NE(made, nullptr);
  EXPECT_FALSE(kept.isReady(block, kBlock, false));
  kept.unpin(made);
  heap->free(block);
}

}  // namespace
}  // namespace shardwire::internal

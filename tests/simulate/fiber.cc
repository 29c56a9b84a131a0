#include "tests/simulate/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <utility>
#include <vector>

#include "shardwire/status.h"

namespace shardwire::simulate {
namespace {

constexpr std::size_t kStackBytes = std::size_t{1} << 20;
constexpr std::size_t kGuardBytes = std::size_t{64} << 10;  // below the stack: an overflow ends the process

// Stacks are used again: a simulation makes a few, and a process runs thousands of simulations.
std::vector<std::byte*>& spareStacks() {
  static std::vector<std::byte*> stacks;
  return stacks;
}

std::byte* takeStack() {
  if (!spareStacks().empty()) {
    std::byte* const stack = spareStacks().back();
    spareStacks().pop_back();
    return stack;
  }
  void* const stack =
      ::mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  SW_CHECK(stack != MAP_FAILED);
  SW_CHECK(::mprotect(stack, kGuardBytes, PROT_NONE) == 0);
  return static_cast<std::byte*>(stack);
}

}  // namespace

Fiber::Fiber(std::function<void()> body) : body_(std::move(body)), stack_(takeStack()) {
  SW_CHECK(::getcontext(&here_) == 0);
  here_.uc_stack.ss_sp = stack_ + kGuardBytes;
  here_.uc_stack.ss_size = kStackBytes - kGuardBytes;
  here_.uc_link = &caller_;
  const auto self = reinterpret_cast<std::uintptr_t>(this);
  // makecontext passes ints only.
  ::makecontext(&here_, reinterpret_cast<void (*)()>(&Fiber::start), 2, static_cast<unsigned>(self),
                static_cast<unsigned>(std::uint64_t{self} >> 32));
}

Fiber::~Fiber() {
  SW_CHECK(isOver_);
  spareStacks().push_back(stack_);
}

void Fiber::start(unsigned low, unsigned high) {
  reinterpret_cast<Fiber*>(static_cast<std::uintptr_t>(low | std::uint64_t{high} << 32))->run();
}

void Fiber::run() {
  body_();
  body_ = nullptr;
  isOver_ = true;
}

void Fiber::resume() {
  SW_CHECK(!isOver_);
  ::swapcontext(&caller_, &here_);
}

void Fiber::pause() {
  ::swapcontext(&here_, &caller_);
}

}  // namespace shardwire::simulate

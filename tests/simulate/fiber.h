// A function with a separate stack, which pauses and goes on at the same place: the calling thread of a simulated rank.
// All fibers run on one thread.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <functional>
#include <memory>

namespace shardwire::simulate {

class Fiber {
 public:
  explicit Fiber(std::function<void()> body);
  ~Fiber();  // the body has ended
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Runs the body until its next pause, or its end.
  void resume();
  // Called by the body.
  void pause();
  bool isOver() const { return isOver_; }

 private:
  static void start(unsigned low, unsigned high);
  void run();

  std::function<void()> body_;
  std::byte* const stack_;
  ucontext_t here_{};
  ucontext_t caller_{};
  bool isOver_ = false;
};

}  // namespace shardwire::simulate

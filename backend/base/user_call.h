// Calls of what a user supplied (a callback, a hook) where an exception has nowhere to go: on whichever thread notices the end of an
// operation, with the callbacks of other operations still to be run.
#pragma once

#include <cxxabi.h>

#include <exception>
#include <string_view>
#include <utility>

#include "backend/base/log.h"

namespace shardwire::internal {

// What `call` throws is logged and goes no further, but for the end of the thread itself: Python ends a thread in this way that asks for
// its lock while the interpreter goes down, and the C++ library ends the process when that is held up.
template <typename Call>
void callUser(std::string_view what, Call&& call) {
  try {
    std::forward<Call>(call)();
  } catch (const abi::__forced_unwind&) {
    throw;
  } catch (const std::exception& error) {
    logError("{} raised an exception, which changes nothing for the operation: {}", what, error.what());
  } catch (...) {
    logError("{} raised something that is no std::exception, which changes nothing for the operation", what);
  }
}

}  // namespace shardwire::internal

// Calls of what a user supplied (a callback, a hook) where an exception has nowhere to go: on whichever thread notices
// the end of an operation, with the callbacks of other operations still to be run.
#pragma once

#include <cxxabi.h>

#include <exception>
#include <string_view>
#include <utility>

#include "backend/base/log.h"

namespace shardwire::internal {

// An exception thrown by `call` is logged and not passed on, except the forced end of the thread itself. Python ends a
// thread in this way when the thread requests the GIL during interpreter shutdown, and the C++ library ends the process
// when a forced end is caught.
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

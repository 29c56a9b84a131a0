// The membership of a group as a Python object (shardwire/survive/members.py). An exception of Python becomes the
// StatusError of the same class, since torch's code, which calls the group, lies in between.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "backend/c10d/membership.h"
#include "python/csrc/bindings.h"
#include "shardwire/status_error.h"

namespace shardwire::python {

class PyMembership final : public internal::Membership {
 public:
  explicit PyMembership(py::object membership) : membership_(std::move(membership)) {}
  ~PyMembership() override {
    if (Py_IsInitialized() == 0) {  // torch's table of groups outlives Python where a program destroys no group
      membership_.release();
      return;
    }
    const py::gil_scoped_acquire gil;
    membership_ = py::object();
  }
  PyMembership(const PyMembership&) = delete;
  PyMembership& operator=(const PyMembership&) = delete;

  std::string handle() const override {
    return call([&] { return membership_.attr("handle")().cast<std::string>(); });
  }
  void check(std::int64_t uuid, const std::vector<std::string>& handles) override {
    call([&] { membership_.attr("check")(uuid, handles); });
  }
  Place meet(std::chrono::milliseconds timeout) override {
    return call([&] {
      const py::tuple place = membership_.attr("meet")(timeout);
      return Place{place[0].cast<c10::intrusive_ptr<::c10d::Store>>(), place[1].cast<int>(), place[2].cast<int>()};
    });
  }
  void isMade() override {
    call([&] { membership_.attr("is_made")(); });
  }

 private:
  template <typename Call>
  static auto call(Call&& ask) -> decltype(ask()) {
    const py::gil_scoped_acquire gil;
    try {
      return ask();
    } catch (py::error_already_set& error) {
      throw StatusError(statusOf(error.value()));
    }
  }

  py::object membership_;
};

}  // namespace shardwire::python

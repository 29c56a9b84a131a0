// libshardwire_mpi.so: MpiApi over the MPI library of the build. Only the module includes <mpi.h>.
#include <fmt/format.h>
#include <mpi.h>

#include <atomic>
#include <string_view>

#include "backend/transport/mpi/module/mpi_operations.h"
#include "shardwire/export.h"

namespace shardwire::internal {
namespace {

// Closed when MPI_Finalize begins, by any caller: MPI_Finalize first deletes the attributes of MPI_COMM_SELF.
MpiCalls calls;

int noteFinalise(MPI_Comm, int, void*, void*) {
  calls.close();
  return MPI_SUCCESS;
}

const char* threadLevelName(int level) {
  switch (level) {
    case MPI_THREAD_SINGLE:
      return "MPI_THREAD_SINGLE";
    case MPI_THREAD_FUNNELED:
      return "MPI_THREAD_FUNNELED";
    case MPI_THREAD_SERIALIZED:
      return "MPI_THREAD_SERIALIZED";
    default:
      return "MPI_THREAD_MULTIPLE";
  }
}

// No message of the program can match this tag: creating a communicator uses internal messages.
constexpr int kPairTag = 0x5357;

class Api final : public MpiApi {
 public:
  std::string library() const override {
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    MPI_Get_library_version(text, &length);
    return std::string(text, static_cast<std::size_t>(length)).substr(0, std::string_view(text).find_first_of(",\n"));
  }

  MpiState state() const override {
    MpiState state;
    int flag = 0;
    MPI_Initialized(&flag);
    state.isInitialised = flag != 0;
    MPI_Finalized(&flag);
    state.isFinalised = flag != 0 || calls.isClosed();
    if (state.isInitialised && !state.isFinalised) {
      int level = MPI_THREAD_SINGLE;
      MPI_Query_thread(&level);
      state.isThreadMultiple = level == MPI_THREAD_MULTIPLE;
      state.threadLevel = threadLevelName(level);
      MPI_Comm_rank(MPI_COMM_WORLD, &state.rank);
      MPI_Comm_size(MPI_COMM_WORLD, &state.size);
    }
    return state;
  }

  Status initialise() override {
    int level = MPI_THREAD_SINGLE;
    const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
    if (code == MPI_SUCCESS) {
      MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    }
    return mpiStatus("MPI_Init_thread", code);
  }

  void finalise() override { MPI_Finalize(); }

  int mostTag() const override {
    int* most = nullptr;
    int flag = 0;
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &most, &flag);
    return flag != 0 ? *most : 32767;  // the minimum of the MPI standard
  }

  Result<MpiPair*> makePair(int worldRank) override {
    watchForFinalise();
    int self = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &self);
    const int ranks[] = {std::min(self, worldRank), std::max(self, worldRank)};
    MPI_Group world = MPI_GROUP_NULL;
    MPI_Group two = MPI_GROUP_NULL;
    MPI_Comm communicator = MPI_COMM_NULL;
    SW_RETURN_IF_ERROR(mpiStatus("MPI_Comm_group", MPI_Comm_group(MPI_COMM_WORLD, &world)));
    SW_RETURN_IF_ERROR(mpiStatus("MPI_Group_incl", MPI_Group_incl(world, 2, ranks, &two)));
    const int code = MPI_Comm_create_group(MPI_COMM_WORLD, two, kPairTag, &communicator);
    MPI_Group_free(&two);
    MPI_Group_free(&world);
    SW_RETURN_IF_ERROR(mpiStatus("MPI_Comm_create_group", code));
    MPI_Comm_set_errhandler(communicator, MPI_ERRORS_RETURN);
    return new CommunicatorPair(communicator, worldRank > self ? 1 : 0);  // never freed: lives as long as MPI
  }

  std::unique_ptr<MpiOperations> makeOperations() override { return internal::makeOperations(&calls); }

  Status broadcast(std::string* bytes) override {
    unsigned long long size = bytes->size();
    SW_RETURN_IF_ERROR(mpiStatus("MPI_Bcast", MPI_Bcast(&size, 1, MPI_UNSIGNED_LONG_LONG, 0, MPI_COMM_WORLD)));
    bytes->resize(size);
    return mpiStatus("MPI_Bcast", MPI_Bcast(bytes->data(), static_cast<int>(size), MPI_BYTE, 0, MPI_COMM_WORLD));
  }

 private:
  void watchForFinalise() {
    if (isWatching_.exchange(true)) {
      return;
    }
    int key = MPI_KEYVAL_INVALID;
    MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, noteFinalise, &key, nullptr);
    MPI_Comm_set_attr(MPI_COMM_SELF, key, nullptr);
  }

  std::atomic<bool> isWatching_{false};
};

}  // namespace

Status mpiStatus(const char* what, int code) {
  if (code == MPI_SUCCESS) {
    return Status::ok();
  }
  return {StatusCode::kSystem, fmt::format("{}: {}", what, mpiErrorText(code))};
}

std::string mpiErrorText(int code) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) {
    return fmt::format("error {}", code);
  }
  return {text, static_cast<std::size_t>(length)};
}

}  // namespace shardwire::internal

extern "C" SHARDWIRE_EXPORT shardwire::internal::MpiApi* shardwireMpiModule(std::uint32_t version) {
  static shardwire::internal::Api api;
  return version == shardwire::internal::kMpiApiVersion ? &api : nullptr;
}

#pragma once
// An MPI operation in flight. Includes <mpi.h>: only for mpi.cpp.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "parallel/comm/arguments.h"
#include "parallel/comm/mpi_types.h"
#include "parallel/comm/shared_driver.h"

namespace trireme {

/// Throws InternalError unless `code` is MPI_SUCCESS. `place`: "group 'tensor', rank 1 of 2".
inline void check_mpi(int code, const char* call, const std::string& place) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw InternalError(concat(call, " failed (", place, "): ", text));
}

/// The requests of one verb, with the buffers they use.
class MpiOperation final : public Work::Operation {
 public:
  /// `driver` may be null.
  MpiOperation(const char* verb, std::string place, std::vector<Tensor> buffers, std::shared_ptr<SharedDriver> driver)
      : verb_(verb), place_(std::move(place)), buffers_(std::move(buffers)), driver_(std::move(driver)) {
    if (driver_) ++driver_->polled;
  }

  ~MpiOperation() override {
    if (driver_) --driver_->polled;
    // Dropped by an exception while MPI may still write into the buffers: they must never be reused.
    if (requests_.empty()) return;
    static auto* const lost = new std::vector<Tensor>;
    lost->insert(lost->end(), buffers_.begin(), buffers_.end());
    lost->push_back(copy_from_);
  }

  void wait(Context& /*ctx*/) override { finish(); }
  bool ready() override {
    if (driver_ && driver_->busy()) driver_->advance();
    statuses_.resize(requests_.size());
    for (int done = 0; completed_ < requests_.size() && error_ == MPI_SUCCESS; ++completed_) {
      error_ = MPI_Test(&requests_[completed_], &done, &statuses_[completed_]);
      if (error_ != MPI_SUCCESS) break;
      if (done == 0) return false;
    }
    return true;
  }
  void finish() {
    statuses_.resize(requests_.size());
    // One by one, since any wait progresses all: MPI_Waitall of Open MPI 4.1 never returns if a message that is too long arrives during it.
    for (size_t i = 0; i < requests_.size(); ++i) {
      const bool tested = i < completed_ || (i == completed_ && error_ != MPI_SUCCESS);
      const int code = !tested ? wait_for(requests_[i], statuses_[i]) : i < completed_ ? MPI_SUCCESS : error_;
      check_parts(i, code, statuses_[i]);
      check_mpi(code, verb_, place_);
    }
    requests_.clear();
    for (const Receive& receive : receives_) {
      const int64_t count = count_of(statuses_[receive.request], receive);
      TRIREME_CHECK(count == receive.count, "a message from rank ", receive.source, " is shorter than its receive: ", count, " elements instead of ",
                    receive.count, " (", place_, ")");
    }
    if (copy_from_.defined()) copy_elements(copy_from_, copy_to_);
  }

  /// Runs `call(&request)`, which starts one nonblocking MPI call.
  template <class Call>
  void start(const char* name, const Call& call) {
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(call(&request), name, place_);
    requests_.push_back(request);
  }
  /// Declares that the request started last is a receive of exactly `count` elements of `type`, a predefined MPI type, from `source`.
  void expect(int64_t count, MPI_Datatype type, int source) { receives_.push_back({requests_.size() - 1, count, type, source, -1}); }
  /// The same for the part of an all_to_all that `source` sends to `destination`, this rank.
  void expect_part(int64_t count, MPI_Datatype type, int source, int destination) {
    receives_.push_back({requests_.size() - 1, count, type, source, destination});
  }
  void copy_when_done(const Tensor& from, const Tensor& to) {
    copy_from_ = from;
    copy_to_ = to;
  }

 private:
  /// Progresses operations in shared memory meanwhile, because other ranks may wait for this rank's share of them.
  int wait_for(MPI_Request& request, MPI_Status& status) const {
    while (driver_ && driver_->busy()) {
      int done = 0;
      const int code = MPI_Test(&request, &done, &status);
      if (code != MPI_SUCCESS || done != 0) return code;
      driver_->advance();
    }
    return MPI_Wait(&request, &status);
  }

  struct Receive {
    size_t request;
    int64_t count;
    MPI_Datatype type;
    int source, destination;  ///< `destination`: -1 for a message that is not a part of an all_to_all
  };

  static int64_t count_of(const MPI_Status& status, const Receive& receive) {
    MPI_Count count = 0;
    MPI_Get_elements_x(&status, receive.type, &count);
    return count;
  }

  /// Throws if a part is longer or shorter than expected. Open MPI reports the original length of a truncated message.
  void check_parts(size_t request, int code, const MPI_Status& status) const {
    const auto receive = std::ranges::find(receives_, request, &Receive::request);
    if (receive == receives_.end()) return;
    int error = code;
    if (code != MPI_SUCCESS) MPI_Error_class(code, &error);
    if (error != MPI_SUCCESS && error != MPI_ERR_TRUNCATE) return;
    const int64_t count = count_of(status, *receive);
    if (receive->destination < 0) {
      TRIREME_CHECK(error == MPI_SUCCESS, "a message from rank ", receive->source, " is longer than its receive: ", count, " elements instead of ",
                    receive->count, " (", place_, ")");
      return;
    }
    TRIREME_CHECK(error == MPI_SUCCESS || count > receive->count, verb_, ": rank ", receive->source, " sends more elements to rank ",
                  receive->destination, " than the ", receive->count, " it expects (", place_, ")");
    TRIREME_CHECK(count == receive->count, count_mismatch(receive->source, count, receive->destination, receive->count), " (", place_, ")");
  }

  const char* verb_;
  std::string place_;
  std::vector<Tensor> buffers_;
  std::shared_ptr<SharedDriver> driver_;
  std::vector<MPI_Request> requests_;
  std::vector<MPI_Status> statuses_;  ///< one for each completed request
  size_t completed_ = 0;              ///< requests that ready() has found completed, in order
  int error_ = MPI_SUCCESS;           ///< what MPI_Test returned for the next request
  std::vector<Receive> receives_;
  Tensor copy_from_, copy_to_;
};

}  // namespace trireme

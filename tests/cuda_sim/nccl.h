#pragma once
// The simulated NCCL, as tests see it. Ranks are threads, each with its own GPU. It is stricter than the real NCCL:
//  - Operations overlap and end in any order, but it must be possible to run them one after the other on each device, in issue order across all
//    communicators. An order that could deadlock this way is an error as soon as it is issued, independent of timing.
//  - It is an error if ranks disagree on operation, count, dtype, reduction or root, if a rank leaves while others wait for it, if a buffer is not
//    memory of the device, if ranks create a communicator with different limits of blocks, or if a device has two communicators without
//    NCCL_LAUNCH_ORDER_IMPLICIT=1.
//  - ncclCommAbort, ncclCommFinalize and ncclCommDestroy block until all that is queued on the communicator's streams is over. Within a group they
//    return, and ncclGroupEnd blocks. A stream that waits for another communicator, whose abort flag is not raised yet, therefore blocks an abort.
//  - A communicator that has registrations accepts only operations whose buffers they cover. It is an error if the ranks of an operation disagree on it,
//    if memory that does not come from ncclMemAlloc is registered, if memory is deregistered while an operation of the communicator is in flight, and if
//    memory is freed or a communicator destroyed before the deregistration. An abort ends the registrations.
//  - When an operation may begin, its outputs (including in-place buffers) are filled with 0xFF bytes until it ends: reading them without waiting
//    gives NaN. Writing to an output or changing an input in the meantime is an error.
// An error is printed on stderr, becomes the asynchronous error of all ranks of the communicator, and fails the devices that wait in it. Sums are
// computed in rank order, as by rank threads on the host.
#include <set>
#include <string>

namespace cuda_sim {

/// Simulates a broken link: the communicators of that name get an asynchronous ncclSystemError on every rank.
void break_communicators(const std::string& name);
/// Number of communicators of all ranks that are initialised and neither destroyed nor aborted.
int live_communicators();
/// What ncclCommRegister does from now on: register; fail on this device; or, on this device, succeed without registering anything, as with
/// NCCL_LOCAL_REGISTER=0. A device of -1: on all.
enum class Registration { kWorks, kFails, kSkipped };
void set_registration(Registration behaviour, int device = -1);
/// ncclMemAlloc fails from now on, or not.
void set_mem_alloc_fails(bool fails);
/// Registrations of all communicators that are not deregistered.
int live_registrations();
/// Operations issued so far whose buffers were registered, and all others.
struct IssuedOperations {
  int64_t registered = 0, others = 0;
};
IssuedOperations issued_operations();

/// The different values of maxCTAs of these communicators; NCCL_CONFIG_UNDEF_INT where it is not set.
std::set<int> communicator_blocks();

}  // namespace cuda_sim

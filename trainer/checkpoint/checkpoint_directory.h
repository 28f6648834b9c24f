#pragma once
// <run.directory>/checkpoints as a place: what its names mean, how a checkpoint gets its own, and what is cleared away.
#include <cstdint>
#include <filesystem>
#include <string>

#include "trainer/checkpoint/manifest.h"

namespace trireme {

/// A number that sorts as text: zeros before it up to so many digits.
std::string padded(int64_t number, size_t digits);

/// Where save number `number` of a session is written until it is whole: step-00000100.<session>-<number>.partial
std::filesystem::path partial_directory(const std::filesystem::path& directory, int64_t step, const std::string& session, int64_t number);

/// Gives a whole checkpoint its name, durably. One that stands there already is exchanged for it, so that at no moment there is neither; it is then what
/// `partial` holds. Errors: IoError.
void move_into_place(const std::filesystem::path& partial, const std::filesystem::path& target);

/// Removes the checkpoints before the `keep` newest whole ones up to that of `newest`, which was saved last (0 = none). Those that cannot be read do not count,
/// so that no number of them pushes out a whole one. While steps are rejected, the last ones from before the rejections stay too. What cannot be removed stays
/// for the next time.
void remove_old_checkpoints(const std::filesystem::path& directory, const CheckpointDescription& newest, int64_t keep,
                            const std::string& session) noexcept;

/// Removes what saves of `session` up to `number` have left unpublished; another may be under way. What cannot be removed stays.
void remove_partials(const std::filesystem::path& directory, const std::string& session, int64_t number) noexcept;

}  // namespace trireme

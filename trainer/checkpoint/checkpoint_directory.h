#pragma once
// The directory <run.directory>/checkpoints: naming scheme, publishing of a checkpoint, and clean-up.
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "trainer/checkpoint/checkpoint.h"

namespace trireme {

/// `number` with leading zeros up to `digits` digits, so that it sorts as text.
std::string padded(int64_t number, size_t digits);

/// Directory of save number `number` of a session until it is complete: `step-00000100.<session>-<number>.partial`
std::filesystem::path partial_directory(const std::filesystem::path& directory, int64_t step, const std::string& session, int64_t number);

/// Gives a complete checkpoint its final name, durably. An existing `target` is exchanged with `partial`, so that one of the two exists under that
/// name at any moment; `partial` then contains the old one. Errors: IoError.
void move_into_place(const std::filesystem::path& partial, const std::filesystem::path& target);

/// Removes all checkpoints up to `newest`, the last one saved, except the newest complete ones and those that `retention` keeps besides. Unreadable
/// checkpoints do not count towards `keep`, so they never displace a complete one. While steps are being rejected, the last checkpoints from before
/// the rejections are kept too. What cannot be removed is retried at the next call.
void remove_old_checkpoints(const std::filesystem::path& directory, const CheckpointDescription& newest, const Retention& retention,
                            const std::string& session) noexcept;

/// The description of `checkpoint`; nullopt if it is incomplete or named after a different step.
std::optional<CheckpointDescription> description_of(const std::filesystem::path& checkpoint);

/// Removes unpublished leftovers of the saves of `session` up to `number`; a later save may be in progress. Errors are ignored.
void remove_partials(const std::filesystem::path& directory, const std::string& session, int64_t number) noexcept;

}  // namespace trireme

#pragma once
#include <filesystem>
#include <string>

namespace trireme {

/// SHA-256 of a complete file in hexadecimal, which, unlike that of Digest, a changed file cannot be made to keep. 0.2 to 0.3 GB/s on one core.
/// Errors: those of RandomAccessFile; ConfigError in a build without libsodium.
std::string sha256_of_file(const std::filesystem::path& path);

}  // namespace trireme

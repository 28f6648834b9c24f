#pragma once
#include <string>

namespace trireme::cuda {

/// UUID of a visible GPU or MIG instance, 32 hexadecimal digits. The MIG instances of a GPU have its PCI address and UUIDs of their own.
/// Errors: ConfigError in a build without CUDA.
std::string gpu_uuid(int index);

}  // namespace trireme::cuda

#pragma once
// Files and folders of other programs, recognised so that a wrong path is named for what it is.
#include <filesystem>
#include <string>

namespace trireme {

/// What a file is and what to do with it: "is a GGUF file of llama.cpp, not a folder; ...", by its first bytes and its name. Empty: unknown, or no
/// file. A predicate: the caller puts the path before it.
std::string foreign_file(const std::filesystem::path& path);

/// What a folder is that is no model folder itself, and what to do: "is a Hugging Face cache; name the folder of a snapshot: ...". Empty: unknown, or no
/// folder.
std::string foreign_folder(const std::filesystem::path& path);

/// Either.
std::string foreign_path(const std::filesystem::path& path);

}  // namespace trireme

#include "trainer/config/include.h"

#include <algorithm>
#include <filesystem>

#include "kernels/core/check.h"
#include "trainer/config/bind.h"
#include "trainer/config/tree.h"

namespace trireme {

namespace fs = std::filesystem;

namespace {

constexpr const char* kInclude = "include";

/// Overrides `base` by `over`, key by key.
void merge_into(YamlNode& base, YamlNode over) {
  using Kind = YamlNode::Kind;
  for (YamlNode& child : over.children) {
    const auto found = std::ranges::find(base.children, child.key, &YamlNode::key);
    if (found == base.children.end()) {
      base.children.push_back(std::move(child));
    } else if (child.kind == Kind::kMapping && found->kind == Kind::kMapping) {
      merge_into(*found, std::move(child));
    } else if (child.kind != Kind::kNull || found->kind != Kind::kMapping) {  // an empty section overrides nothing
      *found = std::move(child);
    }
  }
  base.at = over.at;
  base.key_at = over.key_at;
}

class Includes {
 public:
  Includes(Sources& sources, Violations& violations) : sources_(sources), violations_(violations) {}

  /// Merges the files that `root`, the tree of the file at `path`, includes into it.
  void expand(YamlNode& root, const fs::path& path) {
    const auto include = std::ranges::find(root.children, kInclude, &YamlNode::key);
    if (root.kind != YamlNode::Kind::kMapping || include == root.children.end()) return;
    open_.push_back(path);
    YamlNode merged{.kind = YamlNode::Kind::kMapping};
    for (const YamlNode* item : paths_of(*include)) merge_into(merged, read(*item, path));
    open_.pop_back();
    std::erase_if(root.children, [](const YamlNode& child) { return child.key == kInclude; });
    merge_into(merged, std::move(root));
    root = std::move(merged);
  }

 private:
  [[noreturn]] void refuse(const YamlNode& node, const std::string& rule, const std::string& allowed = {}) {
    violations_.add({node.at, kInclude, node.kind == YamlNode::Kind::kScalar ? node.text : "", rule, allowed});
    violations_.raise(sources_);
    throw InternalError("a violation was not raised");
  }

  std::vector<const YamlNode*> paths_of(const YamlNode& include) {
    if (include.kind == YamlNode::Kind::kRefused) return {};
    std::vector<const YamlNode*> paths = {&include};
    if (include.kind == YamlNode::Kind::kSequence) {
      paths.clear();
      for (const YamlNode& item : include.children) paths.push_back(&item);
    }
    if (paths.empty()) refuse(include, "an empty list", kAllowed);
    for (const YamlNode* path : paths) {
      if (path->kind != YamlNode::Kind::kScalar || path->text.empty()) refuse(*path, "not a path", kAllowed);
      if (const std::string control = control_character_in(path->text); !control.empty()) refuse(*path, control + " in the path", kAllowed);
    }
    return paths;
  }

  /// The tree of the file that `item` of the file `including` names, with what that file includes.
  YamlNode read(const YamlNode& item, const fs::path& including) {
    const fs::path path = including.parent_path() / item.text;
    check(item, path);
    std::string text;
    try {
      text = read_yaml_file(path.string(), "configuration file");
    } catch (const MissingFileError& error) {
      throw MissingFileError(concat(sources_.name_of(item.at), " include=", item.text, ": ", error.what()));
    } catch (const IoError& error) {
      throw IoError(concat(sources_.name_of(item.at), " include=", item.text, ": ", error.what()));
    }
    sources_.included.push_back(path.string());
    YamlNode root = parse_yaml(text, -static_cast<int>(sources_.included.size()), sources_, violations_);
    require_sections(root, "a configuration file", sources_, violations_);
    expand(root, path);
    return root;
  }

  void check(const YamlNode& item, const fs::path& path) {
    std::error_code error;
    if (fs::exists(path, error) && !fs::is_regular_file(path, error)) refuse(item, "not a regular file", kAllowed);  // every rank reads it again
    const auto same = [&](const fs::path& other) { return fs::equivalent(path, other, error); };
    if (const auto first = std::ranges::find_if(open_, same); first != open_.end()) {
      std::string cycle;
      for (auto file = first; file != open_.end(); ++file) cycle += file->string() + " -> ";
      refuse(item, concat("the file includes itself: ", cycle, path.string()));
    }
    if (open_.size() > kMaxIncludeDepth) refuse(item, concat("included more than ", kMaxIncludeDepth, " files deep"));
    if (sources_.included.size() == kMaxIncludedFiles) refuse(item, concat("more than ", kMaxIncludedFiles, " files are included"));
  }

  static constexpr const char* kAllowed = "path of a configuration file, relative to this one, or a list of paths";

  Sources& sources_;
  Violations& violations_;
  std::vector<fs::path> open_;  ///< the files whose includes are being read, outermost first
};

}  // namespace

void expand_includes(YamlNode& root, Sources& sources, Violations& violations) { Includes(sources, violations).expand(root, sources.file); }

}  // namespace trireme

#include "trainer/tokenizer/companions.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <set>

#include "trainer/files/durable_file.h"
#include "trainer/files/strict_json.h"
#include "trainer/tokenizer/json_parts.h"
#include "trainer/tokenizer/tokenizer_json.h"

namespace trireme {

namespace fs = std::filesystem;
using nlohmann::json;

const std::vector<std::string> kCompanionNames = {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "generation_config.json",
                                                  "chat_template.jinja"};

namespace {

constexpr int64_t kMostBytes = int64_t{1} << 26;
constexpr int64_t kMostId = std::numeric_limits<int32_t>::max();

/// An empty object if there is no such file.
json object_in(const fs::path& folder, const char* name) {
  std::error_code unreadable;
  const fs::path path = folder / name;
  if (!fs::is_regular_file(path, unreadable)) return json::object();
  return parse_object(read_text(path, kMostBytes), path.string(), ControlCharacters::kInKeys);
}

/// The model's config.json. Other programs have files of that name, which are not read here.
json model_config(const fs::path& folder) {
  std::error_code unreadable;
  const fs::path path = folder / "config.json";
  if (!fs::is_regular_file(path, unreadable)) return json::object();
  try {
    json root = parse_object(read_text(path, kMostBytes), path.string());
    return root.contains("model_type") ? root : json::object();
  } catch (const DataError&) {
    return json::object();
  }
}

/// A token that is named by its text, or by an object with its text.
std::optional<std::string> token_name(const json& root, const std::string& key, const std::string& where) {
  if (is_null(root, key)) return std::nullopt;
  return root.at(key).is_object() ? string_member(root.at(key), "content", where) : string_member(root, key, where);
}

void append_ids(const json& root, const std::string& key, const std::string& where, std::vector<int64_t>& ids) {
  if (is_null(root, key)) return;
  const json& value = root.at(key);
  const std::string here = concat(where, ": \"", key, "\"");
  for (const json& id : value.is_array() ? value : json::array({value})) ids.push_back(integer(id, here, 0, kMostId));
}

/// The texts in a special_tokens_map.json.
std::set<std::string> special_names(const json& map) {
  std::set<std::string> names;
  const auto take = [&](const json& value) {
    if (value.is_string()) names.insert(value.get<std::string>());
    if (value.is_object() && value.contains("content") && value.at("content").is_string()) names.insert(value.at("content").get<std::string>());
  };
  for (const auto& [key, value] : map.items()) {
    if (!value.is_array()) take(value);
    if (value.is_array())
      for (const json& one : value) take(one);
  }
  return names;
}

std::vector<AddedToken> added_tokens(const json& config, const json& names, const json& special, const fs::path& folder) {
  std::vector<AddedToken> added;
  const std::string where = concat((folder / "tokenizer_config.json").string(), ": \"added_tokens_decoder\"");
  if (!is_null(config, "added_tokens_decoder")) {
    for (const auto& [number, entry] : object_member(config, "added_tokens_decoder", where).items()) {
      int32_t id = -1;
      const auto read = std::from_chars(number.data(), number.data() + number.size(), id);
      if (read.ec != std::errc{} || read.ptr != number.data() + number.size() || id < 0)
        throw DataError(concat(where, ": ", json(number).dump(), " is not an id"));
      added.push_back(parse_added_token(entry, id, where));
    }
  } else {
    const std::set<std::string> specials = special_names(special);
    const std::string file = (folder / "added_tokens.json").string();
    for (const auto& [content, id] : names.items()) {
      if (content.empty()) throw DataError(concat(file, ": an added token is empty"));
      const bool is_special = specials.contains(content);
      const auto number = static_cast<int32_t>(integer(id, concat(file, ": ", json(content).dump()), 0, kMostId));
      added.push_back({.content = content, .id = number, .special = is_special, .normalized = !is_special});
    }
  }
  std::sort(added.begin(), added.end(), [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  return added;
}

std::optional<double> number(const json& root, const std::string& key, double least, double most, const std::string& where) {
  if (is_null(root, key)) return std::nullopt;
  const json& value = root.at(key);
  if (!value.is_number() || !(value.get<double>() >= least && value.get<double>() <= most))
    throw DataError(concat(where, ": \"", key, "\" is ", value.dump(-1, ' ', true).substr(0, 60), "; allowed ", least, " to ", most));
  return value.get<double>();
}

GenerationDefaults sampling_of(const json& root, const std::string& where) {
  GenerationDefaults made;
  made.temperature = number(root, "temperature", 0, 1e6, where);
  made.top_p = number(root, "top_p", 0, 1, where);
  if (!is_null(root, "top_k")) made.top_k = integer_member(root, "top_k", where);
  if (!flag(root, "do_sample", true, where)) made.temperature = 0;
  for (const auto& [key, neutral] : {std::pair("repetition_penalty", 1.0), std::pair("typical_p", 1.0), std::pair("min_p", 0.0)})
    if (const std::optional<double> value = number(root, key, 0, 1e6, where); value && *value != neutral) made.ignored.emplace_back(key);
  return made;
}

}  // namespace

TokenizerCompanions read_companions(const fs::path& folder) {
  TokenizerCompanions made;
  const json config = object_in(folder, "tokenizer_config.json"), special = object_in(folder, "special_tokens_map.json"),
             generation = object_in(folder, "generation_config.json"), model = model_config(folder);
  const auto path = [&](const char* name) { return (folder / name).string(); };
  made.added = added_tokens(config, object_in(folder, "added_tokens.json"), special, folder);
  for (const auto& [root, name] : {std::pair(&config, "tokenizer_config.json"), std::pair(&special, "special_tokens_map.json")}) {
    if (!made.end && (made.end = token_name(*root, "eos_token", path(name)))) made.end_file = path(name);
    if (!made.begin) made.begin = token_name(*root, "bos_token", path(name));
  }
  for (const auto& [root, name] : {std::pair(&generation, "generation_config.json"), std::pair(&model, "config.json")}) {
    append_ids(*root, "eos_token_id", path(name), made.end_ids);
    append_ids(*root, "bos_token_id", path(name), made.begin_ids);
  }
  made.spaces_after_added = is_null(config, "legacy") || flag(config, "legacy", true, path("tokenizer_config.json"));
  made.sampling = sampling_of(generation, path("generation_config.json"));
  return made;
}

std::map<std::string, std::string> companion_copies(const fs::path& folder) {
  constexpr const char* kGeneration = "generation_config.json";
  std::map<std::string, std::string> texts;
  std::error_code ignored;
  for (const std::string& name : kCompanionNames)
    if (fs::is_regular_file(folder / name, ignored)) texts[name] = read_text(folder / name);
  const TokenizerCompanions all = read_companions(folder);
  nlohmann::ordered_json generation =
      texts.contains(kGeneration) ? parse_value<nlohmann::ordered_json>(texts[kGeneration], kGeneration) : nlohmann::ordered_json::object();
  for (const auto& [key, ids] : {std::pair("eos_token_id", &all.end_ids), std::pair("bos_token_id", &all.begin_ids)}) {
    std::vector<int64_t> known;
    append_ids(json(generation), key, kGeneration, known);
    std::vector<int64_t> different;  // without repetitions
    for (const int64_t id : *ids)
      if (std::find(different.begin(), different.end(), id) == different.end()) different.push_back(id);
    if (std::all_of(different.begin(), different.end(), [&](int64_t id) { return std::find(known.begin(), known.end(), id) != known.end(); }))
      continue;
    generation[key] = different.size() == 1 ? nlohmann::ordered_json(different.front()) : nlohmann::ordered_json(different);
    texts[kGeneration] = generation.dump(2) + "\n";
  }
  return texts;
}

}  // namespace trireme

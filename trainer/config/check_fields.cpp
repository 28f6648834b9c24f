#include "trainer/config/check_fields.h"

#include <algorithm>
#include <cmath>

#include "kernels/core/check.h"

namespace trireme {
namespace {

/// The closer end of the range; empty if the range excludes that end.
std::string nearest_in_field(const FieldRow& row, double value) {
  const double clamped = std::clamp(value, row.field.min, row.field.max);
  if ((clamped <= row.field.min && row.field.above_min) || (clamped >= row.field.max && row.field.below_max)) return "";
  return row.type == FieldType::kNumber ? text_of(FieldValue(clamped)) : std::to_string(static_cast<int64_t>(clamped));
}

struct Synonym {
  const char* word;  ///< in lower case
  const char* choice;
};

/// Words of other programs for choices; their spelling does not lead to the choice.
constexpr Synonym kSynonyms[] = {
    {"gpu", "cuda"},
    {"nvidia", "cuda"},
    {"bfloat16", "bf16"},
    {"bf16-mixed", "bf16"},
    {"mixed", "bf16"},
    {"fp8", "bf16"},
    {"int8", "bf16"},
    {"half", "fp16"},
    {"float16", "fp16"},
    {"f16", "fp16"},
    {"16", "fp16"},
    {"float", "fp32"},
    {"float32", "fp32"},
    {"f32", "fp32"},
    {"single", "fp32"},
    {"tf32", "fp32"},
    {"32", "fp32"},
    {"double", "fp64"},
    {"float64", "fp64"},
    {"f64", "fp64"},
    {"64", "fp64"},
    {"gpt", "gpt2"},
    {"gpt-2", "gpt2"},
    {"mistral", "llama"},
    {"qwen", "llama"},
    {"qwen2", "llama"},
    {"qwen3", "llama"},
    {"neox", "gpt_neox"},
    {"gemma", "gemma3"},
    {"gemma3_text", "gemma3"},
    {"pythia", "gpt_neox"},
    {"gelu_new", "gelu_tanh"},
    {"gelu_pytorch_tanh", "gelu_tanh"},
    {"swish", "silu"},
    {"swiglu", "silu"},
    {"geglu", "gelu_tanh"},
};

/// The choice that `text` is another word for, otherwise the one of the closest spelling.
std::string nearest_choice(const Field& field, const std::string& text) {
  std::string word = text;
  for (char& c : word)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  for (const Synonym& synonym : kSynonyms) {
    const bool offered = std::find(field.choices.begin(), field.choices.end(), std::string_view(synonym.choice)) != field.choices.end();
    if (word == synonym.word && offered) return synonym.choice;
  }
  return nearest_word(text, {field.choices.begin(), field.choices.end()});
}

/// Checks range and choices of one key; list items are checked one by one.
void check_field(const FieldRow& row, const Sources& sources, Violations& violations) {
  const auto number = [&](double value, const std::string& shown) {
    const Field& f = row.field;
    const bool inside = value >= f.min && value <= f.max && !(f.above_min && value == f.min) && !(f.below_max && value == f.max);
    if (!inside || !std::isfinite(value))
      violations.add({sources.locate(row.path), row.path, shown, "out of range", allowed_text(f, row.type), nearest_in_field(row, value)});
  };
  if (const auto* integer = std::get_if<int64_t>(&row.value)) number(static_cast<double>(*integer), std::to_string(*integer));
  if (const auto* real = std::get_if<double>(&row.value)) number(*real, text_of(row.value));
  if (const auto* list = std::get_if<std::vector<int64_t>>(&row.value))
    for (const int64_t item : *list) number(static_cast<double>(item), std::to_string(item));
  if (const auto* list = std::get_if<std::vector<double>>(&row.value))
    for (const double item : *list) number(item, text_of(item));
  const auto* text = std::get_if<std::string>(&row.value);
  const auto& choices = row.field.choices;
  if (text == nullptr || choices.empty() || std::find(choices.begin(), choices.end(), *text) != choices.end()) return;
  const std::string note = row.field.note ? concat(" (", row.field.note, ")") : "";
  violations.add({sources.locate(row.path), row.path, *text, "not one of the choices" + note, allowed_text(row.field, row.type),
                  nearest_choice(row.field, *text)});
}

}  // namespace

void check_fields(const FieldTable& table, const Sources& sources, Violations& violations) {
  for (const FieldRow& row : table.fields)
    if (!violations.touch(row.path)) check_field(row, sources, violations);
}

}  // namespace trireme

#include "trainer/huggingface/names.h"

#include <algorithm>

#include "kernels/core/check.h"
#include "trainer/huggingface/families/family.h"
#include "trainer/model/declare.h"

namespace trireme {

using huggingface::Family;
using huggingface::LayerName;
using huggingface::LayerStorage;

namespace {

const LayerName& find(std::span<const LayerName> names, std::string_view layer, const std::string& parameter) {
  const auto found = std::ranges::find(names, layer, &LayerName::layer);
  TRIREME_CHECK(found != names.end(), "parameter ", parameter, " has no name in Hugging Face transformers");
  return *found;
}

struct Translation {
  std::string name;
  LayerStorage storage;
};

/// "blocks.3.mlp.up.weight" -> "model.layers.3.mlp.up_proj.weight".
Translation translate(const std::string& parameter, const Family& family) {
  const size_t last = parameter.rfind('.');
  const std::string kind = parameter.substr(last);  // ".weight" or ".bias"
  const auto result = [&](const std::string& prefix, const LayerName& name) {
    const bool turned = name.storage == LayerStorage::kTransposed && kind != ".weight";
    return Translation{concat(prefix, name.name, kind), turned ? LayerStorage::kPlain : name.storage};
  };
  const std::string layer = parameter.substr(0, last);
  const auto inside = in_block(layer);
  return inside ? result(concat(family.blocks, inside->block, "."), find(family.block_layers, inside->name, parameter))
                : result("", find(family.layers, layer, parameter));
}

}  // namespace

int64_t HuggingFaceTensor::rows() const {
  int64_t sum = 0;
  for (const Part& part : parts) sum += part.shape[0];
  return sum;
}

int64_t HuggingFaceTensor::columns() const { return parts.back().shape[1]; }

std::vector<HuggingFaceTensor> hugging_face_tensors(const ModelConfig& model) {
  const Family& family = huggingface::family_of(model);
  std::vector<HuggingFaceTensor> tensors;
  for (const ParamSpec& spec : whole_model(model)) {
    if (is_adapter(spec.name)) continue;
    auto [name, storage] = translate(spec.name, family);
    const bool transposed = storage == LayerStorage::kTransposed;
    if (tensors.empty() || tensors.back().name != name) tensors.push_back({std::move(name), {}, transposed, {}});
    HuggingFaceTensor& tensor = tensors.back();
    tensor.parts.push_back({spec.name, spec.shape, tensor.rows(), spec.shape[0], 0});
    if (storage == LayerStorage::kByHead) {
      const int64_t layers = std::ssize(tensor.parts);
      for (int64_t i = 0; i < layers; ++i) {
        HuggingFaceTensor::Part& part = tensor.parts[static_cast<size_t>(i)];
        part.run = *model.head_size;
        part.first_row = i * part.run;
        part.stride = layers * part.run;
      }
    }
    tensor.shape = {tensor.rows()};
    if (spec.dims == 2) tensor.shape.insert(transposed ? tensor.shape.begin() : tensor.shape.end(), tensor.columns());
  }
  return tensors;
}

std::string head_name(const ModelConfig& model) { return translate("head.weight", huggingface::family_of(model)).name; }

}  // namespace trireme

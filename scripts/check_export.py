#!/usr/bin/env python3
"""Opens a folder that `trireme checkpoint export` wrote with Hugging Face transformers and compares logits.

    trireme checkpoint export --format hf --output OUT --write-logits LOGITS.json DIR
    python3 scripts/check_export.py OUT LOGITS.json [tolerance, default 1e-4] [--text FILE --ids FILE]

A folder of `--format peft` is opened by PEFT, with the LOGITS.json of the hf export of the same run.

Needs torch (CPU) and transformers, and for adapters peft. The model is loaded with AutoModelForCausalLM, all its weights must come from the folder, and its logits in fp32 on the
tokens of LOGITS.json must be those there. The tokenizer is loaded with AutoTokenizer; with --text and --ids it must turn the first into the second (ids as
`trireme tokenizer encode` prints them).
"""

import argparse
import json
import pathlib
import sys
import warnings

import torch
import transformers


def has_adapters(folder):
    return (pathlib.Path(folder) / "adapter_config.json").exists()


def with_adapters(folder):
    import peft
    base = json.loads((pathlib.Path(folder) / "adapter_config.json").read_text())["base_model_name_or_path"]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="(?i).*(missing|unexpected).*")
        return peft.PeftModel.from_pretrained(transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), folder)


def check_model(folder, path, tolerance):
    expected = json.load(open(path))
    if has_adapters(folder):
        model = with_adapters(folder)
    else:
        model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
        unexpected = {key: sorted(value) for key, value in info.items() if value and key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs")}
        if unexpected:
            sys.exit(f"{folder}: not loaded as it stands: {unexpected}")
    with torch.no_grad():
        logits = model.eval()(torch.tensor([expected["tokens"]])).logits[0]
    wanted = torch.tensor(expected["logits"])
    if logits.shape != wanted.shape:
        sys.exit(f"{folder}: logits of shape {tuple(logits.shape)}, not {tuple(wanted.shape)}")
    difference = (logits - wanted).abs().max().item()
    size = wanted.abs().max().item()
    print(f"{folder}: {type(model).__name__}, {len(expected['tokens'])} tokens, largest logit {size:.4g}, largest difference {difference:.3g}")
    return difference <= tolerance


def check_tokenizer(folder, text, ids):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    print(f"{folder}: {type(tokenizer).__name__}, {len(tokenizer)} tokens, end of text {tokenizer.eos_token!r} {tokenizer.eos_token_id}")
    if text is None:
        return True
    given = open(text, newline="", encoding="utf-8").read()
    found = tokenizer(given, add_special_tokens=False)["input_ids"]
    wanted = [int(word) for word in open(ids).read().split()]
    print(f"{folder}: {len(found)} ids, {'equal' if found == wanted else 'DIFFERENT'}; decoded {'equal' if tokenizer.decode(found) == given else 'DIFFERENT'}")
    return found == wanted


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("logits")
    parser.add_argument("tolerance", nargs="?", type=float, default=1e-4)
    parser.add_argument("--text")
    parser.add_argument("--ids")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    same = check_model(arguments.folder, arguments.logits, arguments.tolerance)
    if not has_adapters(arguments.folder):  # their tokenizer is that of the base
        same = check_tokenizer(arguments.folder, arguments.text, arguments.ids) and same
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Keep of an oracle folder what the tests compare: its F16 model and one file of recorded numbers.

usage: python pack_reference.py ORACLE_DIR OUT_DIR

ORACLE_DIR is what gen_oracle.py and make_gguf.py wrote (prefill, decode and chunked .safetensors, model-f16.gguf).
Masks are stored as they are; layer inputs, which the streams cover, are left out to keep the repository small.
"""
import pathlib
import re
import shutil
import sys

from safetensors.numpy import load_file, save_file

KEEP = re.compile(
    r"prefill\.(input_ids|logits|layer\d+\.(stream_out|router_ids|router_weights|qsa_mask|ple_rows))"
    r"|decode\.(prefill_logits_last|step_logits|after_(prefill|steps)\..*"
    r"|steps\.layer\d+\.(stream_out|router_ids|qsa_mask|ple_rows))"
    r"|chunked\.(chunks|logits)"
)

source, out = map(pathlib.Path, sys.argv[1:])
for folder in sorted(p.parent for p in source.glob("*/prefill.safetensors")):
    tensors = {}
    for part in ("prefill", "decode", "chunked"):
        for name, value in load_file(folder / f"{part}.safetensors").items():
            if KEEP.fullmatch(f"{part}.{name}"):
                tensors[f"{part}.{name}"] = value
    target = out / folder.name
    target.mkdir(parents=True, exist_ok=True)
    save_file(tensors, target / "reference.safetensors")
    shutil.copyfile(folder / "model-f16.gguf", target / "model-f16.gguf")
    print(folder.name, len(tensors), "tensors")

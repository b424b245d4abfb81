#!/usr/bin/env python3
"""Write the small draft head that the tests use, with its reference numbers.

usage: python pack_draft_head.py MOE8PLE_DIR OUT_DIR      (MOE8PLE_DIR as gen_oracle.py, gen_mtp.py and make_gguf.py left it)

The head of `mtp-f16.gguf`, without the shared tables and without an indexer, and with Q8_0 where rows are long enough:
half the size.  The numbers are those of ref_engine.py on the weights as decoded; on the head as it was, ref_engine.py
agrees with the head built from transformers classes to 1.4e-6.  Both readings of the norm of the streams are recorded:
for the entries listed in `entries`, `<reading>.logits`; then three greedy entries, `<reading>.chain_tokens` and
`<reading>.chain_logits`.
"""
import pathlib
import sys

import gguf
import numpy as np
from safetensors.numpy import load_file, save_file

from ref_engine import Model

ENTRIES = [0, 1, 2, 40, 69, 70]
source, out = map(pathlib.Path, sys.argv[1:3])
head = Model(source / "mtp-f16.gguf")
head.ratio = head.ratio[:head.N] + [0]
block = f"blk.{head.N}."

w = gguf.GGUFWriter(out / "mtp-q8_0.gguf", "qwen4exp")
w.add_uint32("qwen4exp.block_count", head.N + 1)
w.add_uint32("qwen4exp.nextn_predict_layers", 1)
for t in gguf.GGUFReader(str(source / "mtp-f16.gguf")).tensors:
    if not t.name.startswith(block) or ".indexer." in t.name:
        continue
    data = np.asarray(t.data)
    if data.ndim > 1 and data.shape[-1] % 32 == 0 and "ffn_gate_inp" not in t.name:
        q8 = gguf.GGMLQuantizationType.Q8_0
        packed = gguf.quants.quantize(data.astype(np.float32), q8)
        head.w[t.name] = gguf.quants.dequantize(packed, q8).reshape(data.shape).astype(np.float32)
        w.add_tensor(t.name, packed, raw_dtype=q8)
    else:
        w.add_tensor(t.name, data)
w.write_header_to_file()
w.write_kv_data_to_file()
w.write_tensors_to_file()
w.close()

trunk = load_file(source / "prefill.safetensors")
ids = trunk["input_ids"].tolist()
streams = trunk[f"layer{head.N - 1:02d}.stream_out"].reshape(len(ids), head.S, head.H)
numbers = {"entries": np.array(ENTRIES, np.int32)}
for reading, grouped in (("one", False), ("grouped", True)):
    state, logits, chain, chain_logits = {}, [], [], []
    for i in range(len(ids) - 1):
        lg, x = head.mtp(streams[i], ids[i + 1], i, state, grouped)
        logits.append(lg)
    for j in range(3):
        # The first of the chain is what the last entry predicts.
        chain.append(int(lg.argmax()))
        lg, x = head.mtp(x, chain[-1], len(ids) - 1 + j, state, grouped)
        chain_logits.append(lg)
    numbers[f"{reading}.logits"] = np.stack([logits[i] for i in ENTRIES]).astype(np.float32)
    numbers[f"{reading}.chain_tokens"] = np.array(chain, np.int32)
    numbers[f"{reading}.chain_logits"] = np.stack(chain_logits).astype(np.float32)
    print(reading, chain, "smallest gap", min(np.diff(np.sort(l)[-2:])[0] for l in [*logits[-1:], *chain_logits]))
save_file(numbers, out / "mtp.safetensors")

#!/usr/bin/env python3
"""Expected numbers of the memory plan (crates/strata-store/src/plan/tests.rs), found by search instead of by formula.

A plan is the largest arena that leaves a pass what it is due: starting from a slot for every expert, slots are taken
away until the conditions of docs/memory.md hold. Prints one line a machine, as the tests have them.
"""

GIB, MIB, PAGE = 1 << 30, 1 << 20, 4096
DEPTH, TOP_K, EXPERTS = 32, 10, 48 * 512
PARTS = [473_600, 473_600, 537_600]
DENSE, STATE = 3_800_000_000, 117_669_888
CACHE = {"f32": 50_688, "bf16": 26_112, "q8_0": 14_592}
CONTEXT_TOKEN, STRIP, THREAD, PASS_TOKEN, ROOM = 16, 60_000_000, 2_000_000, 157_000, 18_000
ROWS, ROW = 16, 90
CHECKPOINT, LOGITS = 118_000_000, 248_320 * 4


def pages(n):
    return -(-n // PAGE)


SLOT = sum((pages(part) + 1) * PAGE for part in PARTS)


def fixed(threads, context, cache, texts):
    sequences, side, steps, checkpoints = texts
    reserve = 256 * MIB + threads * 4 * MIB
    windows = 1024 * (pages(ROW) + 1) * PAGE
    rooms = (3 * threads - 1) * 256 * ROOM
    work = STRIP + threads * THREAD + rooms
    beside = (side + steps) * token() + steps * 2 * LOGITS + checkpoints * (CHECKPOINT + LOGITS)
    context_bytes = context * (sequences * CACHE[cache] + CONTEXT_TOKEN)
    return DENSE + sequences * STATE + context_bytes + work + windows + reserve + beside


def token():
    return PASS_TOKEN + 2 * ROWS * ROW


def plan(total=None, available=None, group=None, memory=None, arena=None, context=32768, pas=None, cache="bf16", threads=8,
         texts=(1, 0, 0, 0)):
    smallest = 2 * TOP_K + DEPTH
    known = [n for n in (total, available, group) if n is not None]
    if arena is not None and arena // SLOT < smallest:
        return f"arena needs {smallest * SLOT}"
    if memory is not None:
        if known and memory > min(known):
            return f"only {min(known)}"
        budget = memory
    elif known:
        budget = min(known) - min(known) // 16
    elif arena is not None:
        budget = 2**64 - 1
    else:
        return "unknown"
    least = min(pas or 256, context)
    most = min(pas or 8192, context)
    base, per = fixed(threads, context, cache, texts), token()
    asked = None if arena is None else min(arena // SLOT, EXPERTS)
    needed = base + least * per + (asked or smallest) * SLOT
    if needed > budget:
        best = next((c for c in range(context, 0, -1) if _needed(c, pas, cache, threads, texts, asked or smallest) <= budget), None)
        return f"needs {needed} context {best}"
    room = budget - base
    slots = asked
    if asked is None:
        slots = EXPERTS
        while slots > smallest:
            left = room - slots * SLOT
            if left >= least * per and (left >= most * per or 8 * left >= room // 8 * 8):
                break
            slots -= 1
    left = room - slots * SLOT
    if slots == EXPERTS and pas is None:
        most = min(most, 1024)
    tokens = 0
    while tokens < most and (tokens + 1) * per <= left:
        tokens += 1
    if 256 < tokens < most:
        tokens -= tokens % 256
    return f"budget {budget} slots {slots} pass {tokens} total {base + tokens * per + slots * SLOT}"


def _needed(context, pas, cache, threads, texts, slots):
    return fixed(threads, context, cache, texts) + min(pas or 256, context) * token() + slots * SLOT


MACHINES = [
    ("8 GB laptop", dict(total=8 * GIB, available=6 * GIB)),
    ("8 GB laptop, busy", dict(total=8 * GIB, available=4 * GIB)),
    ("12 GB", dict(total=12 * GIB, available=10 * GIB)),
    ("16 GB", dict(total=16 * GIB, available=13 * GIB)),
    ("24 GB", dict(total=24 * GIB, available=21 * GIB)),
    ("24 GB, arena of 6.5", dict(total=24 * GIB, available=21 * GIB, arena=13 * GIB // 2)),
    ("24 GB, memory of 10", dict(total=24 * GIB, available=21 * GIB, memory=10 * GIB)),
    ("24 GB, two threads", dict(total=24 * GIB, available=21 * GIB, threads=2)),
    ("24 GB, pass of 1024", dict(total=24 * GIB, available=21 * GIB, pas=1024)),
    ("32 GB", dict(total=32 * GIB, available=28 * GIB)),
    ("48 GB", dict(total=48 * GIB, available=45 * GIB)),
    ("64 GB", dict(total=64 * GIB, available=60 * GIB)),
    ("128 GB", dict(total=128 * GIB, available=120 * GIB, threads=32)),
    ("256 GB in a container of 32", dict(total=256 * GIB, available=250 * GIB, group=32 * GIB, threads=64)),
    ("container of 4", dict(total=256 * GIB, available=250 * GIB, group=4 * GIB)),
    ("context of a million", dict(total=64 * GIB, available=60 * GIB, context=1 << 20)),
    ("context of a million, 24 GB", dict(total=24 * GIB, available=21 * GIB, context=1 << 20)),
    ("context of one", dict(total=24 * GIB, available=21 * GIB, context=1)),
    ("memory too small for a token", dict(total=24 * GIB, available=21 * GIB, memory=4 * GIB)),
    ("arena too small for a token", dict(total=24 * GIB, available=21 * GIB, arena=51 * SLOT)),
    ("smallest arena", dict(total=24 * GIB, available=21 * GIB, arena=52 * SLOT)),
    ("more than there is", dict(total=16 * GIB, available=13 * GIB, memory=14 * GIB)),
    ("arena of more than there is", dict(total=16 * GIB, available=13 * GIB, arena=20 * GIB)),
    ("unknown machine", dict()),
    ("unknown machine, memory of 16", dict(memory=16 * GIB)),
    ("unknown machine, arena of 8", dict(arena=8 * GIB)),
    ("all experts and a small pass", dict(memory=44 * GIB)),
    ("four texts", dict(total=24 * GIB, available=21 * GIB, texts=(4, 3 * 256, 32, 8))),
    ("sixteen texts", dict(total=64 * GIB, available=60 * GIB, texts=(16, 15 * 256, 128, 0))),
    ("sixteen texts, 16 GB", dict(total=16 * GIB, available=13 * GIB, texts=(16, 15 * 256, 128, 16))),
    ("f32", dict(total=16 * GIB, available=13 * GIB, cache="f32")),
    ("q8_0", dict(total=16 * GIB, available=13 * GIB, cache="q8_0")),
    ("f32, 262144", dict(total=24 * GIB, available=21 * GIB, context=262144, cache="f32")),
    ("bf16, 262144", dict(total=24 * GIB, available=21 * GIB, context=262144)),
    ("q8_0, 262144", dict(total=24 * GIB, available=21 * GIB, context=262144, cache="q8_0")),
    ("f32, 262144, 16 GB", dict(total=16 * GIB, available=13 * GIB, context=262144, cache="f32")),
]

if __name__ == "__main__":
    for name, facts in MACHINES:
        print(f"{name}: {plan(**facts)}")

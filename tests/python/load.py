"""64 clients for a while, then 1,000 that go away: no error but a full queue, nothing left behind, memory flat."""

import http.client
import json
import random
import sys
import threading
import time

from server import Server

CLIENTS = 64
SECONDS = float(sys.argv[1]) if len(sys.argv) > 1 else 60
CANCELLED = int(sys.argv[2]) if len(sys.argv) > 2 else 1_000
WORDS = "the old dog ran up a hill and saw two birds near some trees".split()


def body(rng, is_streamed):
    text = " ".join(rng.choice(WORDS) for _ in range(rng.choice([3, 10, 40])))
    ask = {"messages": [{"role": "user", "content": text}], "max_tokens": rng.randint(1, 12), "stream": is_streamed}
    return json.dumps(ask)


def client(host, port, until, seed, counts, lock):
    rng = random.Random(seed)
    while time.monotonic() < until:
        is_streamed = rng.random() < 0.5
        connection = http.client.HTTPConnection(host, port, timeout=60)
        try:
            connection.request("POST", "/v1/chat/completions", body(rng, is_streamed))
            response = connection.getresponse()
            text = response.read().decode()
            status = str(response.status)
            if status == "429":
                assert float(response.headers["Retry-After"]) > 0
                time.sleep(0.2)
            elif status == "200":
                assert ("[DONE]" if is_streamed else "finish_reason") in text, text[-500:]
        except Exception as error:
            status = repr(error)
        finally:
            connection.close()
        with lock:
            counts[status] = counts.get(status, 0) + 1


def cancel(host, port, seeds):
    for seed in seeds:
        rng = random.Random(seed)
        connection = http.client.HTTPConnection(host, port, timeout=60)
        try:
            connection.request("POST", "/v1/chat/completions", body(rng, True))
            response = connection.getresponse()
            # Before, while and after the prompt is read.
            response.read(rng.choice([1, 10, 400, 1_000]))
        finally:
            connection.close()


def settled(server):
    """The status, when nothing is at work any more."""
    for _ in range(600):
        status = server.status()
        if not status["active"] and not status["queued"]:
            return status
        time.sleep(0.05)
    raise AssertionError(f"still at work: {status['active']}, {status['queued']} wait")


def run(threads):
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


with Server("--context", "512", "--parallel", "8", "--queue", "32") as server:
    host, port = server.url.removeprefix("http://").split(":")
    counts, lock = {}, threading.Lock()

    def crowd(seconds, first):
        until = time.monotonic() + seconds
        run([threading.Thread(target=client, args=(host, port, until, first + n, counts, lock)) for n in range(CLIENTS)])
        return settled(server)["memory"]["rss_bytes"]

    # What a first crowd needs, such as stacks of threads, stays.
    warm = crowd(SECONDS / 4, 0)
    after = crowd(SECONDS * 3 / 4, 1_000)
    print(f"{CLIENTS} clients, {SECONDS:.0f} s: {counts}; memory {warm / 1e6:.1f} -> {after / 1e6:.1f} MB")
    assert set(counts) <= {"200", "429"} and counts.get("200", 0) > CLIENTS, counts
    assert after < warm * 1.02 + 8e6, (warm, after)

    start = time.monotonic()
    before = settled(server)
    share = [range(n, CANCELLED, 8) for n in range(8)]
    run([threading.Thread(target=cancel, args=(host, port, seeds)) for seeds in share])
    status = settled(server)
    cancelled = status["cancelled"] - before["cancelled"]
    print(f"{CANCELLED} clients went away in {time.monotonic() - start:.1f} s: {cancelled} while they were served")
    assert cancelled > 0 and status["failed"] == 0, status

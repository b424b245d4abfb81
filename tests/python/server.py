"""A server under test: `strata serve` with the model that ships, at a port of its own."""

import json
import os
import signal
import subprocess
import threading
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STRATA = os.environ.get("STRATA", str(ROOT / "target/debug/strata"))


class Server:
    """Runs while its `with` block does. Ends it as a service manager would, and checks that it ended well."""

    def __init__(self, *arguments):
        self.command = [STRATA, "serve", "--port", "0", *arguments]

    def __enter__(self):
        self.process = subprocess.Popen(self.command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        self.said = []
        for line in self.process.stderr:
            self.said.append(line)
            if "ready at " in line:
                self.url = line.split("ready at ")[1].strip()
                break
        else:
            raise RuntimeError("the server ended: " + "".join(self.said))
        # A pipe that nobody reads would fill up.
        self.reader = threading.Thread(target=lambda: self.said.extend(self.process.stderr))
        self.reader.start()
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=60)
        self.reader.join()
        assert code == 0, "".join(self.said[-20:])
        assert not any("panicked" in line for line in self.said), "".join(self.said[-200:])

    def status(self):
        with urllib.request.urlopen(self.url + "/v1/status") as response:
            return json.load(response)

    def post(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode())
        with urllib.request.urlopen(request) as response:
            return json.load(response)

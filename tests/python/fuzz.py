"""schemathesis: requests made from the server's own description, right and wrong ones. None may end in a 5xx."""

import os
import re
import subprocess
import sys
import tempfile

from server import Server

CASES = 2_000

with Server("--context", "96", "--parallel", "4", "--queue", "64") as server, tempfile.TemporaryDirectory() as folder:
    command = [
        os.path.join(os.path.dirname(sys.executable), "schemathesis"), "run", server.url + "/openapi.json",
        "--checks", "not_a_server_error", "--phases", "examples,coverage,fuzzing", "--max-examples", "20",
        "--workers", "4", "--seed", "1", "--request-timeout", "60", "--generation-database", "none", "--no-color",
        # It does not end.
        "--exclude-path", "/v1/status/events",
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    print(done.stdout[-1_500:])
    assert done.returncode == 0, done.stdout + done.stderr
    cases = int(re.search(r"(\d+) generated", done.stdout).group(1))
    assert cases >= CASES, f"only {cases} cases"

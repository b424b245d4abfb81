#!/usr/bin/env bash
# Drives the built server with what its users have: the packages of OpenAI and Anthropic; then with requests made up from
# its own description; then with many clients at once. Needs Python 3.10 or later and PyPI. STRATA names another program.
set -euo pipefail
cd "$(dirname "$0")/.."

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
export STRATA=${STRATA:-$target/debug/strata} PYTHONDONTWRITEBYTECODE=1
python=$target/clients/bin/python
if ! python3 -m venv "$target/clients" 2>/dev/null; then
    apt-get update -qq && apt-get install -qq -y python3-venv
    python3 -m venv "$target/clients"
fi
"$python" -m pip install --quiet --disable-pip-version-check -r tests/python/requirements.txt

cd tests/python
"$python" -m pytest -q -p no:cacheprovider
"$python" fuzz.py
"$python" load.py

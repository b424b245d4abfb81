#!/usr/bin/env bash
# Drives the built server with what its users have: the packages of OpenAI and Anthropic; then with requests made up from
# its own description; then with many clients at once. Needs Python 3.10 or later and PyPI. STRATA names another program.
set -euo pipefail
cd "$(dirname "$0")/.."

export STRATA=${STRATA:-${CARGO_TARGET_DIR:-target}/debug/strata}
venv=${CARGO_TARGET_DIR:-target}/clients
if ! python3 -m venv "$venv" 2>/dev/null; then
    apt-get update -qq && apt-get install -qq -y python3-venv && python3 -m venv "$venv"
fi
"$venv/bin/pip" install --quiet --disable-pip-version-check -r tests/python/requirements.txt

cd tests/python
PYTHONDONTWRITEBYTECODE=1
export PYTHONDONTWRITEBYTECODE
"$venv/bin/python" -m pytest -q -p no:cacheprovider
"$venv/bin/python" fuzz.py
"$venv/bin/python" load.py

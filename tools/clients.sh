#!/usr/bin/env bash
# Drives the built server with what its users have: the packages of OpenAI and Anthropic; then with requests made up from
# its own description; then with many clients at once; and its page in a browser. Needs Python 3.10 or later, PyPI, and
# Debian's Chromium. STRATA names another program; SCREENSHOTS a folder for pictures of the page.
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

if ! command -v chromium >/dev/null || ! command -v chromedriver >/dev/null; then
    apt-get update -qq && apt-get install -qq -y chromium chromium-driver >/dev/null
fi

cd tests/python
"$python" -m pytest -q -p no:cacheprovider
"$python" fuzz.py
"$python" load.py

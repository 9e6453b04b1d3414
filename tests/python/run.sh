#!/bin/sh
# run.sh SOURCE_DIR: the tests of python/, or exit code 77 where their environment was not made.
set -eu
cd "$1"
if [ ! -e .venv/requirements.stamp ]; then
  echo 'skipped: no environment (./dev eval-setup makes it)'
  exit 77
fi
# No model is needed, and none may be looked for elsewhere.
HF_HUB_OFFLINE=1 exec .venv/bin/python -B -m pytest -q python

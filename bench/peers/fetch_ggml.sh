#!/bin/sh
# fetch_ggml.sh FOLDER: ggml's source into FOLDER/ggml, out of the source distribution of
# llama-cpp-python from PyPI. pip checks its sha256 before it looks inside. No work when it is there.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=$1
requirements=$here/ggml_requirements.txt
[ -n "$folder" ] || exit 2

# The stamp is a copy of the list that was fetched, and is written last.
if cmp -s "$requirements" "$folder/ggml/requirements.stamp"; then
  exit 0
fi
rm -rf "$folder/ggml"
mkdir -p "$folder/download" "$folder/ggml"
[ -x "$folder/pip/bin/pip" ] || python3 -m venv "$folder/pip"
"$folder/pip/bin/pip" download --quiet --disable-pip-version-check --no-deps --require-hashes \
  --no-binary llama-cpp-python --dest "$folder/download" --requirement "$requirements"
tar -xzf "$folder"/download/llama_cpp_python-*.tar.gz -C "$folder/ggml" --strip-components=4 \
  --wildcards '*/vendor/llama.cpp/ggml'
rm -rf "$folder/download"
cp "$requirements" "$folder/ggml/requirements.stamp"

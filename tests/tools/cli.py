"""Runs kvsieve as a process; shared by the tests of this folder."""

import json
import os
import struct
import subprocess
import tempfile
import unittest

KVSIEVE = os.environ["KVSIEVE"]
SOURCE_DIR = os.environ["KVS_SOURCE_DIR"]
TRACE = os.path.join(SOURCE_DIR, "data", "smollm2-135m-small.safetensors")
TIMEOUT_S = 120 * int(os.environ.get("KVS_TIMEOUT_FACTOR", "1"))  # of one run of the tool
ESCAPE = "\x1b"


def read_safetensors(path):
    """The header, with __metadata__ if there is any, and the bytes after it."""
    with open(path, "rb") as file:
        data = file.read()
    size = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:8 + size]), data[8 + size:]


def rewrite_trace(path, metadata, drop=()):
    """Adds metadata to a trace and takes out tensors whose names end in one of `drop`."""
    header, data = read_safetensors(path)
    changed = {"__metadata__": {**header.pop("__metadata__"), **metadata}}
    body = b""
    for name, tensor in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        if name.endswith(tuple(drop)):
            continue
        begin, end = tensor["data_offsets"]
        changed[name] = {**tensor, "data_offsets": [len(body), len(body) + end - begin]}
        body += data[begin:end]
    text = json.dumps(changed).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + body)


class CliTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def run_cli(self, *args, **environment):
        return subprocess.run([KVSIEVE, *args], capture_output=True, text=True, timeout=TIMEOUT_S,
                              stdin=subprocess.DEVNULL, env={**os.environ, **environment})

    def results(self, *args):
        """stdout of a run that succeeds and says nothing on stderr."""
        run = self.run_cli(*args)
        self.assertEqual((run.returncode, run.stderr), (0, ""), args)
        return run.stdout

    def json_of(self, *args):
        return json.loads(self.results(*args))

    def complaint(self, *args):
        """The one line of a run that is refused with exit code 2 and prints no results."""
        run = self.run_cli(*args)
        self.assertEqual(run.returncode, 2, (args, run.stderr))
        self.assertEqual(run.stdout, "", args)
        self.assertRegex(run.stderr, r"\Akvsieve: [^\n]+\n\Z", args)
        return run.stderr

    def small_trace(self, **options):
        """A synthetic trace, small enough to compare in milliseconds."""
        path = self.path("small.safetensors")
        settings = {"tokens": 200, "n-eval": 4, **options}
        arguments = [text for key, value in settings.items() for text in (f"--{key}", str(value))]
        self.results("gen", "-o", path, *arguments)
        return path

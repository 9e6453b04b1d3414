"""On a terminal: colours, progress in one line, and long specs that wrap instead of breaking."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
import unittest

from cli import CliTest, ESCAPE, KVSIEVE

SKIPPED = 77  # what ctest knows as skipped

LONG = ("snapkv(budget=25%,window=32,sinks=4,pool=max:7) | k=center+turbo4, v=turbo4 | tail=16 | "
        "layers(0..0)={kv=int8}")


class Terminal(CliTest):
    def on_terminal(self, stream, *args, columns=100, **environment):
        """Runs with `stream` ("stdout" or "stderr") on a pseudo-terminal; returns both texts."""
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        shown = bytearray()

        def drain():
            try:
                while chunk := os.read(master, 4096):
                    shown.extend(chunk)
            except OSError:  # the other end is closed
                pass

        reader = threading.Thread(target=drain)
        reader.start()
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: slave}
        environment = {**os.environ, "TERM": "xterm", "NO_COLOR": "", **environment}
        process = subprocess.Popen([KVSIEVE, *args], text=True, env=environment,
                                   stdin=subprocess.DEVNULL, **streams)
        os.close(slave)
        piped = "".join(text for text in process.communicate(timeout=120) if text)
        reader.join()
        os.close(master)
        self.assertEqual(process.returncode, 0, piped)
        return shown.decode(), piped

    def test_tables_are_coloured_unless_told_otherwise(self):
        trace = self.small_trace()
        command = ["compare", trace, "-p", "none | kv=int8"]
        self.assertIn(ESCAPE, self.on_terminal("stdout", *command)[0])
        self.assertNotIn(ESCAPE, self.on_terminal("stdout", *command, NO_COLOR="1")[0])
        self.assertNotIn(ESCAPE, self.on_terminal("stdout", *command, TERM="dumb")[0])

    def test_progress_is_one_line_that_goes_away(self):
        trace = self.small_trace()
        shown, table = self.on_terminal("stderr", "compare", trace, "-p", "none", "-p", LONG,
                                        columns=60)
        self.assertIn("[1/2] none", shown)
        self.assertIn("[2/2] snapkv", shown)
        self.assertNotIn("\n", shown)
        self.assertTrue(shown.endswith("\r\x1b[K"), repr(shown))
        for update in re.split(r"\r\x1b\[K", shown):
            self.assertLess(len(update), 60)
        self.assertNotIn(ESCAPE, table)

    def test_quiet_shows_no_progress(self):
        shown, _ = self.on_terminal("stderr", "--quiet", "compare", self.small_trace(),
                                    "-p", "none")
        self.assertEqual(shown, "")

    def test_long_specs_wrap_inside_their_column(self):
        shown, _ = self.on_terminal("stdout", "compare", self.small_trace(), "-p", LONG,
                                    columns=130, NO_COLOR="1")
        lines = shown.replace("\r\n", "\n").split("\n")
        column = lines[0].index("pipeline")
        rows = lines[2:lines.index("")]
        self.assertGreater(len(rows), 1)
        for line in rows:
            self.assertLessEqual(len(line), 130)
        for line in rows[1:]:
            self.assertEqual(line[:column].strip(), "")
        wrapped = "".join(line[column:].strip() for line in rows)
        self.assertEqual(wrapped.replace(" ", ""), LONG.replace(" ", ""))

    def test_on_a_narrow_terminal_specs_stand_below_their_figures(self):
        for columns in (100, 80):
            shown, _ = self.on_terminal("stdout", "compare", self.small_trace(), "-p", "none",
                                        "-p", LONG, columns=columns, NO_COLOR="1")
            lines = shown.replace("\r\n", "\n").split("\n")
            for line in lines:
                self.assertLessEqual(len(line), columns, line)
            self.assertEqual(lines[1], "      pipeline")
            first = lines.index("      none")
            self.assertRegex(lines[first - 1], r"^1 .*\d$")
            spec = lines[first + 2:lines.index("")]
            self.assertTrue(all(line.startswith("      ") for line in spec), spec)
            self.assertEqual("".join(spec).replace(" ", ""), LONG.replace(" ", ""))


def main():
    try:
        for end in pty.openpty():
            os.close(end)
    except OSError as error:  # a container without /dev/pts
        print(f"skipped: no pseudo-terminal here ({error})")
        return SKIPPED
    return 0 if unittest.main(exit=False).result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())

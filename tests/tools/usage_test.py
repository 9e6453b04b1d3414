"""Bad usage and bad input: exit code 2 and one line that says what, where and what to do."""

import os
import subprocess
import unittest

from cli import CliTest, KVSIEVE, TRACE


class Usage(CliTest):
    def test_help_is_everywhere(self):
        commands = ["compare", "report", "compact", "explain", "list", "gen", "inspect", "fit"]
        top = self.results("--help")
        for command in commands:
            self.assertIn(command, top)
            self.assertIn("--help", self.results(command, "--help"))
            self.assertIn("--threads", self.results(command, "--help"))

    def test_version_is_a_result(self):
        self.assertRegex(self.results("--version"), r"\Akvsieve \d+\.\d+\.\d+\n\Z")

    def test_missing_and_unknown_commands_point_to_help(self):
        self.assertIn("no command given, see 'kvsieve --help'", self.complaint())
        self.assertIn("did you mean compare?", self.complaint("comapre", TRACE))
        self.assertIn("unknown command 'frob'", self.complaint("frob"))
        self.assertIn("unknown option '--frob'", self.complaint("--frob"))

    def test_unknown_options_point_to_the_command_s_help(self):
        self.assertIn("see 'kvsieve list --help'", self.complaint("list", "--frob"))
        self.assertIn("see 'kvsieve compare --help'", self.complaint("compare", TRACE, "extra"))

    def test_missing_arguments_are_named(self):
        self.assertIn("TRACE", self.complaint("compare"))
        self.assertIn("--pipeline", self.complaint("report", TRACE))
        self.assertIn("--output", self.complaint("compact", TRACE, "-p", "none"))
        self.assertIn("--output", self.complaint("gen"))
        self.assertIn("SPEC", self.complaint("explain"))
        self.assertIn("FILE", self.complaint("inspect"))

    def test_numbers_out_of_range_name_option_and_limit(self):
        for bad in ["0", "-1", "1025", "two", "1.5", "", "99999999999999999999"]:
            self.assertIn("--threads", self.complaint("list", "--threads", bad), bad)
        for bad in ["0", "4097", "x"]:
            self.assertIn("--key-dim", self.complaint("explain", "none", "--key-dim", bad), bad)
        for bad in ["-5", "0", "1e3", "many"]:
            out = self.path("out.safetensors")
            self.assertIn("tokens", self.complaint("gen", "-o", out, "--tokens", bad), bad)
            self.assertFalse(os.path.exists(out))
        for bad in ["-1", "18446744073709551616", "010", "0x10", "1.5", ""]:
            self.assertIn("--seed", self.complaint("gen", "-o", self.path("t"), "--seed", bad), bad)
        for option in ["--tokens", "--layers", "--kv-heads", "--key-dim", "--window", "--n-eval"]:
            for bad in ["010", "0x10", "99999999999999999999"]:
                message = self.complaint("gen", "-o", self.path("t"), option, bad)
                self.assertIn(f"{option}: '{bad}' is not a decimal integer", message)
        self.results("gen", "-o", self.path("t"), "--tokens", "9", "--seed", str(2**64 - 1))

    def test_words_that_are_none_of_the_choices_show_the_choices(self):
        self.assertIn("quick,full", self.complaint("compare", TRACE, "--grid", "huge"))
        self.assertIn("exact,stored", self.complaint("compare", TRACE, "--decode-rows", "no"))
        self.assertIn("needle", self.complaint("gen", "-o", self.path("t"), "--preset", "frob"))
        self.assertIn("SCALAR", self.complaint("list", "--target", "SSE9"))

    def test_files_that_are_missing_or_no_traces_are_named(self):
        garbage = self.path("garbage")
        with open(garbage, "wb") as file:
            file.write(b"not a trace at all")
        for path in [self.path("absent"), garbage, self.folder, "/dev/null"]:
            for command in [["inspect", path], ["compare", path],
                            ["report", path, "-p", "none"],
                            ["compact", path, "-p", "none", "-o", self.path("out")]]:
                self.assertIn(path, self.complaint(*command))
        self.assertFalse(os.path.exists(self.path("out")))

    def test_file_errors_say_what_to_do(self):
        for command in [["inspect"], ["compare"], ["report", "-p", "none"],
                        ["fit", "--ctx", "9", "--model"]]:
            self.assertIn("No such file or directory; check the name",
                          self.complaint(*command, self.path("absent")))
            self.assertIn("Is a directory; name a file", self.complaint(*command, self.folder))
        with open("/dev/full", "w") as full:
            run = subprocess.run([KVSIEVE, "list"], stdout=full, stderr=subprocess.PIPE, text=True)
        self.assertEqual(run.stderr, "kvsieve: standard output: cannot write: No space left on "
                                     "device; free space there, or write to another disk\n")
        self.assertIn("No space left on device; free space there",
                      self.complaint("compare", self.small_trace(), "-p", "none", "--json",
                                     "/dev/full"))

    def test_a_plan_for_dims_that_its_stores_cannot_have_names_the_tier(self):
        trace = self.small_trace(**{"key-dim": 51, "value-dim": 51})
        message = self.complaint("compare", trace, "-p", "best(4x)")
        self.assertIn("layer 0: column 1: ", message)
        self.assertIn("this is tier 1 of 3, k=center+hadamard+int8, v=turbo(bits=5): name "
                      "stores that fit, waterfill(budget=...) | tiers=[...]", message)

    def test_specs_that_make_no_sense_are_quoted_with_a_column(self):
        for spec in ["snapkw(budget=25%)", "snapkv", "none | kv=int9", "none | kv=f16 junk",
                     "none | tail=x", "snapkv(budget=0)", "[none]", "[none,none]", ""]:
            for command in [["compare", TRACE, "-p", spec], ["report", TRACE, "-p", spec],
                            ["explain", spec],
                            ["compact", TRACE, "-p", spec, "-o", self.path("out")]]:
                message = self.complaint(*command)
                self.assertIn(f"pipeline '{spec}'", message)
                self.assertIn("column ", message)
        self.assertIn("did you mean snapkv?", self.complaint("explain", "snapkw(budget=25%)"))

    def test_of_a_long_spec_only_the_part_around_the_column_is_quoted(self):
        layers = ",".join(f"{n}..{n}" for n in range(200))
        spec = f"snapkv(budget=25%) | layers({layers})={{kv=int9}} | tail=1, nonfinite=zero"
        message = self.complaint("explain", spec)
        self.assertLess(len(message), 300)
        self.assertIn("kv=int9", message)
        self.assertIn("...", message)
        self.assertNotIn("snapkv", message)
        self.assertIn(f"column {spec.index('int9') + 1}", message)
        beginning = self.complaint("explain", spec.replace("snapkv", "snapkw"))
        self.assertIn("'snapkw(budget=25%) | ", beginning)
        self.assertLess(len(beginning), 300)

    def test_layers_that_the_trace_does_not_store_are_explained(self):
        spec = "none | layers(29..29)={kv=f16}"
        for command in ["compare", "report"]:
            message = self.complaint(command, TRACE, "-p", spec)
            self.assertIn("0..4 = model layers 0, 7, 14, 21, 29", message)
        self.results("compare", TRACE, "-p", "none | kv=int8 | layers(4..4)={kv=f16}")

    def test_target_names_are_read_in_any_case(self):
        self.assertIn("SCALAR  <- active", self.results("list", "--target", "scalar"))

    def test_a_pipeline_that_the_trace_cannot_run_is_quoted(self):
        trace = self.small_trace(window=8)
        spec = "snapkv(budget=25%,window=32)"
        self.assertIn(f"pipeline '{spec}'", self.complaint("compare", trace, "-p", spec))

    def test_outputs_that_cannot_be_written_are_refused_before_the_work(self):
        nowhere = self.path("no/such/folder/out")
        spec = ["-p", "none"]
        for option in ["--json", "--csv", "--html"]:
            message = self.complaint("compare", TRACE, *spec, option, nowhere)
            self.assertIn(nowhere, message)
            self.assertIn(option, message)
            self.assertIn("it is a folder",
                          self.complaint("compare", TRACE, *spec, option, self.folder))
        self.assertIn(nowhere, self.complaint("report", TRACE, *spec, "--json", nowhere))
        self.assertIn(nowhere, self.complaint("compact", TRACE, *spec, "-o", nowhere))
        self.assertIn("-", self.complaint("compact", TRACE, *spec, "-o", "-"))
        self.assertIn(nowhere, self.complaint("gen", "-o", nowhere))

    def test_an_empty_output_name_is_refused(self):
        for option in ["--json", "--csv", "--html"]:
            self.assertIn(option, self.complaint("compare", TRACE, "-p", "none", option, ""))
        self.assertIn("--json", self.complaint("report", TRACE, "-p", "none", "--json", ""))
        self.assertIn("--output", self.complaint("compact", TRACE, "-p", "none", "-o", ""))
        self.assertIn("--output", self.complaint("gen", "-o", ""))

    def test_outputs_never_replace_the_trace_that_is_read(self):
        trace = self.small_trace()
        with open(trace, "rb") as file:
            before = file.read()
        os.symlink(trace, self.path("symlink"))
        os.link(trace, self.path("hard_link"))
        nested = os.path.join(self.folder, ".", "small.safetensors")
        names = [trace, nested, self.path("symlink"), self.path("hard_link")]
        commands = [["compare", trace, "-p", "none", "--json"],
                    ["compare", trace, "-p", "none", "--csv"],
                    ["compare", trace, "-p", "none", "--html"],
                    ["report", trace, "-p", "none", "--json"],
                    ["compact", trace, "-p", "none", "-o", self.path("o"), "--json"],
                    ["compact", trace, "-p", "none", "-o"]]
        for name in names:
            for command in commands:
                self.assertIn("the trace that is read", self.complaint(*command, name))
        with open(trace, "rb") as file:
            self.assertEqual(file.read(), before)
        self.assertFalse(os.path.exists(self.path("o")))

    def test_outputs_never_replace_each_other(self):
        trace = self.small_trace()
        same = self.path("same")
        os.symlink("same", self.path("link"))  # to a file that does not exist yet
        for other in [same, os.path.join(self.folder, ".", "same"), self.path("link")]:
            message = self.complaint("compare", trace, "-p", "none", "--json", same, "--csv",
                                     other)
            self.assertIn("--csv", message)
            self.assertIn("--json", message)
            self.assertIn("--output", self.complaint("compact", trace, "-p", "none", "-o", same,
                                                     "--json", other))
        self.assertFalse(os.path.exists(same))
        self.results("compare", trace, "-p", "none", "--json", "/dev/null", "--csv", "/dev/null")

    def test_only_one_output_can_be_standard_output(self):
        message = self.complaint("compare", TRACE, "-p", "none", "--json", "-", "--csv", "-")
        self.assertIn("only one", message)

    def test_a_full_disk_behind_standard_output_is_an_error(self):
        for arguments in [["list"], ["--help"], ["list", "--help"], ["--version"]]:
            with open("/dev/full", "w") as full:
                run = subprocess.run([KVSIEVE, *arguments], stdout=full, stderr=subprocess.PIPE,
                                     text=True)
            self.assertEqual(run.returncode, 2, arguments)
            self.assertIn("standard output", run.stderr)

    def test_global_options_stand_before_or_after_the_command(self):
        for arguments in [["--target", "SCALAR", "list"], ["list", "--target", "SCALAR"]]:
            self.assertIn("SCALAR  <- active", self.results(*arguments))


if __name__ == "__main__":
    unittest.main()

"""Files that kvsieve writes: complete or absent, and what compact and report put into them."""

import json
import os
import signal
import struct
import subprocess
import time
import unittest

import jsonschema
from cli import CliTest, ESCAPE, KVSIEVE, SOURCE_DIR, TIMEOUT_S, TRACE, read_safetensors

SPEC = "snapkv(budget=25%) | k=center+turbo4, v=int8"


class Outputs(CliTest):
    def validate(self, report):
        with open(os.path.join(SOURCE_DIR, "docs", "report.schema.json")) as file:
            jsonschema.validate(report, json.load(file))

    def only_file(self):
        """The one file in the folder: no temporary name was left behind."""
        names = os.listdir(self.folder)
        self.assertEqual(len(names), 1, names)
        return self.path(names[0])

    def test_files_and_standard_output_hold_the_same_report(self):
        self.results("report", TRACE, "-p", SPEC, "--json", self.path("r.json"))
        with open(self.only_file()) as file:
            from_file = json.load(file)
        self.validate(from_file)
        from_stdout = self.json_of("report", TRACE, "-p", SPEC, "--json", "-")
        for report in (from_file, from_stdout):
            for part in [*report["pipelines"], *report["pipelines"][0]["layers"]]:
                self.assertGreaterEqual(part.pop("time")["attend_us_per_token"], 0)
        self.assertEqual(from_file, from_stdout)

    def test_a_signal_leaves_the_old_file_and_no_other(self):
        path = self.path("out.safetensors")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            with open(path, "w") as file:
                file.write("old")
            command = [KVSIEVE, "gen", "-o", path, "--tokens", "20000", "--layers", "4"]
            run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            temporary = f"{path}.{run.pid}.tmp"
            while not os.path.exists(temporary):
                self.assertIsNone(run.poll(), "it ended before it could be stopped")
                time.sleep(0.001)
            run.send_signal(number)
            self.assertEqual(run.communicate(timeout=TIMEOUT_S)[1], b"")
            self.assertEqual(run.returncode, -number)
            self.assertEqual(os.path.basename(self.only_file()), "out.safetensors")
            with open(path) as file:
                self.assertEqual(file.read(), "old")

    def test_report_fills_everything_but_accuracy(self):
        report = self.json_of("report", TRACE, "-p", SPEC, "--json", "-")
        self.validate(report)
        pipeline = report["pipelines"][0]
        self.assertIsNone(pipeline["accuracy"])
        self.assertGreater(pipeline["time"]["compact_ms"], 0)
        self.assertGreater(pipeline["time"]["attend_us_per_token"], 0)
        self.assertIsNotNone(report["trace"]["engine_rel_error"])
        for layer in pipeline["layers"]:
            self.assertIsNone(layer["accuracy"])

    def test_report_prints_every_field_with_its_meaning(self):
        out = self.results("report", TRACE, "-p", SPEC)
        pipeline = self.json_of("report", TRACE, "-p", SPEC, "--json", "-")["pipelines"][0]
        for field, count in pipeline["bytes"].items():
            self.assertRegex(out, rf"(?m)^ *{field} +{count}  \w")
        for ratio in ["keep_rate", "eviction_ratio", "storage_ratio", "total_ratio"]:
            self.assertRegex(out, rf"(?m)^ *{ratio} +{pipeline[ratio]:.4f}  \w")

    def test_report_tells_how_much_each_store_holds(self):
        spec = ("recency(budget=50%,sinks=0) | kv=int8 | cold(25%)={kv=int4(group=row)} | "
                "cold(10%)={kv=int2(group=row)} | exact_sinks=0 | tail=12")
        out = self.results("report", TRACE, "-p", spec)
        report = self.json_of("report", TRACE, "-p", spec, "--json", "-")
        self.validate(report)
        # 15 heads, 1024 tokens, dim 64. int8 64 + 2, int4 32 + 4, int2 16 + 4; the trace is f16.
        rows = {"exact": 12, "int8": 512 - 12 - 256 - 103, "int4": 256, "int2": 103}
        size = {"exact": 256, "int8": 132, "int4": 72, "int2": 40}
        for layer in report["pipelines"][0]["layers"]:
            self.assertIn(" | cold(25%)={k=int4(group=row,asym), v=int4(group=row,asym)} | "
                          "cold(10%)=", layer["requested"])
            self.assertEqual(layer["requested"], layer["applied"])
            for name, store in zip(rows, layer["stores"], strict=True):
                self.assertIn(name, store["store"])
                self.assertEqual(store["rows_kept"], 3 * rows[name])
                self.assertEqual(store["payload_bytes"] + store["scale_bytes"],
                                 3 * rows[name] * size[name])
            self.assertEqual(sum(s["kept_bytes"] for s in layer["stores"]),
                             layer["bytes"]["kept_bytes"])
        self.assertRegex(out, r"(?m)^ *3840 +50\.0 .*k=int4\(group=row,asym\), v=int4")
        self.assertNotIn("stored as", self.results("report", TRACE, "-p", "none | kv=int8"))

    def write_scores(self, name, tensors):
        """A safetensors file: name -> dtype, shape, bytes."""
        header, body = {}, b""
        for tensor, (dtype, shape, data) in tensors.items():
            header[tensor] = {"dtype": dtype, "shape": shape,
                              "data_offsets": [len(body), len(body) + len(data)]}
            body += data
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(self.path(name), "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text + body)
        return self.path(name)

    def scores(self):
        """Per layer of the bundled trace: head h wants rows 100 h + 10 .. 100 h + 12 most."""
        values = [float(1000 + row if 100 * head + 10 <= row < 100 * head + 13 else -row)
                  for head in range(3) for row in range(1024)]
        data = struct.pack(f"<{len(values)}f", *values)
        return {f"layer.{i}.scores": ("F32", [3, 1024], data) for i in (0, 7, 14, 21, 29)}

    def test_scores_from_a_file_decide_which_rows_stay(self):
        file = self.write_scores("scores.safetensors", self.scores())
        out = self.path("out.safetensors")
        spec = "external(budget=5,sinks=2) | kv=f16"
        self.results("compact", TRACE, "-p", spec, "--scores", file, "-o", out)
        header, data = read_safetensors(out)
        for i in (0, 7, 14, 21, 29):
            for h in range(3):
                begin, end = header[f"layer.{i}.head.{h}.positions"]["data_offsets"]
                self.assertEqual(struct.unpack("<5i", data[begin:end]),
                                 (0, 1, *range(100 * h + 10, 100 * h + 13)))
        for command in ("report", "compare"):
            report = self.json_of(command, TRACE, "-p", spec, "--scores", file, "--json", "-")
            self.assertEqual(report["pipelines"][0]["rows"]["rows_kept"], 5 * 3 * 5)

    def test_scores_that_do_not_fit_are_refused(self):
        good = self.scores()
        spec = "external(budget=25%)"
        compact = ["compact", TRACE, "-o", self.path("out.safetensors"), "-p"]
        self.assertIn("add --scores FILE", self.complaint(*compact, spec))
        file = self.write_scores("good.safetensors", good)
        self.assertIn("no pipeline ranks by scores handed in",
                      self.complaint(*compact, "none | kv=int8", "--scores", file))
        self.assertIn("decode rows have none",
                      self.complaint("compare", TRACE, "-p", "external(budget=64)|schedule=every(8)",
                                     "--decode-rows", "stored", "--scores", file))
        dtype, shape, data = good["layer.7.scores"]
        for name, tensors, message in [
                ("missing", {k: v for k, v in good.items() if k != "layer.7.scores"},
                 "tensor 'layer.7.scores': is missing"),
                ("shape", {**good, "layer.7.scores": (dtype, [1024, 3], data)},
                 "tensor 'layer.7.scores': has shape [1024, 3], expected [3, 1024]"),
                ("dtype", {**good, "layer.7.scores": ("I32", shape, data)}, "is I32, expected F32"),
                ("name", {**good, "layer.8.scores": good["layer.7.scores"]},
                 "tensor 'layer.8.scores': is not layer.{i}.scores of a layer of the trace")]:
            file = self.write_scores(f"{name}.safetensors", tensors)
            self.assertIn(message, self.complaint(*compact, spec, "--scores", file))
        self.assertIn("absent.safetensors",
                      self.complaint(*compact, spec, "--scores", self.path("absent.safetensors")))

    def test_compact_writes_positions_and_decoded_rows_of_every_head(self):
        out = self.path("out.safetensors")
        self.results("compact", TRACE, "-p", SPEC, "-o", out, "--json", self.path("r.json"))
        with open(self.path("r.json")) as file:
            report = json.load(file)
        self.validate(report)
        header, data = read_safetensors(out)
        names = {f"layer.{i}.head.{h}.{part}" for i in (0, 7, 14, 21, 29) for h in range(3)
                 for part in ("positions", "tiers", "k", "v")}
        self.assertEqual(set(header) - {"__metadata__"}, names)
        rows = 0
        for i in (0, 7, 14, 21, 29):
            for h in range(3):
                positions = header[f"layer.{i}.head.{h}.positions"]
                n = positions["shape"][0]
                begin, end = positions["data_offsets"]
                values = struct.unpack(f"<{n}i", data[begin:end])
                self.assertEqual(list(values), sorted(set(values)))
                self.assertEqual(values[:4], (0, 1, 2, 3))       # sinks
                self.assertEqual(values[-32:], tuple(range(992, 1024)))  # window
                begin, end = header[f"layer.{i}.head.{h}.tiers"]["data_offsets"]
                tiers = struct.unpack(f"<{n}i", data[begin:end])
                self.assertEqual(tiers, (-1,) * 4 + (0,) * (n - 4))  # exact sinks
                for part in ("k", "v"):
                    tensor = header[f"layer.{i}.head.{h}.{part}"]
                    self.assertEqual((tensor["dtype"], tensor["shape"]), ("F32", [n, 64]))
                rows += n
        self.assertEqual(rows, report["pipelines"][0]["rows"]["rows_kept"])

    def test_compact_says_which_tier_holds_a_row(self):
        out = self.path("out.safetensors")
        spec = "recency(budget=40,sinks=0) | kv=int8 | cold(16)={kv=int4} | cold(8)={kv=int2} | " \
               "exact_sinks=2, tail=4"
        self.results("compact", TRACE, "-p", spec, "-o", out)
        header, data = read_safetensors(out)
        for i in (0, 7, 14, 21, 29):
            for h in range(3):
                self.assertEqual(header[f"layer.{i}.head.{h}.tiers"]["dtype"], "I32")
                begin, end = header[f"layer.{i}.head.{h}.tiers"]["data_offsets"]
                tiers = struct.unpack("<40i", data[begin:end])
                # The newest 40, the older the colder.
                self.assertEqual(tiers, (2,) * 8 + (1,) * 16 + (0,) * 12 + (-1,) * 4)

    def test_rows_that_move_to_colder_stores_are_counted(self):
        spec = "key_norm(budget=256) | kv=int8 | cold(128)={kv=int4} | schedule=every(8)"
        for demote in ("no", "yes"):
            report = self.json_of("compare", TRACE, "-p", f"{spec} | demote={demote}",
                                  "--decode-rows", "stored", "--json", "-")
            self.validate(report)
            moved = [layer["demoted_rows"] for layer in report["pipelines"][0]["layers"]]
            self.assertEqual(len(moved), 5)
            self.assertEqual(min(moved) > 0, demote == "yes")
            shown = self.results("compare", TRACE, "-p", f"{spec} | demote={demote}",
                                 "--decode-rows", "stored")
            line = f"demoted: {sum(moved)} rows moved to a colder store after the prompt: 1"
            self.assertEqual(line in shown, demote == "yes", shown)

    def test_compact_of_f16_rows_gives_the_rows_of_the_trace(self):
        out = self.path("out.safetensors")
        self.results("compact", TRACE, "-p", "none | kv=f16", "-o", out)
        header, data = read_safetensors(out)
        trace, trace_data = read_safetensors(TRACE)
        for part in ("k", "v"):
            begin, end = header[f"layer.14.head.1.{part}"]["data_offsets"]
            decoded = struct.unpack(f"<{1024 * 64}f", data[begin:end])
            begin = trace[f"layer.14.{part}"]["data_offsets"][0] + 1 * 1024 * 64 * 2
            recorded = struct.unpack(f"<{1024 * 64}e", trace_data[begin:begin + 1024 * 64 * 2])
            self.assertEqual(decoded, recorded)

    def test_an_existing_file_is_replaced_only_by_success(self):
        path = self.path("kept")
        with open(path, "w") as file:
            file.write("before")
        self.complaint("compact", TRACE, "-p", "snapkv(budget=8)", "-o", path)
        self.complaint("compare", self.path("absent"), "-p", "none", "--json", path)
        with open(self.only_file()) as file:
            self.assertEqual(file.read(), "before")
        self.results("compare", TRACE, "-p", "none", "--csv", path)
        with open(self.only_file()) as file:
            self.assertTrue(file.read().startswith("pipeline,"))

    def test_a_symbolic_link_is_written_through(self):
        target = self.path("target.csv")
        link = self.path("link.csv")
        os.symlink("target.csv", link)
        for _ in range(2):  # the target does not exist, then it does
            self.results("compare", self.small_trace(), "-p", "none", "--csv", link)
            self.assertTrue(os.path.islink(link))
            with open(target) as file:
                self.assertTrue(file.read().startswith("pipeline,"))
        self.results("gen", "-o", link, "--tokens", "50")
        self.assertTrue(os.path.islink(link))
        self.assertIn("50 at positions", self.results("inspect", target))

    def test_links_that_lead_in_a_circle_are_refused(self):
        link = self.path("circle")
        os.symlink("circle", link)
        self.assertIn("circle", self.complaint("gen", "-o", link))
        self.assertTrue(os.path.islink(link))

    def test_devices_are_written_in_place(self):
        self.results("compare", TRACE, "-p", "none", "--json", "/dev/null")
        self.assertFalse(os.path.isfile("/dev/null"))
        self.assertIn("regular file", self.complaint("gen", "-o", "/dev/null"))

    def test_json_on_standard_output_is_alone(self):
        json.loads(self.results("compare", TRACE, "-p", SPEC, "--json", "-"))
        json.loads(self.results("compact", TRACE, "-p", SPEC, "-o", self.path("o"), "--json", "-"))

    def test_pipes_get_no_colour_codes_and_no_progress(self):
        for command in [["compare", TRACE, "-p", SPEC], ["report", TRACE, "-p", SPEC], ["list"],
                        ["inspect", TRACE], ["explain", SPEC]]:
            run = self.run_cli(*command, TERM="xterm-256color")
            self.assertNotIn(ESCAPE, run.stdout + run.stderr)
            self.assertEqual(run.stderr, "")

    def test_quiet_leaves_results_alone(self):
        for command in [["compare", TRACE, "-p", SPEC, "--csv", "-"], ["list"],
                        ["explain", SPEC]]:
            quiet = self.results("--quiet", *command)
            self.assertEqual(len(quiet.splitlines()), len(self.results(*command).splitlines()))

    def test_html_needs_nothing_from_elsewhere(self):
        path = self.path("r.html")
        specs = ["-p", "none", "-p", "none | kv=int8", "-p", "snapkv(budget=25%)"]
        self.results("compare", TRACE, *specs, "--html", path)
        with open(path, encoding="utf-8") as file:
            page = file.read()
        self.assertTrue(page.startswith("<!doctype html>"))
        for outside in ["http:", "https:", "src=", "<script", "@import", "url("]:
            self.assertNotIn(outside, page)
        self.assertEqual(page.count("<circle"), 3)
        self.assertIn('class="front-line"', page)
        self.assertIn("snapkv(budget=25%)", page)
        for text in ["Pareto front of kept bytes", "mass of full attention", "layers 0, 7, 14"]:
            self.assertIn(text, page)
        # Figures on the points are as short as those of the table.
        self.assertRegex(page, r"<title>2: none \| kv=int8, \d+\.\d KiB, error 0\.\d{4}</title>")

    def test_html_says_what_did_not_run_as_asked(self):
        path = self.path("r.html")
        self.results("compare", self.small_trace(), "-p", "snapkv(budget=512)", "--html", path)
        with open(path, encoding="utf-8") as file:
            self.assertIn("200 of 512", file.read())


if __name__ == "__main__":
    unittest.main()

"""kvsieve explain, list, gen and inspect."""

import os
import unittest

from cli import CliTest, SOURCE_DIR, TRACE


class Commands(CliTest):
    def test_list_names_everything_in_text_and_json(self):
        text = self.results("list")
        listed = self.json_of("list", "--json")
        for group in ["evictors", "presets", "codecs", "transforms"]:
            self.assertTrue(listed[group])
            for info in listed[group]:
                self.assertTrue(info["summary"])
                self.assertIn(info["name"], text)
        names = {info["name"] for group in ("evictors", "presets", "codecs", "transforms")
                 for info in listed[group]}
        self.assertLessEqual({"snapkv", "snapkv_d", "recency", "random", "f16", "int8", "int4", "turbo",
                              "center", "hadamard"}, names)
        self.assertIn(listed["active_target"], listed["targets"])
        self.assertIn(f"{listed['active_target']}  <- active", text)

    def test_list_says_which_to_take_as_the_document_does(self):
        text = self.results("list")
        with open(os.path.join(SOURCE_DIR, "docs", "choosing.md"), encoding="utf-8") as file:
            document = file.read().replace("\\|", "|")
        recommended = self.json_of("list", "--json")["recommended"]
        self.assertTrue(recommended)
        for one in recommended:
            self.results("explain", one["spec"])
            for field in ("when", "spec"):
                self.assertIn(one[field], text)
            self.assertIn(f"`{one['spec']}`", document)

    def test_list_says_which_store_to_take_as_the_document_does(self):
        text = self.results("list")
        with open(os.path.join(SOURCE_DIR, "docs", "storage.md"), encoding="utf-8") as file:
            document = file.read().replace("\\|", "|")
        stores = self.json_of("list", "--json")["recommended_stores"]
        self.assertTrue(stores)
        for one in stores:
            self.assertIn(f"{one['bits']:.3f} bits a value", text)
            self.assertIn(one["spec"], text)
            self.assertIn(f"| {one['bits']:.3f} | `{one['spec']}` |", document)

    def test_list_lines_fit_a_terminal(self):
        for line in self.results("list").splitlines():
            self.assertLessEqual(len(line), 100, line)

    def test_explain_counts_bytes_per_row_for_the_dimension(self):
        # int8: one byte per element and a 2-byte scale.
        self.assertIn("130 at dim 128", self.results("explain", "none | kv=int8"))
        small = self.results("explain", "none | kv=int8", "--key-dim", "64", "--value-dim", "96")
        self.assertIn("66 at dim 64", small)
        self.assertIn("98 at dim 96", small)

    def test_explain_json_holds_a_canonical_spec_that_means_the_same(self):
        once = self.json_of("explain", "snapkv(budget=25%)|kv=turbo4", "--json")
        twice = self.json_of("explain", once["spec"], "--json")
        self.assertEqual(once["spec"], twice["spec"])
        self.assertEqual(once["text"].rstrip("\n"),
                         self.results("explain", once["typed"]).rstrip("\n"))

    def test_gen_writes_the_same_bytes_for_the_same_seed(self):
        def generated(name, seed):
            self.results("gen", "-o", self.path(name), "--tokens", "100", "--seed", seed)
            with open(self.path(name), "rb") as file:
                return file.read()
        self.assertEqual(generated("a", "1"), generated("b", "1"))
        self.assertNotEqual(generated("a", "1"), generated("c", "2"))

    def test_every_preset_can_be_generated_inspected_and_compared(self):
        presets = self.results("gen", "--help").split("Presets:\n")[1].split("\n\n")[0]
        names = [line.split()[0] for line in presets.splitlines() if line.strip()]
        self.assertGreaterEqual(len(names), 3)
        for name in names:
            trace = self.small_trace(preset=name)
            self.assertIn(f"synthetic {name}", self.results("inspect", trace))
            self.assertIn("snapkv", self.results("compare", trace, "-p", "snapkv(budget=50%)"))

    def test_gen_honours_shapes(self):
        trace = self.small_trace(layers=3, dtype="f32", **{"query-heads": 6, "kv-heads": 3,
                                                           "key-dim": 48, "value-dim": 32})
        report = self.json_of("compare", trace, "-p", "none", "--json", "-")
        self.assertEqual(len(report["trace"]["layers"]), 3)
        for layer in report["trace"]["layers"]:
            self.assertEqual([layer[k] for k in ("query_heads", "kv_heads", "key_dim",
                                                 "value_dim")], [6, 3, 48, 32])
        self.assertIn("f32 f32", self.results("inspect", trace))

    def test_inspect_shows_shapes_sizes_and_metadata(self):
        out = self.results("inspect", TRACE)
        for text in ["kv-trace 1, valid", "1024 at positions 0..1023", "64 at positions 960..1023",
                     "48 at positions 1024..1071", "f16 f16", "0.125", "eval rows, outputs",
                     "SmolLM2-135M-Instruct", "Apache-2.0", "rope.theta"]:
            self.assertIn(text, out)
        self.assertIn(f"{os.path.getsize(TRACE) / 1024:.1f} KiB", out)

    def test_inspect_recognises_what_compact_wrote(self):
        out = self.path("kept.safetensors")
        self.results("compact", TRACE, "-p", "snapkv(budget=25%)", "-o", out)
        text = self.results("inspect", out)
        self.assertIn("kvsieve compact", text)
        # 256 of 1024 rows in each of 3 KV heads.
        self.assertRegex(text, r"(?m)^ *29 +3 +64 +64 +768 +256$")
        self.assertIn("is not a name of kv-trace 1", self.complaint("compare", out, "-p", "none"))

    def test_inspect_shows_the_rows_of_each_tier(self):
        out = self.path("tiers.safetensors")
        self.results("compact", TRACE, "-p",
                     "snapkv(budget=50%) | kv=int8 | cold(25%)={kv=int4} | exact_sinks=4", "-o", out)
        # Of 512 rows in each of 3 heads 4 are exact and 256 cold.
        self.assertRegex(self.results("inspect", out),
                         r"(?m)^ *29 +3 +64 +64 +1536 +512 +12 exact, 756 in tier 0, 768 in tier 1$")
        golden = os.path.join(SOURCE_DIR, "tests", "golden", "state", "v2_tiers.kvs")
        self.assertRegex(self.results("inspect", golden), r"\d+ exact; \d+ of k=.*; \d+ of k=")

    def test_inspect_checks_a_saved_cache_and_shows_what_it_holds(self):
        golden = os.path.join(SOURCE_DIR, "tests", "golden", "state", "v1_stored.kvs")
        text = self.results("inspect", golden)
        for expected in ["v1_stored.kvs: saved cache, format 1, valid", "identity:  golden",
                         "random(seed=0,budget=40", "prompt:    finished",
                         "next 60, exact again from 60",
                         "rows are stored rounded, tokens have no row any more"]:
            self.assertIn(expected, text)
        self.assertRegex(text, r"(?m)^ *0 +2 +2 +16 +24 +all +60 +80 +\d+\.\d +12 exact; 68 of k=center\+turbo")
        with open(golden, "rb") as file:
            state = bytearray(file.read())
        state[-20] ^= 1
        broken = self.path("broken.kvs")
        with open(broken, "wb") as file:
            file.write(state)
        self.assertIn("layer 3: checksum", self.complaint("inspect", broken))

    def test_gen_names_its_presets_and_says_when_a_window_is_too_long(self):
        self.assertRegex(self.results("gen", "--help"), r"--preset NAME[^\n]*needle")
        command = ["gen", "-o", self.path("t"), "--tokens", "100", "--window", "5000"]
        run = self.run_cli(*command)
        self.assertEqual(run.returncode, 0)
        self.assertRegex(run.stderr, r"\Akvsieve: warning: --window 5000 [^\n]*100[^\n]*\n\Z")
        self.assertEqual(self.run_cli("--quiet", *command).stderr, "")
        self.assertIn("window queries: 100 at", self.results("inspect", self.path("t")))


if __name__ == "__main__":
    unittest.main()

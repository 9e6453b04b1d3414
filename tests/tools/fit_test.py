"""kvsieve fit: plans against what report measures, verdicts, suggestions, mistakes."""

import json
import os
import resource
import subprocess
import unittest

from cli import CliTest, KVSIEVE, SOURCE_DIR, TRACE

MODELS = os.path.join(SOURCE_DIR, "tests", "tools", "models")
SPEC = "snapkv(budget=25%) | k=center+turbo4, v=turbo4 | tail=16"


def model(name):
    return os.path.join(MODELS, f"{name}.json")


class Fit(CliTest):
    def fit(self, name, ctx, *args):
        return self.json_of("fit", "--model", model(name), "--ctx", str(ctx), *args, "--json", "-")

    def exit_code(self, *args):
        run = self.run_cli("fit", *args)
        self.assertEqual(run.stderr, "", args)
        return run.returncode

    def test_counts_every_layer_by_its_own_shape(self):
        for name, ctx, payload in [("dense", 8192, 1073741824),
                                   ("window_and_global", 131072, 2483027968),
                                   ("hybrid", 65536, 12 * 65536 * 2 * 256 * 2 * 2)]:
            plan = self.fit(name, ctx)["pipelines"][0]
            self.assertEqual(plan["bytes"]["payload_bytes"], {"least": payload, "most": payload})
            self.assertEqual(plan["bytes"]["full_bytes"]["most"], payload)
            self.assertEqual(plan["kept"]["least"], plan["kept"]["most"])

    def test_holds_what_report_measures(self):
        # The shapes of the trace: 5 layers with 3 KV heads of 64.
        config = self.path("config.json")
        with open(config, "w") as file:
            json.dump({"num_hidden_layers": 5, "hidden_size": 576, "num_attention_heads": 9,
                       "num_key_value_heads": 3}, file)
        for spec in ["none | kv=q4_0", SPEC, "snapkv(budget=6x) | kv=int8", "best(8x)",
                     "snapkv(budget=25%,split=adaptive) | kv=int4"]:
            measured = self.json_of("report", TRACE, "-p", spec, "--json", "-")["pipelines"][0]
            planned = self.json_of("fit", "--model", config, "--ctx", "1024", "-p", spec, "--json",
                                   "-")["pipelines"][0]
            self.assertEqual(planned["spec"], measured["spec"])
            for field, bounds in planned["bytes"].items():
                self.assertLessEqual(bounds["least"], measured["bytes"][field], (spec, field))
                self.assertGreaterEqual(bounds["most"], measured["bytes"][field], (spec, field))
            self.assertLessEqual(planned["kept"]["least"], measured["bytes"]["kept_bytes"])
            self.assertGreaterEqual(planned["kept"]["most"], measured["bytes"]["kept_bytes"])

    def test_of_plans_the_most_is_told_and_called_so(self):
        command = ["fit", "--model", model("dense"), "--ctx", "32768", "-p", "best(8x)"]
        plan = self.json_of(*command, "--json", "-")["pipelines"][0]
        # 128 KiB a token at f16.
        self.assertEqual(plan["kept"], {"least": 0, "most": 32768 * 131072 // 8})
        self.assertTrue(plan["at_most"])
        self.assertGreater(plan["resident"]["most"], plan["kept"]["most"])
        self.assertFalse(self.fit("dense", 32768, "-p", SPEC)["pipelines"][0]["at_most"])
        text = self.results(*command)
        self.assertIn(" <=512.0 ", text)
        self.assertIn("<=: at most;", text)
        self.assertNotIn("<=", self.results(*command[:-1], SPEC))
        resident = plan["resident"]["most"]
        self.assertEqual(self.exit_code(*command[1:], "--mem", f"{resident}B"), 0)
        self.assertEqual(self.exit_code(*command[1:], "--mem", f"{resident - 1}B"), 1)
        self.assertIn("maybe", self.run_cli(*command, "--mem", f"{resident - 1}B").stdout)
        self.assertIn("5 decode tokens", self.complaint(*command, "--decode", "5"))

    def test_the_answer_is_the_exit_code(self):
        arguments = ["--model", model("dense"), "--ctx", "131072", "-p", "none | kv=f16"]
        self.assertEqual(self.exit_code(*arguments), 0)
        # 32 layers x 8 heads x 128 x 2 x 2 B = 128 KiB a token; a position per head beside it.
        resident = 131072 * 131072 + 32 * 8 * 4
        self.assertEqual(self.exit_code(*arguments, "--mem", f"{resident}B"), 0)
        self.assertEqual(self.exit_code(*arguments, "--mem", f"{resident - 1}B"), 1)
        self.assertEqual(self.exit_code(*arguments, "--mem", "5GiB", "-p", "none | kv=q4_0"), 0)

    def test_the_longest_context_is_the_last_that_fits(self):
        for spec in ["none | kv=int8 | tail=64", SPEC]:
            arguments = ["--model", model("dense"), "--mem", "3GiB", "-p", spec, "--decode", "100"]
            plan = self.json_of("fit", "--ctx", "1000", *arguments, "--json", "-")["pipelines"][0]
            longest = plan["longest_tokens"]
            self.assertEqual(self.exit_code("--ctx", str(longest), *arguments), 0)
            self.assertEqual(self.exit_code("--ctx", str(longest + 1), *arguments), 1)
        bounded = self.fit("dense", 1000, "--mem", "3GiB", "-p", "recency(budget=512)")
        self.assertEqual(bounded["pipelines"][0]["longest_tokens"], 1 << 24)

    def test_long_contexts_take_no_time_of_their_own(self):
        # Seconds of this process's time, so that others on the machine do not count: 0.3
        # to 1.5 s, with sanitizers up to 9; with a list of up to 16M positions in every step the
        # first took minutes.
        for name, ctx, decode, memory, spec in [
                ("dense", 131072, 0, "24GiB", "snapkv(budget=4GiB) | kv=int8"),
                ("dense", 131072, 0, "24GiB",
                 "snapkv(budget=6x,split=adaptive) | k=center+turbo4, v=turbo4 | tail=16"),
                ("window_and_global", 1 << 24, (1 << 24) - 100, "200GiB", "none | kv=int8")]:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            self.fit(name, ctx, "--decode", str(decode), "--mem", memory, "-p", spec)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            self.assertLess(spent, 30, spec)

    def test_suggestions_fit_and_stand_by_their_error(self):
        every = self.fit("dense", 32768, "--suggest")["pipelines"]
        memory = 2 << 30
        fitting = self.fit("dense", 32768, "--suggest", "--mem", f"{memory}B")["pipelines"]
        self.assertLess(0, len(fitting))
        self.assertLess(len(fitting), len(every))
        recommended = {one["spec"] for one in self.json_of("list", "--json")["recommended"]}
        self.assertLessEqual(recommended, {plan["typed"] for plan in every})
        for plan in fitting:
            self.assertLessEqual(plan["resident"]["most"], memory)
            self.assertEqual(plan["fits"], "yes")
        for plans in (every, fitting):
            errors = [plan["output_rel_error"] for plan in plans]
            measured = [error for error in errors if error is not None]
            self.assertEqual(measured, sorted(measured))
            self.assertEqual(errors[:len(measured)], measured)
        self.assertEqual(self.exit_code("--model", model("dense"), "--ctx", "1000000", "--suggest",
                                        "--mem", "1MiB"), 1)

    def test_errors_of_suggestions_are_those_that_compare_measures(self):
        plans = [plan for plan in self.fit("dense", 1024, "--suggest")["pipelines"]
                 if plan["output_rel_error"] is not None]
        specs = [text for plan in plans for text in ("-p", plan["typed"])]
        compared = self.json_of("compare", TRACE, *specs, "--json", "-")["pipelines"]
        self.assertEqual(len(compared), len(plans))
        for plan, measured in zip(plans, compared):
            mean = measured["accuracy"]["output_rel_error"]["mean"]
            # Kernels may round queries and weights so far that the error grows by 5 %.
            self.assertAlmostEqual(plan["output_rel_error"], mean, delta=0.0001 + 0.05 * mean)

    def test_the_table_says_what_it_means(self):
        text = self.results("fit", "--model", model("window_and_global"), "--ctx", "131072",
                            "--mem", "24GiB", "-p", SPEC)
        for part in ["40 layers of 8 KV heads x 256, window 1024; 8 layers of 1 KV head x 512", "longest",
                     "payload_bytes", "at prefill", "yes", SPEC]:
            self.assertIn(part, text)
        notes = self.results("fit", "--model", model("shared"), "--ctx", "4096")
        self.assertIn("the last 15 layers use K and V of earlier ones", notes)
        self.assertIn("36 of 48 layers hold no K and V",
                      self.results("fit", "--model", model("hybrid"), "--ctx", "4096"))

    def test_mistakes_are_named(self):
        dense = ["--model", model("dense"), "--ctx", "4096"]
        self.assertIn("--model", self.complaint("fit", "--ctx", "4096"))
        self.assertIn("--ctx", self.complaint("fit", "--model", model("dense")))
        for bad in ["0", "-1", "16777217", "1e6"]:
            self.assertIn("--ctx", self.complaint("fit", "--model", model("dense"), "--ctx", bad))
        for bad in ["much", ""]:
            self.assertIn("--mem", self.complaint("fit", *dense, "--mem", bad))
        self.assertIn("it is the model's config that is read",
                      self.complaint("fit", *dense, "--json", model("dense")))
        self.assertIn("--decode 5000", self.complaint("fit", *dense, "--decode", "5000"))
        self.assertIn("f16,bf16,f32", self.complaint("fit", *dense, "--rows", "int8"))
        self.assertIn("column ", self.complaint("fit", *dense, "-p", "none | kv=int9"))
        self.assertIn("layer 0", self.complaint("fit", *dense, "-p", "none | kv=int4(group=48)"))
        self.assertIn("every(8)", self.complaint("fit", *dense, "--decode", "9", "-p",
                                                 "random(budget=64) | schedule=every(8)"))
        for text in ["{", "{}"]:
            path = self.path("bad.json")
            with open(path, "w") as file:
                file.write(text)
            self.assertIn(path, self.complaint("fit", "--model", path, "--ctx", "5"))
        absent = self.path("absent.json")
        self.assertIn(absent, self.complaint("fit", "--model", absent, "--ctx", "5"))
        self.assertIn(self.folder, self.complaint("fit", "--model", self.folder, "--ctx", "5"))

    def test_text_of_the_config_is_shown_without_control_characters(self):
        config = self.path("config.json")
        with open(config, "w") as file:
            json.dump({"model_type": "x\x1b[31mred\nnew\x7f", "num_hidden_layers": 2,
                       "num_attention_heads": 4, "head_dim": 64}, file)
        shown = self.results("fit", "--model", config, "--ctx", "4096")
        self.assertIn("x?[31mred?new?: 2 layers of 4 KV heads x 64", shown)
        self.assertNotRegex(shown, "[\x00-\x09\x0b-\x1f\x7f]")

    def test_out_of_memory_is_told_without_a_trace(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_AS, (192 << 20, 192 << 20))

        def run(*args):
            return subprocess.run([KVSIEVE, *args], capture_output=True, text=True,
                                  preexec_fn=limit, timeout=60)

        if run("--version").returncode != 0:
            self.skipTest("does not start in so little memory (a sanitizer)")
        config = self.path("config.json")
        with open(config, "w") as file:  # parsed: 16 bytes for each element
            file.write("[" + "0," * (7 << 20) + "0]" + " " * 100)
        failed = run("--threads", "1", "fit", "--model", config, "--ctx", "4096")
        self.assertEqual(failed.returncode, 2)
        self.assertEqual(failed.stderr,
                         "kvsieve: out of memory, use a smaller input or fewer threads\n")

    def test_what_a_model_cannot_have_is_left_out_of_suggestions(self):
        config = self.path("config.json")
        with open(config, "w") as file:
            json.dump({"num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 80}, file)
        command = ["fit", "--model", config, "--ctx", "4096", "--suggest"]
        run = self.run_cli(*command)
        self.assertEqual(run.returncode, 0)
        self.assertIn("kvsieve: warning: left out: pipeline 'none | kv=q8_0'", run.stderr)
        self.assertNotIn("q8_0", run.stdout)
        self.assertEqual(self.run_cli("--quiet", *command).stderr, "")


if __name__ == "__main__":
    unittest.main()

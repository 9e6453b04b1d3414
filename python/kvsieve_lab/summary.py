"""Tables of results: what each pipeline cost, over texts, as JSON and Markdown."""

import math
from collections import defaultdict
from statistics import fmean, median

from .choice import leave_one_out, regrets

SCHEMA = "kvsieve.evaluate/1"


def _mean(results: list[dict], name: str) -> float:
    return fmean(result[name] for result in results)


def _ppl_change(results: list[dict]) -> float:
    """Mean over texts of the change of perplexity, in per cent."""
    return fmean(100 * (math.exp(r["nll"] - r["nll_full"]) - 1) for r in results)


def _text_row(spec: str, by_name: dict[str, dict]) -> dict:
    results = list(by_name.values())
    return {
        "spec": spec,
        "ratio": _mean(results, "ratio"),
        "payload_ratio": _mean(results, "payload_ratio"),
        "rows_kept": _mean(results, "rows_kept"),
        "kld": {name: result["kld_mean"] for name, result in by_name.items()},
        "kld_mean": _mean(results, "kld_mean"),
        "kld_median": median(result["kld_mean"] for result in results),
        "kld_worst": max(result["kld_mean"] for result in results),
        "kld_p99": _mean(results, "kld_p99"),
        "ppl_full": {name: math.exp(result["nll_full"]) for name, result in by_name.items()},
        "ppl": {name: math.exp(result["nll"]) for name, result in by_name.items()},
        "ppl_change_percent": _ppl_change(results),
        "top1_percent": 100 * _mean(results, "top1"),
    }


def _needle_row(spec: str, group: str, trials: list[tuple[dict, dict]]) -> dict:
    results = [result for _, result in trials]
    depths = defaultdict(list)
    for settings, result in trials:
        depths[settings["depth"]].append(result)
    return {
        "spec": spec,
        "question": group,
        "ratio": _mean(results, "ratio"),
        "n": len(results),
        "exact_percent": 100 * fmean(result["right"] == 1 for result in results),
        "right_percent": 100 * _mean(results, "right"),
        "nats": _mean(results, "nll"),
        "right_percent_by_depth": {
            depth: 100 * _mean(own, "right") for depth, own in sorted(depths.items())
        },
    }


def _full_needle(group: str, trials: list[tuple[dict, dict]]) -> dict:
    """The model's own rate, from the logits of the full cache."""
    plain = [
        (s, {"ratio": 1.0, "right": r["right_full"], "nll": r["nll_full"]}) for s, r in trials
    ]
    return _needle_row("(full cache)", group, plain)


def _table(kind: str, n_prompt: int, rows: list[dict]) -> dict:
    return {
        "kind": kind,
        "n_prompt": n_prompt,
        "rows": rows,
        "leave_one_out": leave_one_out(rows),
        "regrets": regrets(rows),
    }


def summarize(measured: list[tuple[dict, dict]], specs: list[str], about: dict) -> dict:
    tables, needles = defaultdict(dict), defaultdict(lambda: defaultdict(list))
    for settings, result in measured:
        if settings["kind"] == "needle":
            needles[settings["group"]][settings["spec"]].append((settings, result))
        else:
            table = tables[settings["kind"], settings["n_prompt"]]
            table.setdefault(settings["spec"], {})[settings["name"]] = result
    return {
        "schema": SCHEMA,
        **about,
        "texts": [
            _table(kind, n, [_text_row(spec, table[spec]) for spec in specs if spec in table])
            for (kind, n), table in tables.items()
        ],
        "needles": [
            row
            for group, by_spec in needles.items()
            for row in [
                _full_needle(group, next(iter(by_spec.values()))),
                *(_needle_row(spec, group, by_spec[spec]) for spec in specs if spec in by_spec),
            ]
        ],
    }


def _cell(text: str) -> str:
    return "`" + text.replace("|", "\\|") + "`"


def _lines(head: list[str], rows: list[list[str]]) -> list[str]:
    table = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(row) + " |" for row in table] + [""]


def _text_lines(table: dict) -> list[str]:
    names = list(table["rows"][0]["kld"])
    full = ", ".join(f"{n} {table['rows'][0]['ppl_full'][n]:.2f}" for n in names)
    head = ["pipeline", "ratio", "payload ratio", "rows", *(f"KLD {name}" for name in names)]
    head += ["KLD mean", "KLD median", "KLD worst", "KLD p99", "ppl change %", "top-1 %"]
    rows = [
        [
            _cell(row["spec"]), f"{row['ratio']:.2f}", f"{row['payload_ratio']:.2f}",
            f"{row['rows_kept']:.0f}",
            *(f"{row['kld'][name]:.5f}" if name in row["kld"] else "" for name in names),
            *(f"{row[f'kld_{name}']:.5f}" for name in ("mean", "median", "worst")),
            f"{row['kld_p99']:.4f}",
            f"{row['ppl_change_percent']:+.2f}", f"{row['top1_percent']:.1f}",
        ]
        for row in table["rows"]
    ]  # fmt: skip
    title = {"text": "Next tokens of a text", "copy": "Copying from far back"}[table["kind"]]
    return [
        f"## {title}, prompt of {table['n_prompt']} tokens",
        "",
        f"Perplexity with the full cache: {full}.",
        "",
        *_lines(head, rows),
    ]


def _choice_lines(table: dict) -> list[str]:
    head = ["left out", "chosen on the others", "KLD there", "best there", "KLD", "regret"]
    rows = [
        [
            one["text"], _cell(one["chosen"]), f"{one['kld']:.5f}",
            _cell(one["best"]), f"{one['kld_best']:.5f}", f"{one['regret']:.2f}",
        ]
        for one in table["leave_one_out"]
    ]  # fmt: skip
    regret = [
        [_cell(one["spec"]), f"{one['mean']:.2f}", f"{one['worst']:.2f}"]
        for one in table["regrets"]
    ]
    return [
        "Leave one text out:",
        "",
        *_lines(head, rows),
        *_lines(["pipeline", "regret, geometric mean", "worst"], regret),
    ]


def _needle_lines(needles: list[dict]) -> list[str]:
    head = ["question", "pipeline", "ratio", "n", "exact %", "right tokens %", "nats a token"]
    head += ["right % by depth"]
    rows = [
        [
            row["question"], _cell(row["spec"]), f"{row['ratio']:.2f}", str(row["n"]),
            f"{row['exact_percent']:.0f}", f"{row['right_percent']:.1f}", f"{row['nats']:.3f}",
            "/".join(f"{value:.0f}" for value in row["right_percent_by_depth"].values()),
        ]
        for row in needles
    ]  # fmt: skip
    return ["## Needle", "", *_lines(head, rows)]


def markdown(summary: dict, choice: bool = False) -> str:
    """`choice`: with the tables of leaving one text out."""
    lines = [f"# {summary['model']}, next {summary['n_eval']} tokens", ""]
    for table in summary["texts"]:
        lines += _text_lines(table)
        if choice and table["leave_one_out"]:
            lines += _choice_lines(table)
    if summary["needles"]:
        lines += _needle_lines(summary["needles"])
    return "\n".join(lines)

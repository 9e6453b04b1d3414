"""Writes the golden files of the eviction presets.

    make_golden.py                 all presets whose system can be run here
    make_golden.py NAME...         these
    make_golden.py --check [NAME...]   compares with the files instead: exit 1 when one differs

Two systems are run, the other four are transcribed from their formulas; see README.md. The day in
a file is that of its last change.
"""

import argparse
import datetime
import json
import pathlib
import sys

from contrasts import CONTRASTS
from presets import PRESETS
from problems import PROBLEMS
from selection import Refused, Unclear

FOLDER = pathlib.Path(__file__).parent
SEEDS = 3000


def kept_json(kept):
    """[layer][kv_head], or one entry where all heads of all layers keep the same rows."""
    sets = [[head.to_json() for head in layer] for layer in kept]
    first = sets[0][0]
    return first if all(head == first for layer in sets for head in layer) else sets


def solve(preset, number, prompt, settings):
    """(prompt with its seed, kept rows): the first seed that leaves no doubt."""
    for seed in range(100 * number + 1, 100 * number + SEEDS):
        seeded = prompt.with_seed(seed)
        try:
            return seeded, preset.formula(seeded, **settings)
        except Unclear:
            continue
    raise RuntimeError("every seed leaves a doubt")


def confirmed(preset, prompt, settings, kept):
    """The rows of a real run, which must be among what the formula allows. Where the formula
    leaves ties open, they stay open: another build of the system may break them otherwise."""
    ran = preset.runner.run(prompt, **settings)
    for layer, layer_ran in zip(kept, ran, strict=True):
        for head, head_ran in zip(layer, layer_ran, strict=True):
            if not head.allows(head_ran.certain):
                raise RuntimeError(f"the run keeps {head_ran}, the formula {head}")
    return [[head if head.tied else head_ran for head, head_ran in zip(*layers, strict=True)]
            for layers in zip(kept, ran, strict=True)]


def solved_json(preset, number, name, prompt, settings):
    seeded, kept = solve(preset, number, prompt, settings)
    extra = {}
    if preset.runner:
        try:
            kept = confirmed(preset, seeded, settings, kept)
        except Refused as refusal:
            # Nothing to reproduce; what the preset does instead is recorded.
            extra = {"original_refuses": str(refusal)}
    side = problem_json(seeded, preset.spec(settings, seeded), kept)
    return {"name": name, **extra, **side}


def problem_json(prompt, spec, kept):
    return {**({"spec": spec} if spec else {}), **prompt.to_json(), "kept": kept_json(kept)}


def contrast_json(contrast):
    sides = {key: problem_json(side.prompt, side.spec, side.kept)
             for key, side in (("original", contrast.original), ("right", contrast.right))}
    return {"name": contrast.name, "why": contrast.why, "preset": contrast.preset, **sides}


def golden(preset):
    problems = []
    for number, (name, prompt, settings) in enumerate(PROBLEMS[preset.name]):
        try:
            problems.append(solved_json(preset, number, name, prompt, settings))
        except RuntimeError as error:
            raise RuntimeError(f"{preset.name}, problem '{name}': {error}") from error
    make = CONTRASTS[preset.name]
    contrasts = make(preset.runner.run) if preset.runner else make()
    source = preset.runner.system() if preset.runner else preset.source
    return {"preset": preset.name, "how": "run" if preset.runner else "transcribed", **source,
            "problems": problems, "contrasts": [contrast_json(c) for c in contrasts]}


def without_day(document):
    return {key: value for key, value in document.items() if key != "day"}


def update(preset, check):
    """Whether the file is (now) up to date."""
    path = FOLDER / f"{preset.name}.json"
    old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    new = golden(preset)
    if without_day(old) == new:
        print(f"{path.name}: unchanged, {len(new['problems'])} problems")
        return True
    if check:
        print(f"{path.name}: differs from what {new['how']} gives now", file=sys.stderr)
        return False
    head = {key: new.pop(key) for key in ("preset", "how")}
    document = {**head, "day": datetime.date.today().isoformat(), **new}
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{path.name}: written, {len(document['problems'])} problems")
    return True


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PRESETS))
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    options = parser.parse_args(arguments)
    unknown = set(options.names) - set(PRESETS)
    if unknown:
        parser.error(f"unknown preset {', '.join(sorted(unknown))} (known: {', '.join(PRESETS)})")
    done = True
    for preset in PRESETS.values():
        if options.names and preset.name not in options.names:
            continue
        if preset.runner and preset.runner.MISSING:
            print(f"{preset.name}.json: not written, it needs {preset.runner.MISSING}",
                  file=sys.stderr)
            done = done and not options.names
        else:
            done = update(preset, options.check) and done
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

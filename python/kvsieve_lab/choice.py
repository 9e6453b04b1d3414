"""Whether the best pipeline is a choice or luck: chosen on all texts but one, judged there."""

from statistics import fmean, geometric_mean

_TINY = 1e-12  # nats: a divisor, where a pipeline changes nothing at all

def leave_one_out(rows: list[dict]) -> list[dict]:
    """Per text: the pipeline of the least mean KLD on the other texts, and its regret, the KLD it
    has on the text left out over the least KLD of any pipeline there.

    `rows` as in a summary, {"spec", "kld": {text: KLD}}; those not measured on every text are left
    out. With fewer than two texts there is nothing to choose on."""
    texts, complete = _complete(rows)
    if len(texts) < 2 or not complete:
        return []
    return [_left_out(text, texts, complete) for text in texts]


def regrets(rows: list[dict]) -> list[dict]:
    """Per pipeline measured on every text, its regret over the texts: geometric mean and worst. Here
    every text counts the same, while a mean KLD is mostly that of the hardest."""
    texts, complete = _complete(rows)
    least = {text: min(row["kld"][text] for row in complete) for text in texts} if complete else {}
    found = []
    for row in complete:
        each = [_regret(row["kld"][text], least[text]) for text in texts]
        found.append({"spec": row["spec"], "mean": geometric_mean(each), "worst": max(each)})
    return found


def _complete(rows: list[dict]) -> tuple[list[str], list[dict]]:
    texts = list(dict.fromkeys(text for row in rows for text in row["kld"]))
    return texts, [row for row in rows if len(row["kld"]) == len(texts)]


def _regret(kld: float, least: float) -> float:
    return 1.0 if kld == least else kld / max(least, _TINY)


def _left_out(text: str, texts: list[str], rows: list[dict]) -> dict:
    others = [other for other in texts if other != text]
    chosen = min(rows, key=lambda row: fmean(row["kld"][other] for other in others))
    best = min(rows, key=lambda row: row["kld"][text])
    kld, least = chosen["kld"][text], best["kld"][text]
    return {
        "text": text,
        "chosen": chosen["spec"],
        "kld": kld,
        "best": best["spec"],
        "kld_best": least,
        "regret": _regret(kld, least),
    }

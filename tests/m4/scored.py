"""A result of an evaluation, written by hand."""

from examples.m4.evaluation import average_scores


def row(language: str, pairs: int, bleu: float, chrf: float, name: str = "main") -> dict:
    one = {
        "source": f"{language} source",
        "english": f"{language} english",
        "translation": f"{language} made",
    }
    return {
        "set": name,
        "language": language,
        "train_pairs": pairs,
        "sentences": 1,
        "bleu": bleu,
        "chrf": chrf,
        "samples": [one],
    }


ROWS = [
    row("aa", 10, 1.0, 2.0),
    row("bb", 400, 9.0, 10.0),
    row("cc", 20, 3.0, 4.0),
    row("dd", 300, 8.0, 16.0),
]
RESULT = {
    "step": 7,
    "signatures": {"bleu": "SIGNED"},
    "languages": ROWS,
    "averages": average_scores(ROWS),
}

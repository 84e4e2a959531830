"""Measures a checkpoint, or vectors trained elsewhere: `python evaluate.py checkpoint=PATH`; see README.md."""

from kgc.cli import evaluate

if __name__ == "__main__":
    evaluate()

"""Trains a model and measures it: `python train.py [group=choice] [key=value]`; see README.md."""

from kgc.cli import train

if __name__ == "__main__":
    train()

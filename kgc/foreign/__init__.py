"""Vectors trained elsewhere: tables with label files, and what other libraries save."""

from kgc.foreign.trained import FORMATS, Trained, read_trained
from kgc.foreign.vectors import load_vectors, read_vectors, read_vocabulary

__all__ = ["FORMATS", "Trained", "load_vectors", "read_trained", "read_vectors", "read_vocabulary"]

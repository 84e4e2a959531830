"""Batches of a graph for Lightning's loops."""

from __future__ import annotations

from typing import Any

import torch
from pytorch_lightning import LightningDataModule

from kgc.data.batches import QueryBatches, TripleBatches, data_place
from kgc.data.graph import KnowledgeGraph
from kgc.types import Triples


class KGDataModule(LightningDataModule):
    """Training examples and the queries of valid.

    Args:
        graph: the data.
        num_examples: how many examples the objective counts.
        batch_size: examples a process (or a group that shares a table) takes per step.
        query_batch_size: queries ranked per validation step.
        seed: of the order of examples.
    """

    def __init__(self, graph: KnowledgeGraph, num_examples: int, batch_size: int, query_batch_size: int, seed: int):
        super().__init__()
        self.graph = graph
        self.num_examples = num_examples
        self.batch_size = batch_size
        self.query_batch_size = query_batch_size
        self.seed = seed

    def train_dataloader(self) -> TripleBatches:
        trainer = self.trainer
        return TripleBatches(
            self.num_examples,
            self.batch_size,
            self.seed,
            trainer.strategy.root_device,
            *data_place(trainer),
        )

    def val_dataloader(self) -> QueryBatches | list:
        if not len(self.graph.valid):
            return []
        return self.query_batches(self.graph.valid)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        return batch  # drawn on the device

    def query_batches(self, triples: Triples) -> QueryBatches:
        """The queries of triples, on the trainer's device."""
        trainer = self.trainer
        triples = triples.to(trainer.strategy.root_device)
        return QueryBatches(triples, self.query_batch_size, *data_place(trainer))

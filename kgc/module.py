"""The LightningModule: a model, what it minimises, and its exact evaluation."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from pytorch_lightning import LightningModule
from torch import Tensor

from kgc.data.batches import data_place, derive_seed, seed_device
from kgc.data.graph import KnowledgeGraph
from kgc.data.known import KnownAnswers, relevant
from kgc.metrics.filtered_rank import FilteredRank
from kgc.models.base import KGEModel
from kgc.objectives import Objective
from kgc.optim import coalesce_gradients, own_options, table_groups, take_options
from kgc.ranking import NonFiniteScore, RankingOptions, rank_candidates, rank_queries
from kgc.schedules import Curve
from kgc.sharding import Shard
from kgc.types import Queries, Side, Triples


class KGEModule(LightningModule):
    """Trains a model on a graph, and ranks splits of the graph with it.

    Every random number of a step is drawn from seeds derived from (seed, epoch, batch, process), so that a resumed run
    draws what an uninterrupted one would.

    Args:
        model: the embedding model.
        graph: the data.
        objective: what training minimises, already set up; None only evaluates.
        optimizer: parameter groups, by `table_groups`, to optimizer.
        scheduler: optimizer to `Curve`, or to a scheduler of torch, stepped per epoch; None keeps the learning rate.
        ranking: sizes and policy of `rank_queries`.
        filter_splits: the splits whose triples are left out of the competition.
        hits: cut-offs K.
        seed: of everything drawn in training.
        identity: plain data stored with every checkpoint under the key `kgc`.
    """

    def __init__(
        self,
        model: KGEModel,
        graph: KnowledgeGraph,
        objective: Objective | None = None,
        optimizer: Callable[[Any], torch.optim.Optimizer] | None = None,
        scheduler: Callable[[torch.optim.Optimizer], Any] | None = None,
        ranking: RankingOptions | None = None,
        filter_splits: Sequence[str] = ("train", "valid", "test"),
        hits: Sequence[int] = (1, 3, 10),
        seed: int = 0,
        identity: dict[str, Any] | None = None,
    ):
        super().__init__()
        self.model = model
        self.graph = graph
        self.objective = objective
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.ranking = ranking or RankingOptions()
        self.filter_splits = tuple(filter_splits)
        self.hits = tuple(hits)
        self.seed = seed
        self.identity = identity or {}
        self.ranks: FilteredRank | None = None
        # From queries, right answers and their places to [B, K] candidates, −1 for none; None: all entities compete.
        self.candidates: Callable[[Queries, Tensor, Tensor], Tensor] | None = None
        self.queries_at_once = 1
        self.progress: Callable[[int], None] | None = None  # told how many queries have just been ranked
        self._known: KnownAnswers | None = None  # of the queries of `_asked`
        self._asked: Triples | None = None
        self._own_filter = True
        self._failure: NonFiniteScore | None = None
        self._generator: torch.Generator | None = None
        self._loss_sum = torch.zeros(())
        self._examples = 0
        self._marked_examples = 0
        self._mark = self._began = self._seconds_before = 0.0
        self.loss = torch.zeros(())  # of the last batch, still on the device
        self.valid: dict[str, float] | None = None  # the metrics of a validation in this epoch
        self.phases = {"train": 0.0, "valid": 0.0}  # seconds of this epoch
        self._schedule: Any = None
        self._schedule_state: dict[str, Any] | None = None
        self._options: list[dict[str, Any]] = []  # of each parameter group, as the config has them
        self._saved_rates: list[float] | None = None
        self.history: list[dict[str, float]] = []  # one row an epoch

    def known(self) -> KnownAnswers:
        """The filter on this device, built once: what `filter_splits` know of the queries that `start_ranking` was told
        of, and of no others, which spares memory; before it was called, of all queries."""
        if self._known is None:
            parts = [self.graph.stored(name) for name in self.filter_splits]
            sizes = (self.graph.num_entities, self.graph.num_relations)
            if self._asked is None:
                wanted = Triples.cat(parts or [Triples.empty()])
            else:
                wanted = relevant(parts, self._asked, *sizes)
            self._known = KnownAnswers(wanted.to(self.device), *sizes)
        return self._known

    def filter_by(self, triples: Triples) -> None:
        """Leaves these triples out of the competition, instead of those of `filter_splits`."""
        self._known = KnownAnswers(triples.to(self.device), self.graph.num_entities, self.graph.num_relations)
        self._own_filter = False

    # Training.

    @property
    def shard(self) -> Shard | None:
        """Which rows of the table of entities this process holds; None: all."""
        return getattr(self.model, "shard", None)

    def configure_model(self) -> None:
        if self.shard is not None:
            self.shard.connect(self.device_mesh["tensor_parallel"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        optimizer = self.optimizer(table_groups(self.model, self.objective))
        self._options = own_options(optimizer)
        # Lightning steps schedulers after the checkpoint of an epoch is written, and a resumed run would miss a step;
        # stepped and saved here, the learning rate continues exactly.
        self._schedule = self.scheduler(optimizer) if self.scheduler else None
        return optimizer

    def on_fit_start(self) -> None:
        self._generator = torch.Generator(self.device)
        self._began = time.perf_counter()

    def on_train_epoch_start(self) -> None:
        self._mark = time.perf_counter()
        self._marked_examples = self._examples
        self.valid, self.phases["valid"] = None, 0.0

    def on_train_batch_start(self, batch: Tensor, batch_idx: int) -> None:
        # Dropout and negatives of a step depend on the step alone, not on how the run came to it.
        draw = (self.seed, self.current_epoch, batch_idx, data_place(self.trainer)[0])
        self._generator.manual_seed(derive_seed(*draw, 1))
        seed_device(self.device, derive_seed(*draw, 2))
        self.objective.epoch = self.current_epoch
        if isinstance(self._schedule, Curve):
            together, batches = self.trainer.accumulate_grad_batches, len(self.trainer.train_dataloader)
            self._schedule.set(self.current_epoch, batch_idx // together, -(-batches // together))

    def training_step(self, index: Tensor, batch_idx: int) -> Tensor:
        batches, together = self.trainer.train_dataloader, self.trainer.accumulate_grad_batches
        step = self.current_epoch * len(batches) + batch_idx
        with self.model.one_pass():
            loss = self.objective.loss(self.model, index, step, self._generator)
        self.loss = loss.detach()
        self._loss_sum = self._loss_sum + self.loss.to(self._loss_sum) * len(index)
        self._examples += len(index)
        if together == 1:
            return loss
        # Lightning divides by the number of batches; their sum shall be the mean over all examples of the step, in
        # smaller batches and in fewer of them at the end of an epoch too.
        return loss * (len(index) * together / batches.examples(batch_idx // together * together, together))

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        if self.shard is not None:
            self._average_gradients()
        coalesce_gradients(optimizer)

    def _average_gradients(self) -> None:
        """Of a sharded table over the groups that hold the same rows, of all else over all processes, so that it stays
        the same on each, bit for bit."""
        groups = self.device_mesh["data_parallel"]
        table = self.model.entity.weight
        for parameter in self.parameters():
            if parameter.grad is None and groups.size() > 1:
                parameter.grad = torch.zeros_like(parameter)
            if parameter.grad is None or parameter.grad.is_sparse:  # with one group alone
                continue
            if parameter is not table:
                torch.distributed.all_reduce(parameter.grad)
                parameter.grad /= self.trainer.world_size
            elif groups.size() > 1:
                torch.distributed.all_reduce(parameter.grad, group=groups.get_group())
                parameter.grad /= groups.size()

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        if self.shard is None or not gradient_clip_val:
            self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)
            return
        gradients = [p.grad for p in self.parameters() if p.grad is not None]
        squares = [(g is not self.model.entity.weight.grad, g.float().square().sum()) for g in gradients]
        total = sum((square for whole, square in squares if whole), torch.zeros((), device=self.device))
        total = total + self.shard.summed(sum(square for whole, square in squares if not whole))
        factor = (gradient_clip_val / (total.sqrt() + 1e-6)).clamp(max=1.0)  # as torch.nn.utils.clip_grad_norm_
        for gradient in gradients:
            gradient.mul_(factor)

    def on_train_epoch_end(self) -> None:
        loss = float(self.all_gather(self._loss_sum.to(self.device)).mean()) / self._examples
        self.phases["train"] = max(1e-9, time.perf_counter() - self._mark - self.phases["valid"])
        rate = (self._examples - self._marked_examples) * data_place(self.trainer)[1] / self.phases["train"]
        row = {"epoch": self.current_epoch + 1, "train/loss": loss, "train/examples_per_second": rate}
        row["train/triples_per_second"] = rate * len(self.graph.train) / self.trainer.train_dataloader.num_triples
        row["train/lr"] = self.optimizers().param_groups[0]["lr"]
        if self.valid is not None:
            row["valid/mrr"] = self.valid["mrr"]
        self.history.append(row)
        if isinstance(self._schedule, torch.optim.lr_scheduler.ReduceLROnPlateau):
            if self.valid is not None:
                self._schedule.step(self.valid["mrr"])
        elif isinstance(self._schedule, torch.optim.lr_scheduler.LRScheduler):
            self._schedule.step()
        self._loss_sum = torch.zeros(())
        self._examples = 0

    @property
    def seconds(self) -> float:
        """Seconds spent in training and validation, those before a resume included."""
        return self._seconds_before + (time.perf_counter() - self._began if self._began else 0.0)

    def on_fit_end(self) -> None:
        self._seconds_before, self._began = self.seconds, 0.0

    def forget_training(self) -> None:
        """Gives back what only training needs: the objective's triples and index, and what holds the optimizer."""
        self.objective = self._schedule = None

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        stateful = isinstance(self._schedule, torch.optim.lr_scheduler.LRScheduler)
        checkpoint["kgc"] = self.identity | {
            "seconds": self.seconds,
            "history": self.history,
            "loss_sum": self._mean_of_processes(self._loss_sum).cpu(),
            "examples": self._examples,
            "schedule": self._schedule.state_dict() if stateful else None,
            "rates": [options["lr"] for options in self._options],
        }

    def _mean_of_processes(self, value: Tensor) -> Tensor:
        value = value.to(self.device)
        several = torch.distributed.is_available() and torch.distributed.is_initialized()
        return self.all_gather(value).mean() if several else value

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        saved = checkpoint["kgc"]
        self._seconds_before, self.history = saved["seconds"], list(saved["history"])
        self._loss_sum, self._examples = saved["loss_sum"], saved["examples"]
        self._schedule_state = saved["schedule"]
        self._saved_rates = saved["rates"]

    def on_train_start(self) -> None:
        """After a resume: the optimizer's options are those of the config, the learning rate where it had come to."""
        if self._saved_rates is None:
            return
        take_options(self.optimizers(use_pl_optimizer=False), self._options, self._saved_rates)
        stateful = isinstance(self._schedule, torch.optim.lr_scheduler.LRScheduler)
        if stateful and self._schedule_state is not None:
            # What a schedule has come to; what it was made with is the config's.
            kept = ("last_epoch", "_step_count", "_last_lr", "best", "num_bad_epochs", "cooldown_counter")
            vars(self._schedule).update({k: v for k, v in self._schedule_state.items() if k in kept})

    # Evaluation. One `FilteredRank` serves the split at hand.

    def start_ranking(self, triples: Triples) -> None:
        """Makes room for the ranks of both queries of so many triples."""
        side = torch.tensor(list(Side)).repeat_interleave(len(triples))
        self.ranks = FilteredRank(side, self.hits).to(self.device)
        if triples is not self._asked and self._own_filter:
            self._known, self._asked = None, triples
        self._failure = None

    def rank_step(self, batch: tuple[Queries, Tensor, Tensor]) -> None:
        queries, targets, index = batch
        try:
            if self.candidates is None:
                counts = rank_queries(self.model, queries, targets, self.known(), self.ranking, self.progress)
                self.ranks.update(index, counts)
                return
            for some in torch.arange(len(targets), device=targets.device).split(self.queries_at_once):
                asked, wanted = queries[some], targets[some]
                given = self.candidates(asked, wanted, index[some])
                counts = rank_candidates(self.model, asked, wanted, given, self.ranking, self.progress)
                self.ranks.update(index[some], counts)
        except NonFiniteScore as error:
            if self.trainer.world_size == 1:
                raise
            self._failure = error  # processes raise it together, below: one that left would leave the others waiting

    def finish_ranking(self) -> None:
        """Called when every process has ranked its batches.

        Raises:
            NonFiniteScore: some process met one; every process raises it.
        """
        if self.trainer.world_size > 1:
            failures: list[NonFiniteScore | None] = [None] * self.trainer.world_size
            torch.distributed.all_gather_object(failures, self._failure)
            for failure in failures:
                if failure is not None:
                    raise failure

    def on_validation_epoch_start(self) -> None:
        self._valid_began = time.perf_counter()
        if self.trainer.world_size > 1:
            # Statistics of the last batch differ from process to process; those of the first are saved.
            for statistics in self.model.buffers():
                torch.distributed.broadcast(statistics, 0)
        self.start_ranking(self.graph.valid)

    def validation_step(self, batch: tuple[Queries, Tensor, Tensor], batch_idx: int) -> None:
        self.rank_step(batch)

    def on_validation_epoch_end(self) -> None:
        self.finish_ranking()
        self.valid = self.ranks.compute()
        self.log("valid/mrr", self.valid["mrr"], logger=False)  # for early stopping
        self.phases["valid"] += time.perf_counter() - self._valid_began

    def test_step(self, batch: tuple[Queries, Tensor, Tensor], batch_idx: int) -> None:
        self.rank_step(batch)

    def on_test_epoch_end(self) -> None:
        self.finish_ranking()

"""The batch size that fits into a device's memory, and one line where something did not fit."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from omegaconf import DictConfig
from pytorch_lightning import Trainer

from kgc.data.graph import KnowledgeGraph
from kgc.errors import UserError
from kgc.limits import lacks_memory
from kgc.optim import table_groups
from kgc.sampling.processes import rehearsal
from kgc.tasks.build import build_training, call, shard_layout

# Share of the largest size tried that fitted: batches differ (in their known answers), and memory gets fragmented.
_MARGIN = 0.9

# Keys of a sampler's proposal that take memory in every step.
_SIZES = ("pool_size", "cache_size", "random_size")


@contextlib.contextmanager
def one_line_for_memory(cfg: DictConfig, trainer: Trainer, last: Path) -> Iterator[None]:
    """Turns a lack of memory into a `UserError` that names the keys to lower and the state that is kept in `last`."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not lacks_memory(error):
            raise
        keys = [f"batch_size={cfg.batch_size}"]
        if "sampler" in cfg.objective:
            sampler = cfg.objective.sampler
            keys.append(f"sampler.num_negatives={sampler.num_negatives}")
            keys += [f"sampler.proposal.{key}={sampler.proposal[key]}" for key in _SIZES if key in sampler.proposal]
        keys.append(f"model.dim={cfg.model.dim}")
        message = f"out of memory on {trainer.strategy.root_device} in training: lower {', '.join(keys)}"
        if reports_memory(trainer.strategy.root_device):
            message += ", or let trainer.auto_batch=true find batch_size"
        if last.exists():
            message += f"; the last saved state is kept: checkpoint={last} goes on from it"
        raise UserError(message) from error


def reports_memory(device: torch.device) -> bool:
    """Whether a device raises when its memory is full: a CPU's is lent beyond what there is, and the run killed."""
    return device.type != "cpu"


def largest_batch(cfg: DictConfig, graph: KnowledgeGraph, trainer: Trainer) -> int:
    """The largest batch size that fits into the memory of every process's device, by steps of training.

    The steps are those of a model, an objective and an optimizer of their own, and the random generators are put back:
    a run with the size given by hand is the same run.

    Args:
        cfg: the config of the run.
        graph: its data.
        trainer: its trainer; processes are connected here if they are not yet.

    Returns:
        At most the number of examples of a process.

    Raises:
        UserError: the device does not say when its memory is full.
        torch.OutOfMemoryError: not even one example fits.
    """
    device = trainer.strategy.root_device
    if shard_layout(cfg) is not None:
        raise UserError(
            "trainer.auto_batch=true: processes that share a table do every step together, and one that is out of "
            "memory would leave the others waiting; give batch_size"
        )
    if not reports_memory(device):
        raise UserError(
            "trainer.auto_batch=true: a CPU does not say when its memory is full; give batch_size, or train on a GPU"
        )
    trainer.strategy.setup_environment()
    # Each process tries by itself, without a collective call: one that has no memory would leave the others waiting.
    with torch.random.fork_rng([device] if device.type == "cuda" else []), rehearsal(trainer.world_size):
        size = _found(cfg, graph, trainer)
    gc.collect()
    torch.cuda.empty_cache()
    size = int(trainer.strategy.reduce(torch.tensor(size, device=device), reduce_op="min"))
    if not size:
        raise torch.OutOfMemoryError("not even one example fits")
    return size


def _found(cfg: DictConfig, graph: KnowledgeGraph, trainer: Trainer) -> int:
    """The largest batch size of this process; 0 if not even one example fits."""
    try:
        step, examples = _steps(cfg, graph, trainer)
        return doubled(step, -(-examples // trainer.world_size))
    except torch.OutOfMemoryError:
        return 0


def doubled(step: Callable[[int], None], limit: int) -> int:
    """The largest batch size, less a margin: by doubling from 1 until memory is full, then by halving what is between
    what fitted and what did not, to a sixteenth; `limit` if that fits.

    Args:
        step: does a step of training with so many examples.
        limit: largest size wanted.

    Raises:
        torch.OutOfMemoryError: a step with one example does not fit.
    """
    step(1)  # makes the optimizer's state too
    size = 1
    while size < limit:
        wanted = min(2 * size, limit)
        try:
            step(wanted)
        except torch.OutOfMemoryError:
            return max(1, int(_MARGIN * _largest(step, size, wanted)))
        size = wanted
    return size


def _largest(step: Callable[[int], None], fits: int, fails: int) -> int:
    """A size that fits and is within a sixteenth of the largest that does."""
    while fails - fits > max(1, fits // 16):
        middle = (fits + fails) // 2
        try:
            step(middle)
            fits = middle
        except torch.OutOfMemoryError:
            fails = middle
    return fits


def _steps(cfg: DictConfig, graph: KnowledgeGraph, trainer: Trainer) -> tuple[Callable[[int], None], int]:
    """A function that does a step with so many examples, as Lightning would, and the number of examples."""
    device = trainer.strategy.root_device
    model, objective, examples = build_training(cfg, graph, trainer)
    model.to(device).train()
    optimizer = call(cfg.optimizer, "optimizer")(table_groups(model, objective))
    generator = torch.Generator(device).manual_seed(0)
    order = torch.randperm(examples, generator=generator, device=device)
    # Processes that train together hold a copy of all gradients, which they sum.
    buckets = [torch.empty_like(p) for p in model.parameters()] if trainer.world_size > 1 else []

    def step(size: int) -> None:
        # Gradients of the step before are there until the first backward pass, as in training.
        for batch in range(cfg.trainer.accumulate_grad_batches):
            with trainer.strategy.precision_plugin.train_step_context(), model.one_pass():
                loss = objective.loss(model, order[:size], batch, generator)
            if batch == 0:
                optimizer.zero_grad()
            loss.backward()
        for bucket, parameter in zip(buckets, model.parameters(), strict=False):
            if parameter.grad is not None:
                bucket.copy_(parameter.grad)
        optimizer.step()

    return step, examples
